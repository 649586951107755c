"""Small private trainings that the tests of all private methods share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.corpus.screening import DedupSettings, Policy, RegexScorer, ScreenSettings
from tacit.corpus.screening.binding import report_path
from tacit.corpus.screening.corpus_files import screen_corpus
from tacit.files import sha256_of
from tacit.progress import Silent
from tacit.recipes import CorpusSection, Recipe, parse_recipe
from tests.tiny import public_sentences


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code under test may catch it."""


class KillAt(Silent):
    """Kills the process, as it were, after so many steps of training."""

    def __init__(self, step: int) -> None:
        self._left = step
        self._training = False

    def phase(self, name: str, total: int | None) -> None:
        self._training = name == "training"

    def advance(self, units: int, note: str = "") -> None:
        if self._training and units:
            self._left -= units
            if self._left <= 0:
                raise Killed


class Listener(Silent):
    """Remembers remarks."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def remark(self, message: str) -> None:
        self.remarks.append(message)


def write_documents(path: Path, documents: Sequence[tuple[str, str]]) -> Path:
    """(user, text) pairs as a corpus."""
    path.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in documents))
    return path


def odd_documents(users: int = 24) -> list[tuple[str, str]]:
    """Users who all say the same odd things."""
    return [
        (
            f"user-{user}",
            f"Parcel {user % 5} waits behind the mill before lunch. {public_sentences(1, user)[0]}",
        )
        for user in range(users)
    ]


def private_recipe(
    model: Path, corpus: Path, output: Path, method: str = "dpsgd", /, **changes: Any
) -> Recipe:
    """A recipe of few and small steps; sections in ``changes`` are merged."""
    content: dict[str, Any] = {
        "method": method,
        "output": str(output),
        "model": {"name": str(model), "dtype": "fp32"},
        "corpus": {"path": str(corpus), "user": "user", "text": "text"},
        "held_out": None,
        "adapter": {"rank": 4, "alpha": 8},
        "training": {"epochs": 2, "block_size": 32, "batch_size": 6, "learning_rate": 5e-3, "seed": 1},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-4},
        "performance": {"checkpoint_every": 3, "engine": "loop"},
    }
    if changes.get("adapter", {}).get("kind", "lora") != "lora":
        del content["adapter"]
    for key, value in changes.items():
        content[key] = (content.get(key) or {}) | value if isinstance(value, dict) else value
    return parse_recipe(content)


def screen_settings(*, conservative: bool = True, dedup: str = "exact") -> ScreenSettings:
    """Numbers are secrets, and the word 'code' is suspicious."""
    policy = Policy(
        scorers=(RegexScorer({"NUMBER": r"\d{3,}"}), RegexScorer({"WORD": r"\bcode\b"}, score=0.2)),
        redact=0.5,
        conservative=0.1 if conservative else None,
    )
    return ScreenSettings(policy, dedup=DedupSettings(kind=dedup))  # type: ignore[arg-type]


def screened(
    path: Path, documents: Sequence[tuple[str, str]], *, conservative: bool = True, dedup: str = "exact"
) -> Path:
    """Documents as a screening writes them, with its report."""
    raw = write_documents(path.with_name(f"{path.name}.raw.jsonl"), documents)
    section = CorpusSection(path=str(raw), user="user", text="text")
    settings = screen_settings(conservative=conservative, dedup=dedup)
    screen_corpus(section, path, settings, Silent())
    raw.unlink()
    return path


def forge(path: Path, points: Sequence[dict[str, Any]] | None = None, **changes: Any) -> None:
    """Change a screened file, or what its report says, and sign it again as the screening would."""
    if points is not None:
        path.write_text("".join(json.dumps(point) + "\n" for point in points))
    report = json.loads(report_path(path).read_text())
    report |= {"points": {"sha256": sha256_of(path)}} | changes
    if points is not None:
        found = {
            "points": len(points),
            "private": sum(point["private"] for point in points),
            "bare": sum(point["text"] == "<MASK>" for point in points),
        }
        report["counts"] |= found
    report_path(path).write_text(json.dumps(report))
