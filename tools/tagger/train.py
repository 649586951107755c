"""Train the embedded tagger and write its weights.

    python -m tools.tagger.train OUT.npz [--wikigold FILE] [--multiwoz val.jsonl] [--customersim train.jsonl]
        [--patents abstracts.jsonl] [--wikitext train.txt] [--texts N] [--epochs N] [--pool N] [--locales N]
        [--seed N]

One thread and one seed: the same inputs, versions of Faker and torch, and processor give the same bytes.
docs/tagger.md says what the shipped weights were trained on and how well they do.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.corpus.screening.tagger.features import LISTS, WordLists, plain_form
from tacit.corpus.screening.tagger.network import TOP, UNIT
from tacit.corpus.screening.tagger.tokens import split_tokens
from tacit.corpus.screening.tagger.weights import LABELS, SCORE_RANGE, SCORE_UNIT, SHIFT, save_weights
from tools.tagger import corpora
from tools.tagger.learning import IGNORED, Encoded, Learner, Types, collate, learn
from tools.tagger.sentences import Example, Span, disturb, is_held_out, mask, read_templates, write_sentence
from tools.tagger.values import Values


@dataclass
class Sources:
    """Texts to learn from, each kind with its share of the training set, and what is held out."""

    kinds: dict[str, list[Example]] = field(default_factory=dict)
    held_out: dict[str, list[Example]] = field(default_factory=dict)

    def add(self, kind: str, example: Example, *, held_out: bool) -> None:
        """Keep an example on one of the two sides."""
        (self.held_out if held_out else self.kinds).setdefault(kind, []).append(example)


CORPORA = ("wikigold", "multiwoz", "customersim", "patents", "wikitext")
MASKED = 0.3  # of the texts have masks in them
EVERYDAY = ("items", "verbs", "adjectives", "number words")
SHARES = {
    "templates": 0.62,
    "wikigold": 0.16,
    "multiwoz": 0.08,
    "customersim": 0.04,
    "patents": 0.08,
    "wikitext": 0.15,
}


def main() -> None:
    """Read the arguments, train, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    for corpus in CORPORA:
        parser.add_argument(f"--{corpus}", type=Path)
    for name, number in asdict(Plan()).items():
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)

    plan = Plan(**{name: getattr(options, name) for name in asdict(Plan())})
    arrays = train({name: getattr(options, name) for name in CORPORA}, plan, say)
    save_weights(options.out, arrays)
    say(f"{options.out}: {options.out.stat().st_size:,} bytes")


@dataclass(frozen=True)
class Plan:
    """How much to train on; ``pool`` values of each kind are drawn in each of at most ``locales``."""

    texts: int = 300_000
    epochs: int = 2
    pool: int = 400
    locales: int = 100
    seed: int = 0


