"""Choose pi and pi_c for trained weights, on text that was not learnt from and is not the test set.

    python -m tools.tagger.thresholds WEIGHTS.npz --multiwoz val.jsonl

pi is the highest threshold at which ``RECALL`` of the spans of held-out templates are masked whole. pi_c is
the lowest threshold that leaves ``PUBLIC`` of the held-out turns of MultiWOZ's validation part public: below
it, little would be left to train on without noise. Patterns, which mask at any threshold, are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import numpy as np

from tacit.corpus.screening import ScoredToken
from tacit.corpus.screening.tagger import EmbeddedTagger
from tacit.corpus.screening.tagger.weights import load_weights
from tools.tagger import corpora
from tools.tagger.sentences import Example, disturb, is_held_out, read_templates, write_sentence
from tools.tagger.values import Values

RECALL, PUBLIC = 0.965, 0.55
GRID = (
    0.9,
    0.8,
    0.7,
    0.6,
    0.5,
    0.4,
    0.3,
    0.2,
    0.15,
    0.1,
    0.08,
    0.06,
    0.05,
    0.04,
    0.03,
    0.02,
    0.015,
    0.01,
    0.005,
)


def main() -> None:
    """Print the table and the two choices."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path)
    parser.add_argument("--multiwoz", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=6000)
    options = parser.parse_args()
    tagger = EmbeddedTagger(load_weights(options.weights))
    lowest = lowest_scores(tagger, held_out_sentences(options.texts))
    turns = [
        turn.text for name, turn, _ in corpora.multiwoz_turns(options.multiwoz) if is_held_out(name, 0.4)
    ]
    highest = np.array([max((t.score for t in tokens), default=0.0) for tokens in tagger.score(turns)])
    labels = sorted(lowest)
    every = np.concatenate([lowest[label] for label in labels])
    print(f"{'':8}{'spans':>8}" + "".join(f"{label[:7]:>8}" for label in labels) + f"{'public':>8}")
    for threshold in GRID:
        shares = [(lowest[label] >= threshold).mean() for label in labels]
        cells = "".join(
            f"{share:8.3f}" for share in ((every >= threshold).mean(), *shares, (highest < threshold).mean())
        )
        print(f"{threshold:8}{cells}")
    redact = next((t for t in GRID if (every >= t).mean() >= RECALL), GRID[-1])
    conservative = min((t for t in GRID if (highest < t).mean() >= PUBLIC), default=GRID[0])
    print(f"pi = {redact}, pi_c = {conservative}")


def held_out_sentences(count: int) -> list[Example]:
    """Write sentences from templates that were not learnt from, with values from another seed."""
    values, rng = Values(77, pool=100), Random(77)
    templates = [template for template in read_templates() if is_held_out(template)]
    return [disturb(write_sentence(rng.choice(templates), values), rng) for _ in range(count)]


def lowest_scores(tagger: EmbeddedTagger, examples: list[Example]) -> dict[str, np.ndarray]:
    """Return for every label the lowest score within each of its spans, at which it is masked whole."""
    lowest: dict[str, list[float]] = {}
    for example, tokens in zip(examples, tagger.score([example.text for example in examples]), strict=True):
        for span in example.spans:
            if span.label != "?" and any(map(str.isalnum, example.text[span.start : span.end])):
                lowest.setdefault(span.label, []).append(_lowest(example.text, span.start, span.end, tokens))
    return {label: np.array(scores) for label, scores in lowest.items()}


def _lowest(text: str, start: int, end: int, tokens: list[ScoredToken]) -> float:
    scores = np.zeros(end - start)
    for token in tokens:
        if token.start < end and start < token.end:
            scores[max(0, token.start - start) : token.end - start] = token.score
    return float(min(score for score, mark in zip(scores, text[start:end], strict=True) if mark.isalnum()))


if __name__ == "__main__":
    main()
