"""Mixing, solving and charging one token, against the ensemble's forward step that it follows.

k = 8 parts of two halves, a vocabulary of 50,257, GPT-2-small shape with random weights. Everything takes its
turn in one run, so that a machine that slows down slows all; ratios are of the best. Distributions are single
precision, as models give them; the step in bf16 is measured where the processor computes in it.

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
from tacit.models.loading import best_dtype

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
            sample(_mixed(mechanism, decoding.pmfs(logits).pmfs))

        return step

    plain, short = Decoding(), Decoding(top_k=4096)
    ready = plain.pmfs(logits).pmfs
    return {
        "submix alone: solve, mix, charge": _alone(SubMix(2.0, TARGET), ready),
        "certified alone": _alone(Certified(2.0, TARGET), ready),
        "softmax, submix, draw": whole(SubMix(2.0, TARGET), plain),
        "softmax, guarded submix, draw": whole(SubMix(2.0, TARGET, guard=0.02, cap=0.9), plain),
        "softmax, certified, draw": whole(Certified(2.0, TARGET), plain),
        "softmax, individual, draw": whole(Individual(2.0, TARGET), plain),
        "submix on the public top 4096": whole(SubMix(2.0, TARGET), short),
    }


def _alone(mechanism: SubMix | Certified, pmfs: torch.Tensor) -> Step:
    def step() -> None:
        _mixed(mechanism, pmfs)

    return step


def _mixed(mechanism: SubMix | Certified | Individual, pmfs: torch.Tensor) -> torch.Tensor:
    members = pmfs[1:].view(PARTS, 2, -1)
    given = members if isinstance(mechanism, SubMix) else members.mean(1)
    return mechanism.mix(given, pmfs[0]).pmf


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    shapes = [("fp32, all layers", torch.float32, 0), ("fp32, 9 of 12 shared", torch.float32, 9)]
    if best_dtype("cpu") == torch.bfloat16:
        shapes.append(("bf16, 9 of 12 shared", torch.bfloat16, 9))
    with tempfile.TemporaryDirectory() as folder:
        steps: dict[str, Step] = {}
        for name, dtype, trunk in shapes:
            public = random_model(dtype)
            adapter = random_adapter(public, trunk, Path(folder) / name)
            steps[name] = whole_ensemble(public, adapter, 2 * PARTS, CONTEXT, chosen.rounds + 8)
        steps |= private_steps(distributions(VOCABULARY))
        seen = {name: min(times) for name, times in measure(steps, chosen.rounds).items()}
    print(f"{chosen.threads} threads, k = {PARTS}, V = {VOCABULARY}; best of {chosen.rounds}")
    print(f"{'':<34}{'ms':>8}" + "".join(f"{'of ' + name:>26}" for name, *_ in shapes))
    for name, best in seen.items():
        print(f"{name:<34}{best:>8.1f}" + "".join(f"{best / seen[shape]:>26.0%}" for shape, *_ in shapes))


if __name__ == "__main__":
    main()
