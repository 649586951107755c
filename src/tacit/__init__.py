"""tacit: language models that keep what they read to themselves."""

__version__ = "0.1.0"
