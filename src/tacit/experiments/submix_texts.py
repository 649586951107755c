"""Whose text the SubMix experiments learn from: what is read of a corpus, and as which users.

A text is named by a mapping, so that settings are JSON:

    {"kind": "wikitext", "file": "wikitext-2/train.txt", "bytes": 900000, "block": 128}
    {"kind": "patents", "file": "patents/abstracts.jsonl", "rows": 800, "seed": 1}
    {"kind": "bigpatent", "folder": "bigpatent/train/g"}
    {"kind": "simulated", "users": 40, "dialogues": 1, "seed": 1}

Wikitext is cut into blocks, each a user, as in the paper. Patents are users. BigPatent is read as it was
published: a folder of gzipped JSON lines for each class, here the descriptions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.corpus.customersim import SimulationPlan, simulate
from tacit.corpus.published_texts import write_texts
from tacit.experiments.stages import Workshop, mark_of, text_mark

Text = Mapping[str, Any]


def text_key(workshop: Workshop, text: Text) -> dict[str, Any]:
    """What a text is known by. A plan can be made without ``--data``: then by its name alone."""
    name = _name(text)
    if name is None or workshop.data is None:
        return dict(text)
    path = workshop.text(name)
    if path.is_dir():  # gigabytes: by names and sizes
        mark = mark_of("folder", {one.name: one.stat().st_size for one in sorted(path.iterdir())})
    else:
        mark = text_mark(path)
    return {**text, "mark": mark}


def corpus_of(workshop: Workshop, text: Text) -> dict[str, Any]:
    """The recipe's section for a text, which is read, cut or simulated now where it is not there yet."""
    match text["kind"]:
        case "wikitext":
            return {"path": str(_beginning(workshop, text)), "format": "text", "blocks": text["block"]}
        case "patents":
            return {"path": str(_some_rows(workshop, text)), "user": "number", "text": "abstract"}
        case "bigpatent":
            return {"path": str(_bigpatent(workshop, text)), "user": "user", "text": "text"}
        case _:
            return {"path": str(_simulated(workshop, text)), "user": "user", "text": "text"}


def told(text: Text) -> str:
    """A text in a few words."""
    match text["kind"]:
        case "wikitext":
            size = f"the first {text['bytes']:,} bytes" if text["bytes"] else "all"
            return f"{size} of {text['file']}, in blocks of {text['block']} tokens that are users each"
        case "patents":
            return f"{text['rows']:,} abstracts of {text['file']}, drawn at random, each a user"
        case "bigpatent":
            return f"the descriptions in {text['folder']}, each patent a user"
        case _:
            return f"simulated dialogues of {text['users']} users (CustomerSim, seed {text['seed']})"


def _name(text: Text) -> str | None:
    """What it is called under ``--data``."""
    return text.get("file") or text.get("folder")


def _beginning(workshop: Workshop, text: Text) -> Path:
    source = workshop.text(text["file"])
    if text["bytes"] is None:
        return source

    def make() -> str:
        with source.open("rb") as handle:
            content = handle.read(text["bytes"])
        return content[: content.rfind(b"\n") + 1].decode()

    return workshop.made_text("wikitext.txt", text_key(workshop, text), make)


def _some_rows(workshop: Workshop, text: Text) -> Path:
    source = workshop.text(text["file"])

    def make() -> str:
        lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
        return "".join(random.Random(text["seed"]).sample(lines, text["rows"]))

    return workshop.made_text("patents.jsonl", text_key(workshop, text), make)


def _bigpatent(workshop: Workshop, text: Text) -> Path:
    """All files of a class as one."""
    source = workshop.text(text["folder"])
    path = workshop.folder / "texts" / f"bigpatent-{mark_of('bigpatent', text_key(workshop, text))}.jsonl"
    if not path.exists():
        write_texts("bigpatent", source, path)
    return path


def _simulated(workshop: Workshop, text: Text) -> Path:
    def make() -> str:
        plan = SimulationPlan(users=text["users"], dialogues_per_user=text["dialogues"], seed=text["seed"])
        return "".join(
            json.dumps({"user": one.user, "text": one.text}, ensure_ascii=False) + "\n"
            for one in simulate(plan)
        )

    return workshop.made_text("simulated.jsonl", dict(text), make)
