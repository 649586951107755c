"""What is counted while a service runs: some of it for everybody, the rest for the operator alone.

For everybody: requests, tokens that left, time and load. How many of those tokens were private, what they
cost and how much the parts weigh are functions of private text; they are on the admin port only.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tacit.ledger import Balance
from tacit.prediction import Drawn

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LATEST = 512  # durations that percentiles are taken of
BINS = 20  # of the histogram of weights


class Latest:
    """Percentiles of the latest durations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: deque[float] = deque(maxlen=_LATEST)

    def add(self, seconds: float) -> None:
        """One more."""
        with self._lock:
            self._values.append(seconds)

    def percentile(self, share: float) -> float | None:
        """The value that this share of the latest durations does not pass; None where there are none."""
        with self._lock:
            ordered = sorted(self._values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


class Metrics:
    """Counters of one service."""

    def __init__(self) -> None:
        self.public = CollectorRegistry()
        self.private = CollectorRegistry()
        self._requests = Counter(
            "tacit_requests", "Requests by endpoint and status.", ("endpoint", "status"), registry=self.public
        )
        self._tokens = Counter("tacit_tokens", "Tokens that left.", registry=self.public)
        self._first = Histogram(
            "tacit_first_token_seconds", "Until the first token.", registry=self.public, buckets=_SECONDS
        )
        self._whole = Histogram(
            "tacit_request_seconds",
            "Until the last token of a question.",
            registry=self.public,
            buckets=_SECONDS,
        )
        self._running = Gauge("tacit_texts_running", "Texts being answered.", registry=self.public)
        self._waiting = Gauge("tacit_texts_waiting", "Texts that wait.", registry=self.public)
        self._steps = Histogram(
            "tacit_step_seconds", "Forward pass, mixing and draw.", registry=self.private, buckets=_SECONDS
        )
        self._books = Histogram(
            "tacit_book_seconds", "One durable transaction.", registry=self.private, buckets=_SECONDS
        )
        self._alarms = Counter("tacit_alarms", "Members whose logits were not finite.", registry=self.private)
        self._answers = Gauge(
            "tacit_answers", "Answers on record, by who gave them.", ("source",), registry=self.private
        )
        self._worst = Gauge(
            "tacit_worst_part_used_ratio",
            "Share of its budget that the worst part has used.",
            registry=self.private,
        )
        self._stopped = Gauge(
            "tacit_stopped", "1 once the public model answers for good.", registry=self.private
        )
        self._lock = threading.Lock()
        self._weights = [0] * BINS
        self._served = self._asked = self._failed = 0
        self.first_token, self.between_tokens, self.whole_request = Latest(), Latest(), Latest()

    def request(self, endpoint: str, status: int, seconds: float, *, question: bool) -> None:
        """A request has been answered; ``question``: one that asked for text."""
        self._requests.labels(endpoint, str(status)).inc()
        if not question:
            return
        if status < 400:
            self._whole.observe(seconds)
            self.whole_request.add(seconds)
        with self._lock:
            self._asked += 1
            self._failed += status >= 400

    def first(self, seconds: float) -> None:
        """The first token of a text has left."""
        self._first.observe(seconds)
        self.first_token.add(seconds)

    def step(self, seconds: float) -> None:
        """A step was computed."""
        self._steps.observe(seconds)

    def booked(self, seconds: float, drawn: Sequence[Drawn]) -> None:
        """A step is durable, and its tokens leave."""
        self._books.observe(seconds)
        self._tokens.inc(len(drawn))
        with self._lock:
            self._served += len(drawn)
            for one in drawn:
                for weight in filter(math.isfinite, one.weights):
                    self._weights[min(BINS - 1, int(weight * BINS))] += 1
        self._alarms.inc(sum(one.alarms for one in drawn))

    @property
    def served(self) -> int:
        """Tokens that left since the start."""
        return self._served

    @property
    def requests(self) -> tuple[int, int]:
        """Requests since the start, and how many of them ended in an error."""
        return self._asked, self._failed

    @property
    def weights(self) -> list[int]:
        """How often parts weighed so much, in equal bins from 0 to 1. Sensitive."""
        with self._lock:
            return list(self._weights)

    def public_text(self, load: tuple[int, int]) -> bytes:
        """For everybody, as Prometheus reads it."""
        self._running.set(load[0])
        self._waiting.set(load[1])
        return generate_latest(self.public)

    def private_text(self, load: tuple[int, int], balance: Balance | None) -> bytes:
        """For the operator."""
        if balance is not None:
            self._answers.labels("private").set(balance.private_answers)
            self._answers.labels("public").set(balance.public_answers)
            self._worst.set(balance.worst)
            self._stopped.set(balance.stopped)
        edges = [edge / BINS for edge in range(BINS + 1)]
        rows = [
            f'tacit_weights{{from="{low:g}",to="{high:g}"}} {count}'
            for (low, high), count in zip(pairwise(edges), self.weights, strict=True)
        ]
        weights = "# HELP tacit_weights How much parts weighed.\n# TYPE tacit_weights gauge\n" + "\n".join(
            rows
        )
        return self.public_text(load) + generate_latest(self.private) + weights.encode() + b"\n"
