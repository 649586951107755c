"""CRT's corpora for the experiments: data points with gold spans of their secrets, and canaries among them.

simulated     dialogues that are written here (`corpus/customersim.py`)
customersim   the CustomerSim dialogues as published, JSON lines with spans
multiwoz      MultiWOZ 2.1 or 2.2 as published (`corpus/dialogue_corpora.py`)

A data point is one sentence, as CRT has it, and a row of its own: so the examples of all methods are the
same, and masking one point moves no other. Half of the dialogues are trained on, the other half is held out:
that is for measuring, and gives the membership attack secrets that nobody learnt from.

Ground is what all Runs of a corpus and a seed stand on. The dialogues are the same for all seeds; which of
them are trained on, the canaries and what the policy misses are the seed's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tacit.attacks import MembershipSet
from tacit.attacks.secret_lines import span_set
from tacit.corpus import (
    CanaryManifest,
    CanaryPlan,
    Dialogue,
    SimulationPlan,
    Span,
    draw_canaries,
    simulate,
)
from tacit.corpus.dialogue_corpora import ConversionCounts, convert_dialogues
from tacit.corpus.screening import DedupSettings, GoldSpans, Policy, ScreenSettings, SplitSettings
from tacit.corpus.screening.corpus_files import screen_corpus
from tacit.corpus.screening.sentences import split_points
from tacit.experiments.stages import Workshop, mark_of, text_mark
from tacit.recipes import CorpusSection

USER, TEXT, SPANS = "user", "text", "spans"
CANARY: Final = "CANARY"
_TRAINED, _HELD_OUT, _MANIFEST, _SCREENED = "train.jsonl", "held_out.jsonl", "canaries.json", "screened.jsonl"
_TEMPLATE: Final = "My ID is: {secret}"
Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One sentence of a dialogue, with the secrets in it."""

    user: str
    text: str
    spans: tuple[Span, ...] = ()

    def to_row(self) -> Row:
        """As a line of the corpus."""
        spans = [{"start": one.start, "end": one.end, "label": one.label} for one in self.spans]
        return {USER: self.user, TEXT: self.text, SPANS: spans}

    @classmethod
    def from_row(cls, row: Row) -> Point:
        """Inverse of :meth:`to_row`."""
        spans = tuple(Span(one["start"], one["end"], one["label"]) for one in row[SPANS])
        return cls(row[USER], row[TEXT], spans)


@dataclass(frozen=True)
class Ground:
    """What all Runs of one corpus and seed stand on."""

    folder: Path
    key: Mapping[str, Any]

    @property
    def corpus(self) -> Path:
        """The data points to train on, canaries among them."""
        return self.folder / _TRAINED

    @cached_property
    def manifest(self) -> CanaryManifest:
        """The canaries."""
        return CanaryManifest.load(self.folder / _MANIFEST)

    @cached_property
    def held_out(self) -> list[Point]:
        """The data points of dialogues that nobody learns from."""
        return list(_read(self.folder / _HELD_OUT))

    def members(self, labels: Sequence[str] | None, most: int) -> MembershipSet:
        """Sentences with secrets of dialogues that were trained on and of dialogues that were not.

        Every secret of the training text is a member, whether a policy finds it or not.
        """
        learnt = [point for point in _read(self.corpus) if not _is_canary(point)]
        both = [(learnt, True), (self.held_out, False)]
        dialogues = [(one, trained) for points, trained in both for one in _as_dialogues(points)]
        dialogues.sort(key=lambda pair: pair[0].user)
        return span_set(dialogues, by="user", members=most, labels=labels, seed=int(self.key["seed"]))


def text_of(workshop: Workshop, corpus: Mapping[str, Any]) -> list[str] | None:
    """What a corpus's files are known by; None where it is simulated, or not there yet to be known."""
    names = corpus.get("texts", [])
    if not names or workshop.data is None or not all((workshop.data / name).exists() for name in names):
        return None
    return [_mark(workshop.data / name) for name in names]


def _mark(path: Path) -> str:
    if path.is_file():
        return text_mark(path)
    # A folder as it was published: names and sizes tell one release from another.
    sizes = {one.relative_to(path).as_posix(): one.stat().st_size for one in path.rglob("*.json")}
    return mark_of("folder", sizes)


def ground_of(workshop: Workshop, settings: Mapping[str, Any], corpus: str, seed: int) -> Ground:
    """The ground of a corpus and a seed, made where it is not there yet."""
    chosen = settings["corpora"][corpus]
    texts = text_of(workshop, chosen)
    key = {"corpus": chosen, "texts": texts, "canaries": settings["canaries"], "seed": seed}

    def make(folder: Path) -> None:
        dialogues = list(_points_of(workshop, chosen))
        draw = random.Random(seed)
        draw.shuffle(dialogues)
        half = len(dialogues) // 2
        learnt = [point for points in dialogues[:half] for point in points]
        draw.shuffle(learnt)
        manifest = _canaries(settings["canaries"], learnt, seed)
        manifest.save(folder / _MANIFEST)
        planted = [_planted(user, text) for user, text in manifest.insertions()]
        _write(folder / _TRAINED, [*learnt, *planted])
        _write(folder / _HELD_OUT, [point for points in dialogues[half:] for point in points])

    return Ground(workshop.made_folder(f"crt-{corpus}-{seed}", key, make), key)


