"""Many clients of one service against one client: GPT-2-small shape, k = 8, random weights, real HTTP.

A service runs in a process of its own, once for SubMix (seventeen models) and once for certified mixing (the
public model and one part per token); 9 of 12 layers are shared. Closed loop: every client asks again as soon
as it has its answer. Open loop: requests come at random moments, at a share of what the closed loop reached,
whether or not earlier ones are answered. The ledger's share is measured against the same service with a
ledger that writes nothing, in turn with the real one.

    python benchmarks/service.py [--clients N] [--tokens N] [--rounds N] [--mechanism NAME]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from ensemble_decode import random_adapter, random_model  # type: ignore[import-not-found]
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from tacit.ledger import Access, Decided, Domain, Ledger, Model
from tacit.models.ensemble import Ensemble
from tacit.models.loading import PublicModel, dtype_named
from tacit.models.process import apart, keep_freed_memory
from tacit.models.tokenizer import PublicTokenizer
from tacit.serving.books import Books
from tacit.serving.server import Address, Listening, serve
from tacit.serving.service import Service
from tacit.serving.settings import Settings

VOCABULARY = 50257
PARTS = 8
TRUNK = 9
PROMPT_TOKENS = 32


def tokenizer() -> PublicTokenizer:
    words = {f"w{number}": number for number in range(VOCABULARY - 1)}
    plain = Tokenizer(WordLevel(words, unk_token="w0"))  # noqa: S106 - not a password
    plain.pre_tokenizer = WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>")  # noqa: S106
    return PublicTokenizer.wrap(wrapped, start_token=VOCABULARY - 1, vocabulary="public")


class Unwritten(Books):
    """A ledger that forgets: what the real one costs is the difference."""

    def book(self, decided: Decided) -> None:
        """Nothing."""


def child(folder: Path, mechanism: str, slots: int, dtype: str, *, unwritten: bool) -> None:
    """The service itself."""
    keep_freed_memory()
    model = Model("bench", "bench", PARTS, "partition", "corpus")
    url = str(folder / "ledger.db")
    with Ledger.open(url, create=True) as ledger:
        ledger.create(Domain("people", 2.0, PARTS, "partition", 1e6, mechanism), model)
        key, _ = Access(ledger).create_key("bench")
    settings = Settings(queries=10**8, slots=slots, context=128, waiting=1000)
    books = (Unwritten if unwritten else Books)(url, None, model, settings)

    def made() -> Service:
        public = PublicModel("random", random_model(dtype_named(dtype)).model, tokenizer(), "", None)
        halves = 1 if mechanism == "certified" else 2
        adapter = random_adapter(public, TRUNK, folder / "adapter")
        ensemble = Ensemble(public, (adapter,) * (PARTS * halves), PARTS, halves)
        return Service("bench", ensemble, books, settings)

    service = apart(made)

    def announce(found: Listening) -> None:
        print(json.dumps({"url": found.public, "key": key}), flush=True)

    serve(service, Address("127.0.0.1", 0), Address("127.0.0.1", 0), announce=announce)


@dataclass
class Timings:
    """What clients saw."""

    tokens: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)

    @classmethod
    def sum(cls, rounds: Sequence[Timings]) -> Timings:
        return cls(
            sum(one.tokens for one in rounds),
            sum(one.seconds for one in rounds),
            [value for one in rounds for value in one.first],
            [value for one in rounds for value in one.between],
        )

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def row(self, name: str, beside: float | None) -> str:
        cells = [f"{self.rate:8.1f}", "       " if beside is None else f"{self.rate / beside:6.2f}x"]
        for values in (self.first, self.between):
            ordered = sorted(values)
            cells += [f"{1e3 * ordered[int(share * (len(ordered) - 1))]:7.0f}" for share in (0.5, 0.99)]
        return f"{name:34} " + " ".join(cells)


class Clients:
    """Ask a service and take the time."""

    def __init__(self, url: str, key: str, tokens: int) -> None:
        self._url, self._key, self._tokens = url, key, tokens

    async def ask(self, client: httpx.AsyncClient, timings: Timings) -> None:
        words = " ".join(f"w{random.randrange(VOCABULARY - 1)}" for _ in range(PROMPT_TOKENS - 1))
        body = {"model": "bench", "prompt": words, "max_tokens": self._tokens, "stream": True}
        last, begun = time.perf_counter(), False
        async with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.perf_counter()
                (timings.between if begun else timings.first).append(now - last)
                last, begun = now, True
                timings.tokens += 1

    def run(self, work: Callable[[httpx.AsyncClient, Timings], Awaitable[None]]) -> Timings:
        timings = Timings()

        async def all_of_it() -> None:
            headers = {"authorization": f"Bearer {self._key}"}
            limits = httpx.Limits(max_connections=1000)
            async with httpx.AsyncClient(headers=headers, timeout=600, limits=limits) as client:
                begun = time.perf_counter()
                await work(client, timings)
                timings.seconds = time.perf_counter() - begun

        asyncio.run(all_of_it())
        return timings

    def closed(self, clients: int, each: int) -> Timings:
        async def one(client: httpx.AsyncClient, timings: Timings) -> None:
            for _ in range(each):
                await self.ask(client, timings)

        async def work(client: httpx.AsyncClient, timings: Timings) -> None:
            await asyncio.gather(*(one(client, timings) for _ in range(clients)))

        return self.run(work)

    def open(self, per_second: float, requests: int) -> Timings:
        async def work(client: httpx.AsyncClient, timings: Timings) -> None:
            chance, asked = random.Random(1), []
            for _ in range(requests):
                asked.append(asyncio.ensure_future(self.ask(client, timings)))
                await asyncio.sleep(chance.expovariate(per_second))
            await asyncio.gather(*asked)

        return self.run(work)


@contextmanager
def service(mechanism: str, options: argparse.Namespace, *, unwritten: bool = False) -> Iterator[Clients]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        words = [
            sys.executable,
            __file__,
            "--child",
            folder,
            "--mechanism",
            mechanism,
            "--clients",
            str(options.clients),
            "--dtype",
            options.dtype,
        ]
        if unwritten:
            words.append("--unwritten")
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={"GOMP_SPINCOUNT": "10000", **os.environ},  # as `tacit serve` has it
        ) as process:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            try:
                yield Clients(found["url"], found["key"], options.tokens)
            finally:
                process.terminate()


def measure(mechanism: str, options: argparse.Namespace) -> None:
    tokens, many = options.tokens, options.clients
    dtype = dtype_named(options.dtype)
    print(f"\n{mechanism}, {dtype}, k = {PARTS}: answers of {tokens} tokens to {PROMPT_TOKENS}")
    print(f"{'':34} tokens/s  x one   first p50    p99  between p50  p99 (ms)")
    with (
        service(mechanism, options) as real,
        service(mechanism, options, unwritten=True) as none,
    ):
        for clients in (real, none):
            clients.closed(1, 1)  # warm
        # In turn, so that a machine that slows down slows all of them.
        alone: list[Timings] = []
        rates: dict[str, list[Timings]] = {"real": [], "none": []}
        for _ in range(options.rounds):
            alone.append(real.closed(1, 2))
            rates["real"].append(real.closed(many, 2))
            rates["none"].append(none.closed(many, 2))
        one, together = Timings.sum(alone), Timings.sum(rates["real"])
        print(one.row("one client", None))
        print(together.row(f"{many} clients, closed loop", one.rate))
        ratios = [all_.rate / single.rate for all_, single in zip(rates["real"], alone, strict=True)]
        print(f"{'':34} rounds: {', '.join(f'{ratio:.2f}x' for ratio in ratios)}")
        per_second = options.load * together.rate / tokens
        print(real.open(per_second, 3 * many).row(f"open loop, {per_second:.2f} requests/s", one.rate))
        shares = [1 - paid.rate / free.rate for paid, free in zip(rates["real"], rates["none"], strict=True)]
        print(
            f"the ledger's share of {many} clients' time: {statistics.median(shares):.1%} "
            f"(rounds: {', '.join(f'{share:.1%}' for share in shares)})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer; 64 is the service's default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=float, default=0.7, help="open loop: share of the closed loop's rate")
    parser.add_argument("--mechanism", choices=("submix-guarded", "submix", "certified"))
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="auto", help="of the models")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--unwritten", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, options.mechanism, options.clients, options.dtype, unwritten=options.unwritten)
        return
    for mechanism in [options.mechanism] if options.mechanism else ["submix-guarded", "certified"]:
        measure(mechanism, options)


if __name__ == "__main__":
    main()
