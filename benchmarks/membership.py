"""All membership scores of a target and a reference, against one plain loss pass of each.

GPT-2-small shape with random weights, fp32. Both sides run the same batches: sorted by length, padded on the
right. The plain pass is `NextTokenLoss.per_token`, tacit's own chunked loss, and the mean loss of each text;
nothing is gained by comparing with a slow one ("transformers' own loss" is beside it, for whoever wonders).
All take their turns in one run, so that a machine that slows down slows all; ratios are of the best and of
the median round. Aim: at most 2.2.

    python benchmarks/membership.py [--rounds N] [--threads N] [--texts N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from ensemble_decode import random_model  # type: ignore[import-not-found]

from tacit.attacks.membership import scores_of
from tacit.attacks.token_statistics import EncodedTexts, batches, run, token_statistics
from tacit.models.likelihood import NO_LABEL, NextTokenLoss
from tacit.models.loading import PublicModel

POSITIONS = 2048


def random_texts(count: int) -> tuple[list[str], EncodedTexts]:
    """Texts of 16 to 128 tokens; the strings are only there to be compressed."""
    generator = np.random.default_rng(0)
    pieces = [generator.integers(1, 50257, length).tolist() for length in generator.integers(16, 129, count)]
    texts = [" ".join(map(str, piece)) for piece in pieces]
    return texts, EncodedTexts(pieces, np.arange(count + 1), 0)


def plain(models: list[PublicModel], encoded: EncodedTexts) -> None:
    """One loss pass of each model: the mean loss of every text."""
    for model in models:
        losses = np.zeros(int(encoded.lengths.sum()))
        loss = NextTokenLoss(model.model)
        for batch in batches(encoded, POSITIONS):
            found = loss.per_token(partial(run, model.model, batch), batch.labels)
            losses[batch.places] = found.double()[batch.labels != NO_LABEL]
        np.add.reduceat(losses, encoded.token_starts[:-1]) / encoded.lengths


@torch.no_grad()
def transformers_loss(models: list[PublicModel], encoded: EncodedTexts) -> None:
    """The same by whole logits."""
    for model in models:
        for batch in batches(encoded, POSITIONS):
            logits = run(model.model, batch).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, batch.labels.flatten(), reduction="none")


def all_scores(models: list[PublicModel], texts: list[str], encoded: EncodedTexts) -> None:
    """Every score of every text."""
    target, reference = (token_statistics(encoded, model, positions=POSITIONS) for model in models)
    found = scores_of(texts, target, reference)
    assert len(found.scores) == 9


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--texts", type=int, default=24)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    models = [random_model(torch.float32) for _ in range(2)]
    with torch.no_grad():
        for parameter in models[0].model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    texts, encoded = random_texts(chosen.texts)
    ways: dict[str, Callable[[], None]] = {
        "one loss pass per model": partial(plain, models, encoded),
        "all nine scores": partial(all_scores, models, texts, encoded),
        "transformers' own loss": partial(transformers_loss, models, encoded),
    }
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(chosen.rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if number:  # the first round warms up
                seen[name].append(time.perf_counter() - began)
    first = seen["one loss pass per model"]
    tokens = int(encoded.lengths.sum())
    print(
        f"{chosen.threads} threads, fp32, {chosen.texts} texts with {tokens} tokens, {chosen.rounds} rounds"
    )
    print(f"{'':<28}{'best s':>9}{'median':>9}{'x plain':>9}{'(median)':>10}")
    for name, times in seen.items():
        ratio, middle = min(times) / min(first), statistics.median(times) / statistics.median(first)
        print(f"{name:<28}{min(times):>9.2f}{statistics.median(times):>9.2f}{ratio:>8.2f}x{middle:>9.2f}x")


if __name__ == "__main__":
    main()
