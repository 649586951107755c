"""Exact exposure among a million candidates, against scoring every candidate's whole text in batches.

A GPT-2-shaped character model (2 layers of width 64) learns to repeat ten canaries `My ID is: <6 digits>`,
each inserted twenty times among 4,000 lines with random numbers. In one run, on one model and with equal
ranks: branch and bound for the ten inserted canaries, the packed tree for ten that were not inserted, and
naive scoring for all. Two ratios for each: of scoring alone, and with making the candidates' tokens (tacit's
tree; one call of the tokenizer for each naive batch).

    python benchmarks/exposure.py [--quick] [--threads N] [--repeats N]
    python benchmarks/exposure.py --default-model [--threads N]

``--default-model`` fine-tunes the embedded 135M model on ten canaries with prefixes of their own (tacit's
LoRA) and times ``measure_exposure``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tacit.attacks.exposure import (
    CandidateTree,
    CandidateTrie,
    ExposureReport,
    ExposureSettings,
    measure_exposure,
    rank_group,
)
from tacit.attacks.exposure.driver import Checked, tree_for
from tacit.attacks.exposure.packed import enumerate_all
from tacit.attacks.exposure.ranking import Rule
from tacit.attacks.exposure.states import ModelScorer, Root
from tacit.corpus.canaries import CanaryManifest, draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.models.loading import PublicModel
from tacit.models.tokenizer import PublicTokenizer
from tacit.models.trained import load_trained
from tacit.recipes import DEFAULT_MODEL, Recipe
from tacit.training.finetune import finetune

START, UNKNOWN = "<|start|>", "<|unknown|>"
NAIVE_BATCHES = (64, 128, 256, 512, 1024, 2048)


def character_tokenizer() -> PublicTokenizer:
    """One token for every printable character."""
    letters = [START, UNKNOWN, *string.printable]
    backend = Tokenizer(models.WordLevel({one: number for number, one in enumerate(letters)}, UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=START, unk_token=UNKNOWN)
    return PublicTokenizer.wrap(wrapped, start_token=0, vocabulary="public")


def canaries(digits: int, users: int, **changes: object) -> CanaryManifest:
    """Canaries of digits behind one prefix: ten go in, and as many stay out, by hand and not by coin."""
    settings: dict[str, object] = {
        "length": digits, "prefix": "shared", "users": users, "owner": "new", "ladder": (20,), "seed": 1,
        "include": 1.0,
    }  # fmt: skip
    plan = CanaryPlan(**(settings | changes))  # type: ignore[arg-type]
    return draw_canaries(plan, [], documents=0, characters=0)


def trained_model(manifest: CanaryManifest, digits: int, steps: int) -> PublicModel:
    """The small transformer after reading the canaries among lines with other numbers."""
    tokenizer = character_tokenizer()
    draw = random.Random(0)
    names = ("My order", "His ticket", "Her room", "Our account", "My locker", "The parcel")
    lines = [
        f"{draw.choice(names)} is: {''.join(draw.choices(string.digits, k=digits))}" for _ in range(4000)
    ]
    lines += [text for _, text in manifest.insertions()]
    rows = [[0, *ids] for ids in tokenizer.encode(lines)]
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    labels = torch.tensor([[*row, *[-100] * (width - len(row))] for row in rows])
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(ids), (128,), generator=order)
        optimizer.zero_grad()
        loss = model(input_ids=ids[chosen], labels=labels[chosen]).loss
        loss.backward()
        optimizer.step()
    model.eval().requires_grad_(False)
    return PublicModel("small transformer", model, tokenizer, "", None, holds_private_text=True)


@torch.inference_mode()
def naive_scores(
    public: PublicModel, prefix: str, digits: int, batch: int
) -> tuple[np.ndarray, float, float]:
    """The log-probability of every number, whole texts in batches; seconds of encoding and of scoring."""
    beginning = len(public.tokenizer.encode([prefix])[0])
    scores = np.empty(10**digits)
    encoding = scoring = 0.0
    for first in range(0, 10**digits, batch):
        numbers = range(first, min(first + batch, 10**digits))
        began = time.perf_counter()
        ids = public.tokenizer.encode([f"{prefix} {number:0{digits}d}" for number in numbers])
        rows = torch.tensor([[public.start_token, *row] for row in ids])
        encoded = time.perf_counter()
        logits = public.model(input_ids=rows, use_cache=False).logits[:, beginning:-1]
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        own = log_probs.gather(2, rows[:, beginning + 1 :, None])
        scores[first : numbers.stop] = own.double().sum((1, 2)).numpy()
        encoding, scoring = encoding + encoded - began, scoring + time.perf_counter() - encoded
    return scores, encoding, scoring


def timed(work: Callable[[], object], repeats: int) -> float:
    """The median of some repeats."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def check(report: ExposureReport, manifest: CanaryManifest, scores: np.ndarray) -> None:
    """Every rank interval holds the naive rank."""
    for found, canary in zip(report.canaries, manifest.canaries, strict=True):
        rank = 1 + int((scores > scores[int(canary.secret)]).sum())
        assert found.method == "exact", found.method
        assert found.rank_low <= rank <= found.rank_high, (found.rank_low, rank, found.rank_high)
        assert found.rank_high - found.rank_low < 100, "an interval that says little"


