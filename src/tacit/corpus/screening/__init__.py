"""Screening: whole sentences as data points, duplicates and secrets masked, public and private told apart."""

from tacit.corpus.screening.scores import MASK, ScoredToken, Scorer

__all__ = ["MASK", "ScoredToken", "Scorer"]
