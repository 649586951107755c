"""How much of what is sensitive the embedded tagger and the patterns mask, on corpora with gold spans.

A span counts as masked where every letter and digit of it is. Precision is the share of masked letters and
digits that lie in gold spans (of corpora that label everything). A text is public where nothing reaches the
threshold. A masked text is settled where masking any one of its secrets beforehand changes nothing else. The
last line has speeds on one core, on texts that were not seen before: of the tagger, the patterns, and
Presidio (its patterns only: it finds names with a model that has to be fetched).

    python -m benchmarks.redaction [--presidio FILE] [--multiwoz test.jsonl] [--customersim test.jsonl]
        [--wikigold FILE] [--weights FILE] [--thresholds 0.5,0.1] [--no-patterns] [--sentences]

The corpora: presidio-research's synth_dataset_v2.json (never trained on), MultiWOZ 2.1's and CustomerSim's
test parts, the held-out documents of WikiGold. CustomerSim as tacit simulates it, whose sentences were not
trained on either, needs no file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.customersim import SimulationPlan, simulate
from tacit.corpus.screening import Scorer
from tacit.corpus.screening.patterns import PatternScorer
from tacit.corpus.screening.policy import Policy
from tacit.corpus.screening.presidio import PresidioScorer
from tacit.corpus.screening.redaction import Redactor
from tacit.corpus.screening.sentences import SplitSettings, split_points
from tacit.corpus.screening.tagger import REDACT, EmbeddedTagger
from tacit.corpus.screening.tagger.weights import SHIPPED, load_weights
from tools.tagger.corpora import customersim_dialogues, multiwoz_turns, wikigold_example, wikigold_sentences
from tools.tagger.sentences import is_held_out

Gold = tuple[int, int, str]


class Corpus(NamedTuple):
    """Texts with gold spans; ``complete`` says that everything sensitive is labelled."""

    name: str
    texts: list[str]
    spans: list[list[Gold]]
    complete: bool = False


def presidio(path: Path) -> Corpus:
    rows = json.loads(path.read_text(encoding="utf-8"))
    spans = [
        [(s["start_position"], s["end_position"], s["entity_type"]) for s in row["spans"]] for row in rows
    ]
    return Corpus("presidio-research", [row["full_text"] for row in rows], spans, complete=True)


def multiwoz(path: Path) -> Corpus:
    turns = [(turn.text, secrets) for _, turn, secrets in multiwoz_turns(path)]
    return Corpus(
        "multiwoz",
        [text for text, _ in turns],
        [[(s.start, s.end, s.label) for s in found] for _, found in turns],
    )


def customersim(path: Path) -> Corpus:
    rows = [example for _, example in customersim_dialogues(path)]
    spans = [[(s.start, s.end, s.label) for s in row.spans] for row in rows]
    return Corpus("customersim", [row.text for row in rows], spans, complete=True)


def simulated() -> Corpus:
    dialogues = list(simulate(SimulationPlan(users=200, dialogues_per_user=2, seed=5)))
    spans = [[(s.start, s.end, s.label) for s in dialogue.spans] for dialogue in dialogues]
    return Corpus("customersim, simulated", [dialogue.text for dialogue in dialogues], spans, complete=True)


def wikigold(path: Path) -> Corpus:
    examples = [
        wikigold_example(sentence, spaced=False)
        for number, document in enumerate(wikigold_sentences(path))
        if is_held_out(f"wikigold {number}", 0.2)
        for sentence in document
    ]
    spans = [[(s.start, s.end, s.label) for s in example.spans if s.label != "?"] for example in examples]
    return Corpus("wikigold, held out", [example.text for example in examples], spans)


def highest_scores(
    scorers: Sequence[Scorer], texts: Sequence[str], *, sentences: bool
) -> list[NDArray[np.float32]]:
    """The score of every character: the highest of all scorers' tokens that cover it."""
    scores = [np.zeros(len(text), np.float32) for text in texts]
    pieces = [
        (number, start, end)
        for number, text in enumerate(texts)
        for start, end in (split_points(text, SplitSettings()) if sentences else [(0, len(text))])
    ]
    for scorer in scorers:
        found = scorer.score([texts[number][start:end] for number, start, end in pieces])
        for (number, start, _), tokens in zip(pieces, found, strict=True):
            for token in tokens:
                here = scores[number][start + token.start : start + token.end]
                np.maximum(here, token.score, out=here)
    return scores


