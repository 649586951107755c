"""Screening: whole sentences as data points, duplicates and secrets masked, public and private told apart."""

from tacit.corpus.screening.dedup import Deduplicator, DedupSettings
from tacit.corpus.screening.difference import GroupDifference, differing_points, group_difference
from tacit.corpus.screening.gold_spans import GoldSpans
from tacit.corpus.screening.masks import LabelledSpan
from tacit.corpus.screening.patterns import PatternScorer
from tacit.corpus.screening.phrases import Gazetteer
from tacit.corpus.screening.policy import Policy
from tacit.corpus.screening.regexes import RegexScorer
from tacit.corpus.screening.scores import MASK, ScoredToken, Scorer
from tacit.corpus.screening.screened_points import ScreenedPoint, read_screened
from tacit.corpus.screening.screening import RawDocument, Screening, ScreenSettings
from tacit.corpus.screening.sentences import SplitSettings
from tacit.corpus.screening.token_classifier import FlairScorer

__all__ = [
    "MASK",
    "DedupSettings",
    "Deduplicator",
    "FlairScorer",
    "Gazetteer",
    "GoldSpans",
    "GroupDifference",
    "LabelledSpan",
    "PatternScorer",
    "Policy",
    "RawDocument",
    "RegexScorer",
    "ScoredToken",
    "Scorer",
    "ScreenSettings",
    "ScreenedPoint",
    "Screening",
    "SplitSettings",
    "differing_points",
    "group_difference",
    "read_screened",
]