def train(
    paths: dict[str, Path | None], plan: Plan, say: Callable[[str], None] = lambda text: None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a trained tagger."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        return _train(paths, plan, say)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def _train(paths: dict[str, Path | None], plan: Plan, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
    values = Values(plan.seed, pool=plan.pool, locales=plan.locales)
    sources = read_sources(paths, values)
    say(f"sources: { {kind: len(found) for kind, found in sources.kinds.items()} }")
    lists = word_lists(values, paths)
    types = Types(WordLists.of(lists))
    everyday = frozenset(lists["frequent"]).union(*(values.words[name] for name in EVERYDAY))
    say(f"lists: { {name: len(words) for name, words in lists.items()} }")

    def learned(count: int, epochs: int) -> Learner:
        encoded = [
            types.encode(example) for example in training_texts(sources, values, everyday, count, plan.seed)
        ]
        tokens = sum(len(text.types) for text in encoded)
        say(f"{len(encoded):,} texts, {tokens:,} tokens, {len(types.rows):,} words")
        return learn(
            encoded, types, epochs=epochs, seed=plan.seed,
            report=lambda step, steps, loss: say(f"step {step} of {steps}: loss {loss:.4f}"),
        )  # fmt: skip

    if (path := paths.get("wikitext")) is not None:
        teacher = learned(max(1, plan.texts // 2), 1)
        found = taught(teacher, corpora.wikitext_sentences(path), types)
        sources.kinds["wikitext"] = found
        say(f"{len(found):,} sentences of Wikitext labelled by a first tagger")
    learner = learned(plan.texts, plan.epochs)
    arrays = whole_numbers(learner)
    calibration = [
        types.encode(example)
        for example in calibration_texts(sources, values, everyday, min(plan.texts, 6000))
    ]
    arrays["scores"] = calibrated(learner, calibration, types)
    arrays |= {f"list-{name}": bits for name, bits in WordLists.of(lists).bits.items()}
    return arrays


def read_sources(paths: dict[str, Path | None], values: Values) -> Sources:
    """Read the corpora that there are."""
    sources, rng = Sources(), values.rng
    if path := paths.get("wikigold"):
        for number, document in enumerate(corpora.wikigold_sentences(path)):
            for sentence in document:
                held_out = is_held_out(f"wikigold {number}", 0.2)
                example = corpora.wikigold_example(sentence, spaced=rng.random() < 0.4)
                sources.add("wikigold", example, held_out=held_out)
                for _ in range(0 if held_out else 6):
                    other = corpora.wikigold_example(sentence, spaced=rng.random() < 0.4, values=values)
                    sources.add("wikigold", other, held_out=False)
    if path := paths.get("multiwoz"):
        for dialogue, turn, _ in corpora.multiwoz_turns(path):
            sources.add("multiwoz", turn, held_out=is_held_out(dialogue, 0.4))
    if path := paths.get("customersim"):
        for dialogue, example in corpora.customersim_dialogues(path):
            sources.add("customersim", corpora.lines_of(example, 3, rng), held_out=is_held_out(dialogue, 0.2))
    if path := paths.get("patents"):
        for example in corpora.patent_sentences(path):
            sources.add("patents", example, held_out=is_held_out(example.text, 0.1))
    return sources


def word_lists(values: Values, paths: dict[str, Path | None]) -> dict[str, list[str]]:
    """Return the words of the filters: names and places of the pools, and words usual in small letters."""
    words = values.words

    def parts(*sources: list[str]) -> list[str]:
        found = {
            plain_form(word) for source in sources for value in source for word in split_tokens(value).words
        }
        return sorted(word for word in found if len(word) > 1 and word.isalpha())

    counts: Counter[str] = Counter()
    for name in ("wikitext", "patents", "multiwoz"):
        if (path := paths.get(name)) is not None:
            counts.update(re.findall(r"(?<=[a-z,;] )[a-z]{2,}(?= )", path.read_text(encoding="utf-8")))
    usual = [word for word, count in counts.items() if count >= 3]
    lists = {
        "first": parts(words["first names"], *values.pools.all("first_name")),
        "last": parts(words["last names"], *values.pools.all("last_name")),
        "place": parts(
            words["cities"],
            words["regions"],
            values.pools.countries,
            values.pools.states,
            *values.pools.all("city"),
        ),
        "common": sorted(usual),
        "frequent": sorted(word for word in usual if counts[word] >= 30),
        "very-frequent": sorted(word for word in usual if counts[word] >= 400),
    }
    return {name: lists[name] for name in LISTS}


def taught(teacher: Learner, sentences: list[str], types: Types) -> list[Example]:
    """Label real sentences where a first tagger is sure; the rest of them is not learnt from."""
    examples = []
    for start in range(0, len(sentences), 128):
        some = sentences[start : start + 128]
        inputs, _ = collate([types.encode(Example(text, ())) for text in some], types, None)
        with torch.no_grad():
            logits = teacher(*inputs)
        sure, kinds = torch.sigmoid(logits[..., 0]).numpy(), logits[..., 1:].argmax(-1).numpy()
        for row, text in enumerate(some):
            tokens, spans = split_tokens(text), []
            for i, word in enumerate(tokens.words):
                score, capital = sure[row, i], word[0].isupper() and i > 0
                if score > 0.8 and word[0].isalnum():
                    label = LABELS[kinds[row, i]]
                elif score < (0.02 if capital else 0.2):
                    continue
                else:
                    label = "?"
                spans.append(Span(tokens.starts[i], tokens.ends[i], label))
            examples.append(Example(text, tuple(spans)))
    return examples


def training_texts(
    sources: Sources, values: Values, everyday: frozenset[str], count: int, seed: int
) -> list[Example]:
    """Draw texts in their shares; some are two or three that follow each other."""
    rng = Random(f"texts {seed}")
    templates = [template for template in read_templates() if not is_held_out(template)]
    kinds = {kind: SHARES[kind] for kind in ("templates", *sources.kinds)}

    def one() -> Example:
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        drawn = (
            write_sentence(rng.choice(templates), values)
            if kind == "templates"
            else rng.choice(sources.kinds[kind])
        )
        return disturb(drawn, rng, everyday)

    texts = []
    for _ in range(count):
        text = one()
        while len(text.text) < 300 and rng.random() < 0.25:
            text = text.then(one(), rng.choice((" ", " ", "\n", " - ")))
        texts.append(mask(text, rng) if rng.random() < MASKED else text)
    return texts


def calibration_texts(
    sources: Sources, values: Values, everyday: frozenset[str], count: int
) -> list[Example]:
    """Draw texts of templates and documents that were not learnt from."""
    rng = Random("calibration")
    templates = [template for template in read_templates() if is_held_out(template)]
    texts = [disturb(write_sentence(rng.choice(templates), values), rng, everyday) for _ in range(count)]
    for found in sources.held_out.values():
        texts += rng.sample(found, min(len(found), count // 4))
    return texts


def whole_numbers(learner: Learner) -> dict[str, NDArray[Any]]:
    """Round the learner's parameters to what is stored."""

    def rounded(values: torch.Tensor, unit: float, kind: type[np.generic], most: float) -> NDArray[Any]:
        return torch.round(values.detach().double() * unit).clamp(-most, most).numpy().astype(kind)

    arrays: dict[str, NDArray[Any]] = {"table": rounded(learner.table, 2.0**UNIT, np.int8, TOP)}
    for depth, (kernel, bias) in enumerate(zip(learner.kernels, learner.biases, strict=True)):
        arrays[f"kernel{depth}"] = rounded(kernel, 2.0**SHIFT, np.int8, TOP)
        arrays[f"bias{depth}"] = rounded(bias, 2.0 ** (SHIFT + UNIT), np.int32, 2**20)
    arrays["head"] = rounded(learner.head, 2.0**SHIFT, np.int8, TOP)
    arrays["head_bias"] = rounded(learner.head_bias, 2.0 ** (SHIFT + UNIT), np.int32, 2**20)
    return arrays


def calibrated(learner: Learner, texts: list[Encoded], types: Types) -> NDArray[np.float64]:
    """Return the score at each logit: a logistic curve through how often such tokens are sensitive."""
    logits, truths = [], []
    learner.eval()
    with torch.no_grad():
        for start in range(0, len(texts), 128):
            inputs, labels = collate(texts[start : start + 128], types, None)
            known = labels != IGNORED
            logits.append(learner(*inputs)[..., 0][known].double())
            truths.append((labels[known] > 0).double())
    logit, truth = torch.cat(logits), torch.cat(truths)
    slope, offset = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for _ in range(50):  # Newton's method for two numbers
        fitted = torch.sigmoid(slope * logit + offset)
        error, weight = truth - fitted, (fitted * (1 - fitted)).clamp_min(1e-9)
        gradient = torch.stack(((error * logit).sum(), error.sum()))
        curvature = torch.stack((
            torch.stack(((weight * logit**2).sum(), (weight * logit).sum())),
            torch.stack(((weight * logit).sum(), weight.sum())),
        ))  # fmt: skip
        step = torch.linalg.solve(curvature + 1e-6 * torch.eye(2, dtype=torch.float64), gradient)
        slope, offset = slope + step[0].clamp(-1, 1), offset + step[1].clamp(-1, 1)
    places = np.arange(-SCORE_RANGE, SCORE_RANGE + 1) / SCORE_UNIT
    curve = 1 / (1 + np.exp(-(float(slope.clamp_min(0.05)) * places + float(offset))))
    return np.round(curve, 6)


if __name__ == "__main__":
    main()
