"""Loading and partitioning a JSONL corpus: peak memory and speed, against ``datasets.load_dataset``.

Makes a synthetic corpus in a temporary folder, then has a fresh process read and partition it with tacit,
and another do the same with what one would otherwise pick: ``load_dataset("json")``, a hash of the user
column and one ``select`` per half. Prints the figures of both (imports included) and their ratios.

    python benchmarks/corpus_memory.py --megabytes 1024
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = 8
_MEGABYTE = 1 << 20


def make_corpus(path: Path, megabytes: int) -> None:
    """Documents of 50 to 450 words by some 20,000 users, a few of whom write much more than the others."""
    draw = random.Random(2)
    words = ["".join(draw.choices("abcdefghijklmnoprstuvwyzéü", k=draw.randint(2, 10))) for _ in range(5000)]
    written = 0
    with path.open("wb") as handle:
        while written < megabytes * _MEGABYTE:
            user = f"user-{int(20_000 * draw.random() ** 2)}"
            text = " ".join(draw.choices(words, k=draw.randint(50, 450)))
            line = json.dumps({"user": user, "text": text}, ensure_ascii=False).encode() + b"\n"
            written += handle.write(line)


def run_tacit(path: Path) -> int:
    """Read and partition with tacit; returns the number of documents."""
    from tacit.corpus import CorpusSource, Partition, UserCorpus

    corpus = UserCorpus.read(CorpusSource(str(path), user="user", text="text"))
    partition = Partition.create(corpus, parts=PARTS)
    halves = [partition.corpus_of(corpus, slot.part, slot.half) for slot in partition.slots]
    return sum(len(half) for half in halves)


def run_datasets(path: Path) -> int:
    """The same with Hugging Face datasets; returns the number of documents."""
    import datasets

    datasets.disable_progress_bars()
    data = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
    )
    rows_of: list[list[int]] = [[] for _ in range(2 * PARTS)]
    for row, user in enumerate(data["user"]):
        rows_of[int.from_bytes(hashlib.sha256(user.encode()).digest()) % len(rows_of)].append(row)
    halves = [data.select(rows) for rows in rows_of]
    return sum(len(half) for half in halves)


def report_child(role: str, path: Path) -> None:
    """Do one role in this process and print its figures as JSON."""
    begin = time.perf_counter()
    documents = {"tacit": run_tacit, "datasets": run_datasets}[role](path)
    seconds = time.perf_counter() - begin
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"documents": documents, "seconds": seconds, "peak_mb": peak / _MEGABYTE}))


def measure(role: str, path: Path) -> dict[str, float]:
    """One role in a fresh process."""
    command = [sys.executable, __file__, "--role", role, "--corpus", str(path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Make the corpus, measure both, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the corpus (default: 1024)")
    parser.add_argument("--role", choices=["tacit", "datasets"], help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        report_child(arguments.role, arguments.corpus)
        return
    with tempfile.TemporaryDirectory(prefix="tacit-benchmark-") as folder:
        path = Path(folder) / "corpus.jsonl"
        make_corpus(path, arguments.megabytes)
        figures = {role: measure(role, path) for role in ("tacit", "datasets")}
    assert figures["tacit"]["documents"] == figures["datasets"]["documents"]
    for role, figure in figures.items():
        print(
            f"{role:<9} peak {figure['peak_mb']:6.0f} MB   {figure['seconds']:6.1f} s   "
            f"{arguments.megabytes / figure['seconds']:6.1f} MB/s"
        )
    print(
        f"tacit / datasets: memory {figures['tacit']['peak_mb'] / figures['datasets']['peak_mb']:.2f}x, "
        f"time {figures['tacit']['seconds'] / figures['datasets']['seconds']:.2f}x"
    )
    print(f"tacit's peak / size of the corpus: {figures['tacit']['peak_mb'] / arguments.megabytes:.2f}x")


if __name__ == "__main__":
    main()
