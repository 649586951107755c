"""The embedded tagger: a small network that finds names, places, organisations and addresses offline."""

from tacit.corpus.screening.tagger.embedded import CONSERVATIVE, REDACT, EmbeddedTagger
from tacit.corpus.screening.tagger.weights import LABELS

__all__ = ["CONSERVATIVE", "LABELS", "REDACT", "EmbeddedTagger"]
