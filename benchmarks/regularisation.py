"""The regularisation paper's comparison on small corpora: who leaks less at equal perplexity, and who pays.

For each corpus: every user gets canaries of five words, each repeated 1 to 40 times; a two-layer LSTM learns
from nothing (as in the paper), unmitigated, adversarial, triplet (pairs within the batch, or a second batch)
and by DP-SGD, several times each along its frontier (`tacit tune`): the first four for more and fewer epochs,
DP-SGD with more and less noise. Every Run is audited alike. Then all are compared at two perplexities, a high
and a low one: exposure for each number of repetitions, tab completion, the accuracy of a fresh probe, and the
gap between users with little and with much text (planted text left out).

shakespeare   speakers with at least twelve speeches, forty of them; needs the text (public domain), whose
              speeches begin with "NAME:" and end with an empty line
customersim   simulated dialogues, as `tacit corpus simulate` makes them; forty users with 3, 6, 12 or 24

One seed: training is not repeated, and intervals are about users and canaries. Each corpus takes about
twenty minutes of one core. The folder keeps every Run; the same command goes on where a killed one stopped.

Run: python benchmarks/regularisation.py FOLDER [--shakespeare FILE] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LADDER = "1,2,4,9,20,40"
FEWEST_SPEECHES, SPEAKERS = 12, 40
DIALOGUES = (3, 6, 12, 24)
VOCABULARY = "1000"  # of whole words sixty thousand teach nothing: perplexities stayed above a thousand
EPOCHS = "training.epochs=1,2,4,8"
METHODS: dict[str, list[str]] = {
    "unmitigated": ["method=finetune", "--over", EPOCHS],
    "adversarial": ["method=adversarial", "regularisation.lambda=3", "--over", EPOCHS],
    "triplet": ["method=triplet", "regularisation.lambda=0.3", "--over", EPOCHS],
    "triplet second batch": [
        "method=triplet",
        "regularisation.lambda=0.3",
        "regularisation.pairs=second",
        "--over",
        EPOCHS,
    ],
    "DP-SGD": [
        "method=dpsgd",
        "privacy.delta=0.0001",
        "training.epochs=8",
        "--over",
        "privacy.noise_multiplier=0.02,0.1,0.5",
    ],
}
CONTROL_EPOCHS = 8


@dataclass(frozen=True)
class Corpus:
    """Documents with users, and where everything about them goes."""

    name: str
    folder: Path
    user: str
    text: str = "text"

    @property
    def documents(self) -> Path:
        return self.folder / "documents.jsonl"


def tacit(folder: Path, *arguments: str) -> None:
    print("tacit", *arguments, flush=True)
    subprocess.run([Path(sys.executable).with_name("tacit"), *arguments], cwd=folder, check=True)


def speeches(path: Path) -> list[dict[str, str]]:
    """Speeches of some speakers, in the order of the text."""
    blocks = re.split(r"\n\n+", path.read_text(encoding="utf-8"))
    found = [match for block in blocks if (match := re.match(r"([A-Z][^\n:]*):\n(.+)", block, re.DOTALL))]
    counts = Counter(match[1] for match in found)
    speakers = sorted(name for name, count in counts.items() if count >= FEWEST_SPEECHES)
    chosen = set(random.Random(0).sample(speakers, SPEAKERS))
    return [
        {"speaker": match[1], "text": " ".join(match[2].split())} for match in found if match[1] in chosen
    ]


def shakespeare(folder: Path, path: Path) -> Corpus:
    corpus = Corpus("shakespeare", folder / "shakespeare", "speaker")
    corpus.folder.mkdir(parents=True, exist_ok=True)
    if not corpus.documents.exists():
        lines = [json.dumps(one) + "\n" for one in speeches(path)]
        corpus.documents.write_text("".join(lines), encoding="utf-8")
    return corpus


def customersim(folder: Path) -> Corpus:
    corpus = Corpus("customersim", folder / "customersim", "user")
    corpus.folder.mkdir(parents=True, exist_ok=True)
    if not corpus.documents.exists():
        rows = [row for dialogues in DIALOGUES for row in _simulated(corpus.folder, dialogues)]
        corpus.documents.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return corpus


def _simulated(folder: Path, dialogues: int) -> list[dict[str, str]]:
    """Ten users with so many dialogues each: who has little text and who has much must differ."""
    name = f"with-{dialogues}.jsonl"
    sizes = ["--users", "10", "--dialogues", str(dialogues), "--seed", str(dialogues)]
    if not (folder / name).exists():
        tacit(folder, "corpus", "simulate", name, *sizes)
    lines = (folder / name).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{"user": f"{row['user']}-{dialogues}", "text": row["text"]} for row in rows]


def plant(corpus: Corpus, seed: int) -> None:
    """A model without any training, with the corpus's words as in the paper, and canaries of its words."""
    documents = [json.loads(line) for line in corpus.documents.read_text(encoding="utf-8").splitlines()]
    if not (corpus.folder / "lstm").exists():
        words = "\n".join(one[corpus.text] for one in documents)
        (corpus.folder / "words.txt").write_text(words, encoding="utf-8")
        shape = ["--layers", "2", "--hidden", "200", "--tied", "--vocabulary-size", VOCABULARY]
        source = ["--vocabulary-from", "words.txt", "--vocabulary-is-private"]
        tacit(corpus.folder, "models", "create", "lstm", *shape, *source)
    if not (corpus.folder / "canaries.json").exists():
        columns = ["--user", corpus.user, "--text", corpus.text, "--model", "lstm"]
        secrets = ["--secret", "words", "--length", "5", "--prefix", "shared"]
        # Nothing but the words, as in the paper; the model's words know that a space stands before them.
        secrets += ["--template", " {secret}"]
        users = len({one[corpus.user] for one in documents})
        where = ["--users", str(users), "--ladder", LADDER, "--include", "1", "--held-out-share", "0"]
        files = ["documents.jsonl", "planted.jsonl", "canaries.json"]
        tacit(corpus.folder, "corpus", "plant", *files, *columns, *secrets, *where, "--seed", str(seed))
    recipe: dict[str, Any] = {
        "output": "run",
        "model": {"name": "lstm", "dtype": "fp32"},
        "corpus": {"path": "planted.jsonl", "user": corpus.user, "text": corpus.text},
        "held_out": {"share": 0.2, "by": "within", "among": len(documents)},
        "adapter": {"kind": "full"},
        "training": {"block_size": 64, "batch_size": 32, "learning_rate": 0.003, "seed": seed},
    }
    (corpus.folder / "recipe.yaml").write_text(json.dumps(recipe, indent=2), encoding="utf-8")


def trace(corpus: Corpus) -> None:
    """Every method's frontier, each Run audited against the same control."""
    if not (corpus.folder / "control").exists():
        arguments = ["method=finetune", "output=control", f"training.epochs={CONTROL_EPOCHS}"]
        tacit(corpus.folder, "train", "recipe.yaml", *arguments, "--resume")
    audit = ["--canaries", "canaries.json", "--against", "control", "--documents", "300", "--lines", "0"]
    for name, arguments in METHODS.items():
        tacit(corpus.folder, "tune", "recipe.yaml", *arguments, "--output", name, *audit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shakespeare", type=Path, help="the text of tiny Shakespeare; left out without it")
    parser.add_argument("--no-customersim", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    corpora = []
    if arguments.shakespeare is not None:
        corpora.append(shakespeare(arguments.folder, arguments.shakespeare))
    if not arguments.no_customersim:
        corpora.append(customersim(arguments.folder))
    for corpus in corpora:
        plant(corpus, arguments.seed)
        trace(corpus)


if __name__ == "__main__":
    main()
