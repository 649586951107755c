"""Decoding with a whole ensemble against decoding with one model: GPT-2-small shape, random weights.

One model is plain transformers with its own key-value cache, as one would run it; "one model, packed" is the
same model by tacit's executor, with its weights rearranged, so that nothing is gained by comparing with a
slow opponent. Sequential is what the public SubMix code does: one forward per model. All variants take their
steps in turn, so that a machine that slows down slows all of them; ratios are of the best and of the median
step. Also prints how an ensemble's step grows with k, with the vocabulary and with the context.

    python benchmarks/ensemble_decode.py [--quick] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from tacit.models.ensemble_attention import SlotPass
from tacit.models.ensemble_files import save_member
from tacit.models.ensemble_model import EnsembleModel, private_copy
from tacit.models.executor import EnsembleExecutor
from tacit.models.executor_batched import read_into_slots
from tacit.models.executor_lazy import LazyExecutor
from tacit.models.kv_slots import KVSlots
from tacit.models.loading import PublicModel, best_dtype
from tacit.models.stacked_lora import stack_into

RANK = 16
PROMPT = 64
Step = Callable[[], None]


def random_model(dtype: torch.dtype, vocabulary: int = 50257, positions: int = 1024) -> PublicModel:
    """A model of GPT-2 small's shape that nobody trained; its tokenizer is never asked for anything."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=vocabulary, n_positions=positions, bos_token_id=0, eos_token_id=0)
    )
    tokenizer: Any = None
    return PublicModel("random", model.to(dtype).eval().requires_grad_(False), tokenizer, "", None)


def random_adapter(public: PublicModel, trunk_layers: int, folder: Path) -> Path:
    """One adapter on all linear layers above the trunk; every member loads a copy of it."""
    model = private_copy(public.model, public.model.dtype)
    stack = stack_into(model, 1, rank=RANK, alpha=2.0 * RANK, trunk_layers=trunk_layers)
    stack.initialise_member(0, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in stack.layers.values():
            layer.b_MRO.normal_(std=0.01)
    save_member(stack, model, 0, folder, base_name="random")
    return folder


def one_model(public: PublicModel, context: int, times: int = 1) -> Step:
    """Plain transformers; ``times`` forwards one after the other."""
    caches = [DynamicCache(config=public.model.config) for _ in range(times)]
    ids = torch.zeros(1, context, dtype=torch.long)
    with torch.inference_mode():
        for cache in caches:
            public.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step() -> None:
        with torch.inference_mode():
            for cache in caches:
                public.model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)

    return step


def one_packed_model(public: PublicModel, context: int) -> Step:
    """The same by the executor's own means."""
    ensemble = EnsembleModel(private_copy(public.model, public.model.dtype), 0)
    memory = KVSlots([1] * public.n_layers, 1, 2 * context + 128)
    length = 0

    def read(count: int) -> None:
        nonlocal length
        current = SlotPass(1, memory, [0], [length])
        read_into_slots(ensemble, memory, current, [0], [length], torch.zeros(1, count, dtype=torch.long))
        length += count

    read(context)
    return lambda: read(1)


def whole_ensemble(public: PublicModel, adapter: Path, members: int, context: int, room: int) -> Step:
    """All members and the public model with every token."""
    executor = EnsembleExecutor(
        public, [adapter] * members, slots=1, context=context + room, dtype=public.model.dtype
    )
    slot = executor.open()
    executor.prefill(slot, [0] * context)
    return lambda: _ignore(executor.step([slot], [1]))