def screened(workshop: Workshop, ground: Ground, gamma: float, *, dedup: bool) -> Path:
    """The training points as a policy leaves them that misses a share ``gamma`` of the secrets.

    The policy is the gold spans without those that a coin of each drops; pi_c has all of them.
    """
    key = {"ground": ground.key, "gamma": gamma, "dedup": dedup}
    section = CorpusSection(path=str(ground.corpus), user=USER, text=TEXT)
    gold = GoldSpans(column=SPANS, miss_rate=gamma, seed=int(ground.key["seed"]))
    settings = ScreenSettings(
        Policy((), redact=1.0, conservative=1.0, gold=gold),
        SplitSettings(),
        DedupSettings("exact" if dedup else "off"),
    )

    def make(folder: Path) -> None:
        screen_corpus(section, folder / _SCREENED, settings, workshop.progress)

    return workshop.made_folder("crt-screened", key, make) / _SCREENED


def _canaries(plan: Mapping[str, Any], learnt: Sequence[Point], seed: int) -> CanaryManifest:
    """The paper's: one shared beginning, each canary many times."""
    chosen = CanaryPlan(
        template=_TEMPLATE,
        secret="digits",  # noqa: S106 - the kind of secret, not one
        length=plan["digits"],
        prefix="shared",
        users=plan["number"],
        owner="new",
        ladder=(plan["repetitions"],),
        include=1.0,
        seed=seed,
    )
    users = sorted({point.user for point in learnt})
    characters = sum(len(point.text) for point in learnt)
    return draw_canaries(chosen, users, documents=len(learnt), characters=characters)


def _planted(user: str, text: str) -> Point:
    """A canary with the place of its secret: the policy finds it as it finds all others."""
    start = len(_TEMPLATE.partition("{secret}")[0])
    return Point(user, text, (Span(start, len(text), CANARY),))


def _is_canary(point: Point) -> bool:
    return any(span.label == CANARY for span in point.spans)


def _points_of(workshop: Workshop, corpus: Mapping[str, Any]) -> Iterator[list[Point]]:
    """Some dialogues of a corpus, drawn without regard to the seed, each as its data points.

    Where the corpus says ``with``, only dialogues with a secret of that kind are drawn from.
    """
    wanted = corpus.get("with")
    found = [
        one
        for one in _KINDS[corpus["kind"]](workshop, corpus)
        if wanted is None or any(span.label == wanted for span in one.spans)
    ]
    chosen = sorted(random.Random(0).sample(range(len(found)), min(len(found), corpus["dialogues"])))
    for number in chosen:
        dialogue = found[number]
        points = []
        for start, end in split_points(dialogue.text, SplitSettings()):
            spans = tuple(
                Span(max(one.start, start) - start, min(one.end, end) - start, one.label)
                for one in dialogue.spans
                if one.start < end and one.end > start
            )
            points.append(Point(dialogue.user, dialogue.text[start:end], _apart(spans)))
        yield points


def _apart(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans that do not overlap: of those that do, the first."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return tuple(kept)


def _as_dialogues(points: Iterable[Point]) -> Iterator[Dialogue]:
    """Points of one dialogue as its lines."""
    by_user = sorted(points, key=lambda point: point.user)
    for user, own in groupby(by_user, key=lambda point: point.user):
        text, spans = "", list[Span]()
        for point in own:
            text += "\n" if text else ""
            spans += [Span(one.start + len(text), one.end + len(text), one.label) for one in point.spans]
            text += point.text
        yield Dialogue(user, user, text, tuple(spans))


def _simulated(_: Workshop, corpus: Mapping[str, Any]) -> Iterator[Dialogue]:
    yield from simulate(SimulationPlan(users=corpus["dialogues"], dialogues_per_user=1, seed=0))


def _customersim(workshop: Workshop, corpus: Mapping[str, Any]) -> Iterator[Dialogue]:
    for name in corpus["texts"]:
        with workshop.text(name).open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                spans = tuple(Span(one["start"], one["end"], one["label"]) for one in row[SPANS])
                yield Dialogue(row["id"], row["id"], row[TEXT], spans)


def _multiwoz(workshop: Workshop, corpus: Mapping[str, Any]) -> Iterator[Dialogue]:
    for name in corpus["texts"]:
        for one in convert_dialogues("multiwoz", workshop.text(name), ConversionCounts()):
            yield Dialogue(one.user, one.user, one.text, one.spans)


def _write(path: Path, points: Iterable[Point]) -> None:
    with path.open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(point.to_row(), ensure_ascii=False) + "\n" for point in points)


def _read(path: Path) -> Iterator[Point]:
    with path.open(encoding="utf-8") as lines:
        yield from (Point.from_row(json.loads(line)) for line in lines)


_KINDS: Final[Mapping[str, Callable[[Workshop, Mapping[str, Any]], Iterable[Dialogue]]]] = {
    "simulated": _simulated,
    "customersim": _customersim,
    "multiwoz": _multiwoz,
}