def small_transformer(chosen: argparse.Namespace) -> None:
    digits = 4 if chosen.quick else 6
    drawn = canaries(digits, 20)
    members = replace(drawn, canaries=drawn.canaries[:10])
    others = replace(
        drawn,
        canaries=tuple(replace(one, inserted=False, first_document=None) for one in drawn.canaries[10:]),
    )
    public = trained_model(members, digits, chosen.steps)
    prefix = members.canaries[0].prefix
    # The naive side gets the batch that suits this machine best.
    batch = min(NAIVE_BATCHES, key=lambda size: sum(naive_scores(public, prefix, 4, size)[1:]))
    scores, encoding, scoring = naive_scores(public, prefix, digits, batch)
    print(f"{chosen.threads} threads; naive in batches of {batch}")
    print(f"naive: encoding {encoding:.1f} s, scoring {scoring:.1f} s")
    cases = {
        "10 memorised, branch and bound": (members, ExposureSettings(budget=100_000)),
        "10 memorised, tree from symbols": (members, ExposureSettings(budget=100_000, check="scored")),
        "10 not memorised, packed tree": (others, ExposureSettings(full=True)),
    }
    print(f"{'':<34}{'tree s':>9}{'score s':>9}{'positions':>11}{'scoring alone':>15}{'with tokens':>13}")
    for name, (manifest, settings) in cases.items():
        report = measure_exposure(public, manifest, settings=settings)
        check(report, manifest, scores)

        inserted = [canary.inserted for canary in manifest.canaries]
        scorer = ModelScorer(public.model)

        def build(
            manifest: CanaryManifest = manifest, settings: ExposureSettings = settings
        ) -> CandidateTree:
            return tree_for(public.tokenizer, manifest, manifest.canaries, settings.check, None)

        tree = build()

        def rank(
            tree: CandidateTree = tree,
            inserted: list[bool] = inserted,
            settings: ExposureSettings = settings,
            scorer: ModelScorer = scorer,
        ) -> object:
            return rank_group(scorer, tree, inserted, settings, generator=np.random.default_rng(0))

        building, ranking = timed(build, chosen.repeats), timed(rank, chosen.repeats)
        print(
            f"{name:<34}{building:>9.2f}{ranking:>9.3f}{report.positions:>11,}{scoring / ranking:>14.0f}x"
            f"{(encoding + scoring) / (building + ranking):>12.0f}x"
        )
        ranks = sorted(found.rank_low for found in report.canaries)
        least = min(found.exposure.value for found in report.canaries)
        print(f"    raw ranks {ranks}, exposure {least:.1f} bits or more")
    if chosen.blocks:
        whole = tree_for(public.tokenizer, others, others.canaries, "every", None)
        assert isinstance(whole, CandidateTrie)
        root = ModelScorer(public.model).root(whole.prefix)
        for block in (128, 256, 512, 1024, 2048):

            def packed(block: int = block, root: Root = root, whole: CandidateTrie = whole) -> object:
                return enumerate_all(ModelScorer(public.model), whole, root, Rule("logprob"), block=block)

            print(f"    packed, blocks of {block}: {timed(packed, chosen.repeats):.2f} s")


def default_model(chosen: argparse.Namespace) -> None:
    manifest = canaries(6, 10, prefix="distinct")
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "canaries.jsonl"
        lines = (json.dumps({"user": user, "text": text}) for user, text in manifest.insertions())
        corpus.write_text("\n".join(lines), encoding="utf-8")
        recipe = Recipe.model_validate(
            {
                "method": "finetune",
                "output": str(Path(folder) / "run"),
                "model": {"name": DEFAULT_MODEL, "dtype": "fp32"},
                "corpus": {"path": str(corpus), "user": "user", "text": "text"},
                "held_out": None,
                "training": {
                    "epochs": chosen.epochs,
                    "block_size": 256,
                    "batch_size": 1,
                    "learning_rate": 2e-3,
                },
            }
        )
        began = time.perf_counter()
        run = finetune(recipe)
        print(f"{chosen.threads} threads; fine-tuned in {time.perf_counter() - began:.0f} s")
        trained = load_trained(run)
        checks: tuple[Checked, ...] = ("every", "scored")
        for check in checks:
            settings = ExposureSettings(check=check)
            began = time.perf_counter()
            report = measure_exposure(trained, manifest, settings=settings)
            seconds = time.perf_counter() - began
            methods = {found.method for found in report.canaries}
            print(
                f"check={check}: {seconds:.1f} s, {report.positions} positions, methods {sorted(methods)}, "
                f"ranks {sorted(found.alone_high for found in report.canaries)}, "
                f"exposure {[round(found.exposure.value, 1) for found in report.canaries]}"
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="four digits")
    parser.add_argument("--default-model", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500, help="of training the small transformer")
    parser.add_argument("--epochs", type=int, default=5, help="of fine-tuning the default model")
    parser.add_argument("--blocks", action="store_true", help="also try other sizes of packed blocks")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    default_model(chosen) if chosen.default_model else small_transformer(chosen)


if __name__ == "__main__":
    main()
