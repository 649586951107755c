"""Screening's speed, and what it misses on corpora with gold spans.

Speed is megabytes of text per second of one core's time (other work on the machine counts less so), the best
of several rounds in which all rows take turns. Beside dedup stands what anybody would write first, a set of
SHA-1 digests; beside the patterns, Presidio with the same entities on a blank spaCy pipeline (fewer texts:
it is slow).

    python benchmarks/screening.py [--megabytes 8] [--rounds 5] [--text FILE] [--no-presidio]

With labelled corpora, the whole screen is measured instead, fixed point and all: recall at pi and at pi_c,
gamma and delta2 with their upper bounds, and the share of data points (and of dialogues' turns) left public.

    python benchmarks/screening.py --policy default --customersim test.jsonl --multiwoz test.jsonl
        --presidio-research synth_dataset_v2.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tacit.corpus import SimulationPlan, simulate
from tacit.corpus.dialogue_corpora import ConversionCounts, convert_dialogues
from tacit.corpus.screening import (
    Deduplicator,
    DedupSettings,
    LabelledSpan,
    PatternScorer,
    Policy,
    SplitSettings,
)
from tacit.corpus.screening.calibration import CalibrationSettings, calibrate
from tacit.corpus.screening.labelled import LabelledDocument, read_labelled
from tacit.corpus.screening.policy_file import chosen_policy
from tacit.corpus.screening.sentences import split_points

_BATCH = 512
# What Presidio calls the entities that the patterns look for.
_PRESIDIO_ENTITIES = (
    "EMAIL_ADDRESS", "URL", "IP_ADDRESS", "DATE_TIME", "US_SSN", "IBAN_CODE", "CREDIT_CARD", "PHONE_NUMBER",
)  # fmt: skip
_OWN_ENTITIES = ("EMAIL", "URL", "IP", "DATE", "SSN", "IBAN", "CARD", "PHONE")


def simulated(megabytes: float) -> list[str]:
    """CustomerSim's dialogues, each made distinct, until there are enough of them."""
    base = [dialogue.text for dialogue in simulate(SimulationPlan(users=400, dialogues_per_user=4))]
    texts: list[str] = []
    size = 0.0
    copy = 0
    while size < megabytes:
        for text in base:
            texts.append(
                text.replace("\n", f" {'abcdefghij'[copy % 10] * (1 + copy // 10)}\n") if copy else text
            )
            size += len(text) / 1e6
        copy += 1
    return texts


def in_batches(texts: Sequence[str], work: Callable[[Sequence[str]], object]) -> None:
    for start in range(0, len(texts), _BATCH):
        work(texts[start : start + _BATCH])


def sha1_set(points: Sequence[str]) -> None:
    seen: set[bytes] = set()
    for point in points:
        digest = hashlib.sha1(point.encode(), usedforsecurity=False).digest()
        _ = digest in seen
        seen.add(digest)


def deduplicate(points: Sequence[str], settings: DedupSettings) -> None:
    memory = Deduplicator(settings)
    in_batches(points, memory.repeats)


