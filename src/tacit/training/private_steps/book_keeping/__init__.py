"""The book-keeping engine: per-example clipping without per-example gradients."""
