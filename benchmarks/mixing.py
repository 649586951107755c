"""Mixing, solving and charging one token, against the ensemble's forward step that it follows.

k = 8 parts of two halves, a vocabulary of 50,257, GPT-2-small shape with random weights, fp32. Everything
takes its turn in one run, so that a machine that slows down slows all; ratios are of the best and the median.

    python benchmarks/mixing.py [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from ensemble_decode import (  # type: ignore[import-not-found]
    Step,
    measure,
    random_adapter,
    random_model,
    whole_ensemble,
)

from tacit.mechanisms import Certified, Decoding, Individual, SubMix
from tacit.mechanisms.sampling import sample

PARTS, VOCABULARY, CONTEXT = 8, 50_257, 64
TARGET = 2 / 1024


def distributions(vocabulary: int) -> torch.Tensor:
    """Logits [1 + 2k, V] of a public model and of members that differ from it and from each other."""
    torch.manual_seed(0)
    public = 3 * torch.randn(vocabulary)
    parts = public + 0.5 * torch.randn(PARTS, 1, vocabulary)
    halves = parts + 0.3 * torch.randn(PARTS, 2, vocabulary)
    return torch.cat((public[None], halves.view(2 * PARTS, vocabulary)))


def private_steps(logits: torch.Tensor) -> dict[str, Step]:
    """What a service does with logits after the forward step: distributions, mixture, charges, draw."""

    def whole(mechanism: SubMix | Certified | Individual, decoding: Decoding) -> Step:
        def step() -> None:
            pmfs = decoding.pmfs(logits).pmfs
            members = pmfs[1:].view(PARTS, 2, -1)
            given = members if isinstance(mechanism, SubMix) else members.mean(1)
            sample(mechanism.mix(given, pmfs[0]).pmf)

        return step

    plain, short = Decoding(), Decoding(top_k=4096)
    return {
        "softmax, submix, draw": whole(SubMix(2.0, TARGET), plain),
        "softmax, guarded submix, draw": whole(SubMix(2.0, TARGET, guard=0.02, cap=0.9), plain),
        "softmax, certified, draw": whole(Certified(2.0, TARGET), plain),
        "softmax, individual, draw": whole(Individual(2.0, TARGET), plain),
        "submix on the public top 4096": whole(SubMix(2.0, TARGET), short),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        public = random_model(torch.float32)
        room = chosen.rounds + 8
        steps: dict[str, Step] = {
            f"forward, {name}": whole_ensemble(
                public, random_adapter(public, trunk, Path(folder) / str(trunk)), 2 * PARTS, CONTEXT, room
            )
            for name, trunk in (("all layers", 0), ("9 of 12 shared", 9))
        }
        steps |= private_steps(distributions(VOCABULARY))
        seen = measure(steps, chosen.rounds)
    every, shared = (min(seen[name]) for name in list(seen)[:2])
    print(f"{chosen.threads} threads, fp32, k = {PARTS}, V = {VOCABULARY}; best of {chosen.rounds}")
    print(f"{'':<34}{'ms':>8}{'of all-layer step':>20}{'of shared step':>17}")
    for name, times in seen.items():
        best = min(times)
        print(f"{name:<34}{best:>8.1f}{best / every:>20.0%}{best / shared:>17.0%}")


if __name__ == "__main__":
    main()
