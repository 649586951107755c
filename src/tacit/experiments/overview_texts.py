"""What all methods of the overview learn from: turns of simulated dialogues, with planted codes.

A document is one turn of a dialogue. So the unit is the same for all: an example of DP-SGD, a data point of
CRT, a text of an author. Users are simulated once; some are held out. Some of the others carry codes: each a
turn of its own, repeated as often as the ladder says. Codes and tags are drawn anew for every seed.

Two screenings of the planted text go with it, by the corpus's own labels, of which pi misses a known share:
one masks and nothing else, the other does what CRT asks for (repeats become masks too). pi_c misses nothing.

The public model is an LSTM that has read the turns of other simulated users once or more, or a model of the
hub. It is the same for all seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tacit.corpus import CanaryManifest, CanaryPlan, SimulationPlan, draw_canaries, simulate
from tacit.corpus.customersim import Dialogue
from tacit.corpus.screening import DedupSettings, GoldSpans, Policy, ScreenSettings, SplitSettings
from tacit.corpus.screening.corpus_files import screen_corpus
from tacit.corpus.screening.dedup import DedupKind
from tacit.experiments.experiment import Settings
from tacit.experiments.stages import Workshop
from tacit.models.tokenizer import load_tokenizer
from tacit.models.vocabulary import LSTMShape, build_word_tokenizer, create_lstm
from tacit.models.words import whole_words
from tacit.recipes import CorpusSection

USER, TEXT, SPANS = "user", "text", "spans"
TEMPLATE: Final = " {tag} code is {secret}"  # words of a model know that a space stands before them
_PLANTED, _HELD_OUT, _MASKED, _SCREENED = "planted.jsonl", "held-out.jsonl", "masked.jsonl", "screened.jsonl"
_MANIFEST, _UNTRAINED, _READ = "canaries.json", "lstm", "public.jsonl"
_WHOLE_TURN: Final = 1000  # sentences: more than a turn has
Row = dict[str, Any]


@dataclass(frozen=True)
class Ground:
    """What all Runs of a seed stand on."""

    folder: Path
    public: str = field(repr=False)  # name or folder of the public model
    manifest: CanaryManifest = field(repr=False)

    @property
    def planted(self) -> Path:
        """Training turns of users, with codes."""
        return self.folder / _PLANTED

    @property
    def masked(self) -> Path:
        """The same with what pi finds masked."""
        return self.folder / _MASKED

    @property
    def screened(self) -> Path:
        """The same as CRT takes it."""
        return self.folder / _SCREENED

    def turns(self) -> list[Row]:
        """Training turns without codes."""
        return list(read_rows(self.folder / _PLANTED))[: self.manifest.cost.corpus_documents]

    def held_out(self) -> list[Row]:
        """Turns of users that nothing was trained on."""
        return list(read_rows(self.folder / _HELD_OUT))


def ground_of(shop: Workshop, settings: Settings, seed: int) -> Ground:
    """The ground of a seed, made where it is not there yet."""
    public = public_model(shop, settings)
    key = {name: settings[name] for name in ("corpus", "canaries", "policy", "model")} | {"seed": seed}

    def make(folder: Path) -> None:
        corpus = settings["corpus"]
        turns = list(turns_of(corpus["users"] + corpus["held_out"], corpus["dialogues"], corpus["seed"]))
        users = sorted({row[USER] for row in turns})[: corpus["users"]]
        own = [row for row in turns if row[USER] in users]
        write_rows(folder / _HELD_OUT, (row for row in turns if row[USER] not in users))
        manifest = _codes(own, users, settings, public, seed)
        manifest.save(folder / _MANIFEST)
        write_rows(folder / _PLANTED, [*own, *_planted(manifest)])
        screenings: tuple[tuple[str, DedupKind], ...] = ((_MASKED, "off"), (_SCREENED, "exact"))
        for name, kind in screenings:
            _screen(shop, folder, name, settings["policy"], seed, kind)

    folder = shop.made_folder(f"overview-{seed}", key, make)
    return Ground(folder, public, CanaryManifest.load(folder / _MANIFEST))


def turns_of(users: int, dialogues: int, seed: int) -> Iterator[Row]:
    """Every turn of simulated dialogues, with where its secrets are."""
    for one in simulate(SimulationPlan(users=users, dialogues_per_user=dialogues, seed=seed)):
        yield from _turns(one)


def _turns(dialogue: Dialogue) -> Iterator[Row]:
    begin = 0
    for line in dialogue.text.split("\n"):
        end = begin + len(line)
        spans = [
            {"start": span.start - begin, "end": span.end - begin, "label": span.label}
            for span in dialogue.spans
            if begin <= span.start < end
        ]
        yield {USER: dialogue.user, TEXT: line, SPANS: spans}
        begin = end + 1


def _codes(turns: list[Row], users: list[str], settings: Settings, public: str, seed: int) -> CanaryManifest:
    canaries = settings["canaries"]
    plan = CanaryPlan(
        template=TEMPLATE,
        secret="digits",  # noqa: S106 - the kind of secret, not one
        length=canaries["digits"],
        prefix="distinct",
        users=canaries["users"],
        ladder=tuple(canaries["ladder"]),
        include=1.0,
        seed=seed,
    )
    return draw_canaries(
        plan,
        users,
        documents=len(turns),
        characters=sum(len(row[TEXT]) for row in turns),
        words=whole_words(load_tokenizer(public)),
    )


def _planted(manifest: CanaryManifest) -> Iterator[Row]:
    secrets = {one.text: one.secret for one in manifest.canaries}
    for user, text in manifest.insertions():
        end = len(text)
        span = {"start": end - len(secrets[text]), "end": end, "label": "CODE"}
        yield {USER: user, TEXT: text, SPANS: [span]}


def _screen(
    shop: Workshop, folder: Path, name: str, policy: Mapping[str, float], seed: int, kind: DedupKind
) -> None:
    """One data point for every turn; pi misses a known share of the labelled secrets, and pi_c none."""
    gold = GoldSpans(column=SPANS, miss_rate=policy["miss_rate"], seed=seed)
    settings = ScreenSettings(
        Policy((), redact=0.5, conservative=0.5, gold=gold),
        SplitSettings(sentences=_WHOLE_TURN),
        DedupSettings(kind=kind),
    )
    section = CorpusSection(path=str(folder / _PLANTED), user=USER, text=TEXT)
    screen_corpus(section, folder / name, settings, shop.progress)


def public_model(shop: Workshop, settings: Settings) -> str:
    """Name or folder of the public model; a small one learns here from other users' turns."""
    model = settings["model"]
    if "name" in model:
        return str(model["name"])
    read = model["read"]

    def make(folder: Path) -> None:
        turns = list(turns_of(read["users"], read["dialogues"], read["seed"]))
        write_rows(folder / _READ, turns)
        words = build_word_tokenizer((row[TEXT] for row in turns), model["vocabulary"])
        shape = LSTMShape(
            layers=model["layers"],
            hidden_size=model["hidden"],
            embedding_size=model["hidden"],
            tied=True,
        )
        create_lstm(folder / _UNTRAINED, shape=shape, tokenizer=words, vocabulary="public", seed=read["seed"])

    folder = shop.made_folder("overview-public", {"model": model}, make)
    run = shop.run(
        "overview-public",
        {
            "method": "finetune",
            "model": {"name": str((folder / _UNTRAINED).absolute()), "dtype": "fp32"},
            "corpus": {
                "path": str((folder / _READ).absolute()),
                USER: USER,
                TEXT: TEXT,
                "public": True,
            },
            "held_out": None,
            "adapter": {"kind": "full"},
            "training": {**settings["training"], "epochs": read["epochs"], "seed": read["seed"]},
        },
    )
    return str(run.weights.absolute())


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """As JSON lines."""
    with path.open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of JSON lines."""
    with path.open(encoding="utf-8") as handle:
        yield from map(json.loads, handle)
