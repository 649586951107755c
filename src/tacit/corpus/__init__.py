"""Whose text is whose: reading, splitting, partitioning and summarising documents by user."""

from tacit.corpus.chat import Message, Renderer, render_plainly, template_renderer
from tacit.corpus.partition import Partition, PartSummary, Slot
from tacit.corpus.sources import CorpusSource, iter_rows
from tacit.corpus.splitting import HeldOutSplit, split_held_out
from tacit.corpus.summary import CorpusSummary, summarise
from tacit.corpus.user_corpus import Document, UserCorpus

__all__ = [
    "CorpusSource",
    "CorpusSummary",
    "Document",
    "HeldOutSplit",
    "Message",
    "PartSummary",
    "Partition",
    "Renderer",
    "Slot",
    "UserCorpus",
    "iter_rows",
    "render_plainly",
    "split_held_out",
    "summarise",
    "template_renderer",
]
