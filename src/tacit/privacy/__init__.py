"""The arithmetic of privacy loss and the statements made from it. NumPy and SciPy, never torch."""

from tacit.privacy.guarantee import Guarantee, Unit

__all__ = ["Guarantee", "Unit"]
