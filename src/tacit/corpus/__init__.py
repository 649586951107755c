"""Whose text is whose: reading, simulating, splitting, partitioning and summarising documents by user."""

from tacit.corpus.canaries import Canary, CanaryManifest, CanaryPlan, draw_canaries, plant
from tacit.corpus.chat import Message, Renderer, render_plainly, template_renderer
from tacit.corpus.customersim import Dialogue, SimulationPlan, Span, simulate, write_customersim
from tacit.corpus.partition import Partition, PartSummary, Slot
from tacit.corpus.sources import CorpusSource, iter_rows
from tacit.corpus.splitting import HeldOutSplit, split_held_out
from tacit.corpus.summary import CorpusSummary, summarise
from tacit.corpus.user_corpus import Document, UserCorpus

__all__ = [
    "Canary",
    "CanaryManifest",
    "CanaryPlan",
    "CorpusSource",
    "CorpusSummary",
    "Dialogue",
    "Document",
    "HeldOutSplit",
    "Message",
    "PartSummary",
    "Partition",
    "Renderer",
    "SimulationPlan",
    "Slot",
    "Span",
    "UserCorpus",
    "draw_canaries",
    "iter_rows",
    "plant",
    "render_plainly",
    "simulate",
    "split_held_out",
    "summarise",
    "template_renderer",
    "write_customersim",
]
