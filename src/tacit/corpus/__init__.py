"""Whose text is whose: reading, simulating, splitting, partitioning and summarising documents by user."""

from tacit.corpus.canaries import Canary, CanaryManifest, PlantingCost, draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.corpus.chat import Message, Renderer, TemplateRenderer, render_plainly
from tacit.corpus.customersim import Dialogue, SimulationPlan, Span, simulate, write_customersim
from tacit.corpus.partition import Partition, PartSummary, Slot, read_key
from tacit.corpus.planting import plant, write_planted
from tacit.corpus.reading import needs_tokenizer, read_corpus
from tacit.corpus.sources import CorpusSource, iter_rows
from tacit.corpus.splitting import HeldOutSplit, held_out_documents, split_held_out
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
    "PlantingCost",
    "Renderer",
    "SimulationPlan",
    "Slot",
    "Span",
    "TemplateRenderer",
    "UserCorpus",
    "draw_canaries",
    "held_out_documents",
    "iter_rows",
    "needs_tokenizer",
    "plant",
    "read_corpus",
    "read_key",
    "render_plainly",
    "simulate",
    "split_held_out",
    "summarise",
    "write_customersim",
    "write_planted",
]