def lazy_ensemble(
    public: PublicModel, adapter: Path, parts: int, context: int, room: int, lag: int | None
) -> Step:
    """The public model and one part with every token."""
    executor = LazyExecutor(
        public, [adapter] * parts, slots=1, context=context + room, lag=lag, dtype=public.model.dtype
    )
    slot = executor.open()
    executor.read(slot, [0] * context)
    return lambda: _ignore(executor.step([slot], [1], [parts // 2]))


def _ignore(_: object) -> None:
    return None


def measure(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every variant's steps, taken in turn."""
    for step in steps.values():
        step()
    seen: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            seen[name].append(1000 * (time.perf_counter() - begin))
    return seen


def show(title: str, seen: dict[str, list[float]], targets: dict[str, float] | None = None) -> None:
    """A table with ratios to the first variant (and to the second, where that is one packed model)."""
    print(f"\n{title}")
    print(f"{'':<46}{'best ms':>9}{'median':>9}{'x one':>8}{'(median)':>9}{'x packed':>10}{'target':>9}")
    one, *rest = seen.values()
    packed = rest[0] if "one model, packed" in seen else None
    for name, times in seen.items():
        ratio = min(times) / min(one)
        median = statistics.median(times) / statistics.median(one)
        against = f"{min(times) / min(packed):.2f}x" if packed else ""
        target = (targets or {}).get(name)
        goal = f"<={target:.1f}x" if target else ""
        print(
            f"{name:<46}{min(times):>9.1f}{statistics.median(times):>9.1f}{ratio:>7.2f}x{median:>8.2f}x"
            f"{against:>10}{goal:>9}"
        )


def headline(dtype: torch.dtype, folder: Path, rounds: int) -> None:
    """The figures that are promised, in one dtype."""
    public = random_model(dtype)
    every, top = (random_adapter(public, t, folder / f"{dtype}-{t}") for t in (0, 9))
    room = rounds + 2
    steps = {
        "one model": one_model(public, PROMPT),
        "one model, packed": one_packed_model(public, PROMPT),
        "17 models one after another": one_model(public, PROMPT, times=17),
        "SubMix k=8 (17 models), all layers": whole_ensemble(public, every, 16, PROMPT, room),
        "SubMix k=8 (17 models), 9/12 shared": whole_ensemble(public, top, 16, PROMPT, room),
        "certified k=8 (9 models), 9/12 shared": whole_ensemble(public, top, 8, PROMPT, room),
        "certified k=128 (129 models), 9/12 shared": whole_ensemble(public, top, 128, PROMPT, room),
        "certified k=128, 9/12 shared, lazy, no rotation": lazy_ensemble(
            public, top, 128, PROMPT, room, lag=PROMPT + room
        ),
        "certified k=128, 9/12 shared, lazy, lag 16": lazy_ensemble(public, top, 128, PROMPT, room, lag=16),
    }
    names = list(steps)
    targets = dict(zip(names[3:], (3.0, 1.8, 1.6, 0.0, 4.0, 4.0), strict=True))
    show(f"Decode, one text, {PROMPT} tokens of context, {dtype}", measure(steps, rounds), targets)


def growth(folder: Path, rounds: int, parts: Sequence[int], contexts: Sequence[int]) -> None:
    """How the step grows with k, the vocabulary and the context (fp32, 9 of 12 layers shared)."""
    room = rounds + 2
    public = random_model(torch.float32)
    adapter = random_adapter(public, 9, folder / "growth")
    steps = {"one model": one_model(public, PROMPT)}
    for k in parts:
        steps[f"k={k} ({2 * k + 1} models)"] = whole_ensemble(public, adapter, 2 * k, PROMPT, room)
    show(f"Growth with k: {PROMPT} tokens of context, 9/12 shared, fp32", measure(steps, rounds))
    for context in contexts:
        steps = {
            "one model": one_model(public, context),
            "k=8 (17 models)": whole_ensemble(public, adapter, 16, context, room),
        }
        show(f"Growth with context: {context} tokens, 9/12 shared, fp32", measure(steps, rounds))
    for vocabulary in (8_000, 32_000, 128_000):
        public = random_model(torch.float32, vocabulary)
        steps = {
            "one model": one_model(public, PROMPT),
            "k=8 (17 models)": whole_ensemble(public, adapter, 16, PROMPT, room),
        }
        show(f"Growth with V: {vocabulary} tokens, 9/12 shared, fp32", measure(steps, rounds))
        gc.collect()


def long_lazy(folder: Path, rounds: int, context: int) -> None:
    """The lazy path where texts are longer than there are parts and the rotation pays."""
    public = random_model(torch.float32)
    adapter = random_adapter(public, 9, folder / "long")
    room = rounds + 2
    steps = {"one model": one_model(public, context)}
    for lag in (8, 16, 32):
        steps[f"lazy k=128, lag {lag}"] = lazy_ensemble(public, adapter, 128, context, room, lag)
    steps["lazy k=128, no rotation"] = lazy_ensemble(public, adapter, 128, context, room, context + room)
    steps["whole k=128 (129 models)"] = whole_ensemble(public, adapter, 128, context, room)
    show(f"Lazy path, {context} tokens of context, 9/12 shared, fp32", measure(steps, rounds))


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="only the promised figures, few rounds")
    parser.add_argument("--rounds", type=int, help="steps of every variant (default: 15; quick: 5)")
    parser.add_argument("--threads", type=int, help="threads (default: torch's)")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rounds = arguments.rounds or (5 if arguments.quick else 15)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="tacit-benchmark-") as name:
        folder = Path(name)
        headline(torch.float32, folder, rounds)
        gc.collect()
        if best_dtype() == torch.bfloat16:
            headline(torch.bfloat16, folder, rounds)
        else:
            print("\nbf16: this processor does not compute in it, so there is nothing to measure.")
        if not arguments.quick:
            long_lazy(folder, rounds, context=384)
            growth(folder, rounds, parts=(8, 16, 32, 64), contexts=(64, 256, 768))


if __name__ == "__main__":
    main()