def report(
    corpus: Corpus, scorers: Sequence[Scorer], thresholds: Sequence[float], *, sentences: bool
) -> None:
    """Print recall per label, precision and the share of texts left public, for every threshold."""
    scores = highest_scores(scorers, corpus.texts, sentences=sentences)
    visible = [np.array([mark.isalnum() for mark in text], bool) for text in corpus.texts]
    lowest: dict[str, list[float]] = defaultdict(list)
    gold = []
    for number, spans in enumerate(corpus.spans):
        inside = np.zeros(len(corpus.texts[number]), bool)
        for start, end, label in spans:
            inside[start:end] = True
            here = scores[number][start:end][visible[number][start:end]]
            lowest[label].append(float(here.min()) if len(here) else 1.0)
        gold.append(inside)
    print(f"\n{corpus.name}: {len(corpus.texts)} texts, {sum(map(len, corpus.spans))} spans")
    print(f"{'':24}" + "".join(f"{threshold:>8}" for threshold in thresholds))
    every = [low for lows in lowest.values() for low in lows]
    for label, lows in (("recall", every), *sorted(lowest.items(), key=lambda item: -len(item[1]))):
        shares = (np.mean([low >= threshold for low in lows]) for threshold in thresholds)
        print(f"  {label[:16]:16}{len(lows):6}" + "".join(f"{share:8.3f}" for share in shares))
    if corpus.complete:
        masked, right = np.zeros(len(thresholds)), np.zeros(len(thresholds))
        for score, seen, inside in zip(scores, visible, gold, strict=True):
            for i, threshold in enumerate(thresholds):
                labelled = (score >= threshold) & seen
                masked[i] += labelled.sum()
                right[i] += (labelled & inside).sum()
        total = sum(int(seen.sum()) for seen in visible)
        print(f"  {'precision':22}" + "".join(f"{share:8.3f}" for share in right / np.maximum(masked, 1)))
        print(f"  {'characters masked':22}" + "".join(f"{share:8.3f}" for share in masked / total))
    public = [np.mean([not (len(s) and s.max() >= threshold) for s in scores]) for threshold in thresholds]
    print(f"  {'texts left public':22}" + "".join(f"{share:8.3f}" for share in public))


def settling(corpus: Corpus, scorers: Sequence[Scorer], redact: float) -> None:
    """Print how many masked texts come out differently when one of their secrets is masked beforehand."""
    results = Redactor(Policy(tuple(scorers), redact)).redact(corpus.texts[:3000])
    masked = [result for result in results if result.spans]
    unsettled = sum(not result.settled for result in masked)
    print(
        f"  {unsettled} of {len(masked)} masked texts not settled at {redact} ({unsettled / len(masked):.3f})"
    )


def speed(texts: Sequence[str], weights: Path) -> None:
    """Print kB/s of a tagger that has seen no word, the patterns, and Presidio's; best of three rounds."""

    def read(scorer: Scorer, some: Sequence[str]) -> float:
        start = time.process_time()
        for first in range(0, len(some), 256):
            scorer.score(some[first : first + 256])
        return sum(len(text.encode()) for text in some) / 1000 / (time.process_time() - start)

    presidios = PresidioScorer.with_model()
    best = {"tagger": 0.0, "patterns": 0.0, "Presidio's patterns, no names": 0.0}
    for _ in range(3):
        found = (
            read(EmbeddedTagger(load_weights(weights)), texts),
            read(PatternScorer(), texts),
            read(presidios, texts[:: max(1, len(texts) // 300)]),
        )
        best = {name: max(value, new) for (name, value), new in zip(best.items(), found, strict=True)}
    print("\nkB/s: " + ", ".join(f"{name} {value:,.0f}" for name, value in best.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    readers = {"presidio": presidio, "multiwoz": multiwoz, "customersim": customersim, "wikigold": wikigold}
    for name in readers:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--thresholds", default="0.5,0.3,0.1,0.05,0.02,0.01")
    parser.add_argument("--no-patterns", action="store_true")
    parser.add_argument(
        "--sentences", action="store_true", help="sentence by sentence, as screening sees them"
    )
    options = parser.parse_args()
    scorers: list[Scorer] = [EmbeddedTagger(load_weights(options.weights))]
    if not options.no_patterns:
        scorers.append(PatternScorer())
    thresholds = [float(threshold) for threshold in options.thresholds.split(",")]
    corpora = [simulated()] + [
        read(path) for name, read in readers.items() if (path := getattr(options, name))
    ]
    for corpus in corpora:
        report(corpus, scorers, thresholds, sentences=options.sentences)
        settling(corpus, scorers, REDACT)
    speed([text for corpus in corpora for text in corpus.texts][:20_000], options.weights)


if __name__ == "__main__":
    main()