def measure_speed(texts: list[str], rounds: int, *, presidio: bool) -> None:
    points = [text[start:end] for text in texts for start, end in split_points(text, SplitSettings())]
    megabytes = sum(len(point.encode()) for point in points) / 1e6
    few = points[: max(1, len(points) // 200)]
    few_megabytes = sum(len(point.encode()) for point in few) / 1e6
    patterns = PatternScorer()
    same = PatternScorer(_OWN_ENTITIES)
    rows: list[tuple[str, float, Callable[[], object]]] = [
        ("split into sentences", megabytes, lambda: [split_points(text, SplitSettings()) for text in texts]),
        ("dedup, SHA-1 set (plain Python)", megabytes, lambda: sha1_set(points)),
        ("dedup, exact and keyed", megabytes, lambda: deduplicate(points, DedupSettings("exact"))),
        ("dedup, Bloom filter", megabytes, lambda: deduplicate(points, DedupSettings("bloom"))),
        ("dedup, near (MinHash)", megabytes, lambda: deduplicate(points, DedupSettings("near"))),
        ("patterns, all", megabytes, lambda: in_batches(points, patterns.score)),
        ("patterns, Presidio's entities", few_megabytes, lambda: in_batches(few, same.score)),
    ]
    if presidio:
        from tacit.corpus.screening.presidio import PresidioScorer

        other = PresidioScorer.with_model(entities=_PRESIDIO_ENTITIES)
        rows.append(("Presidio, the same entities", few_megabytes, lambda: in_batches(few, other.score)))
    best = {name: float("inf") for name, _, _ in rows}
    for _ in range(rounds):
        for name, _, work in rows:
            begin = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - begin)
    speed = {name: size / best[name] for name, size, _ in rows}
    print(f"{len(points):,} data points, {megabytes:.1f} MB, {1e6 * megabytes / len(points):.0f} bytes each")
    for name, value in speed.items():
        print(f"  {name:34s} {value:8.2f} MB/s")
    first = speed["dedup, SHA-1 set (plain Python)"]
    print(f"  keyed / SHA-1 set      {speed['dedup, exact and keyed'] / first:.2f}x")
    print(f"  Bloom / SHA-1 set      {speed['dedup, Bloom filter'] / first:.2f}x")
    if presidio:
        ratio = speed["patterns, Presidio's entities"] / speed["Presidio, the same entities"]
        print(f"  patterns / Presidio    {ratio:.0f}x")


def presidio_research(path: Path) -> list[LabelledDocument]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [
        LabelledDocument(
            row["full_text"],
            tuple(
                LabelledSpan(s["start_position"], s["end_position"], s["entity_type"]) for s in row["spans"]
            ),
            0,
        )
        for row in rows
    ]


def multiwoz(path: Path) -> list[LabelledDocument]:
    """Every turn as a document, so that the public share is one of turns."""
    turns = []
    for dialogue in convert_dialogues("multiwoz", path, ConversionCounts()):
        start = 0
        for line in dialogue.text.split("\n"):
            end = start + len(line)
            inside = [span for span in dialogue.spans if start <= span.start and span.end <= end]
            spans = tuple(LabelledSpan(s.start - start, s.end - start, s.label) for s in inside)
            turns.append(LabelledDocument(line, spans, 0))
            start = end + 1
    return turns


def measure_misses(name: str, documents: list[LabelledDocument], policy: Policy, *, whole: bool) -> None:
    # A document that is one data point: more sentences than any has, and lines that bound nothing.
    split = SplitSettings(sentences=10_000, lines=False) if whole else SplitSettings()
    result = calibrate(documents, policy, CalibrationSettings(split))
    recall, conservative = result["recall"]["ALL"], result["conservative_recall"]["ALL"]
    print(f"{name}: {result['measured_on']['points']:,} points, {recall['n']:,} secrets")
    print(
        f"  fully masked at pi={policy.redact:g}: {recall['value']:.3f}; at pi_c: {conservative['value']:.3f}"
    )
    for key in ("gamma", "delta2"):
        bound = result[key]
        print(f"  {key}: {bound['value']:.4f}, at most {bound['upper']:.4f}")
    print(
        f"  points left public: {result['public_share']['value']:.3f}; "
        f"unsettled: {result['unsettled_points']}"
    )
    precision = result["precision_of_masked_characters"]
    print(f"  masked characters that are secret: {'-' if precision is None else f'{precision:.3f}'}")
    for label, found in result["recall"].items():
        if label != "ALL":
            at_pi_c = result["conservative_recall"][label]["value"]
            print(f"    {label:18s} {found['n']:6d}  {found['value']:.3f}  {at_pi_c:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", type=Path, help="own text instead of simulated dialogues")
    parser.add_argument("--no-presidio", action="store_true")
    parser.add_argument("--policy", default="default")
    parser.add_argument("--customersim", type=Path)
    parser.add_argument("--multiwoz", type=Path)
    parser.add_argument("--presidio-research", type=Path)
    parser.add_argument("--labelled", type=Path, help="JSON lines with text and spans")
    given = parser.parse_args()
    corpora: list[tuple[str, list[LabelledDocument], bool]] = []
    for name in ("customersim", "labelled"):
        if path := getattr(given, name):
            corpora.append((name, read_labelled(path), False))
    if given.multiwoz:
        corpora.append(("multiwoz turns", multiwoz(given.multiwoz), True))
    if given.presidio_research:
        corpora.append(("presidio-research", presidio_research(given.presidio_research), True))
    if corpora:
        policy = chosen_policy(given.policy)
        for label, documents, whole in corpora:
            measure_misses(label, documents, policy, whole=whole)
        return
    texts = simulated(given.megabytes) if given.text is None else [given.text.read_text(encoding="utf-8")]
    measure_speed(texts, given.rounds, presidio=not given.no_presidio)


if __name__ == "__main__":
    main()
