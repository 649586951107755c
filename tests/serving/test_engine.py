"""The engine in this process: what is booked before it leaves, who shares a step, and what STOP changes.

The invariants are those of docs/serving.md, by their numbers; those that need a process to die or a disk to
fill are in test_kills.py and test_faults.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch

from tacit.errors import InputError, LedgerUnavailable
from tacit.ledger import OPERATOR, Access, Decided, Draw, Ledger, verify
from tacit.ledger.entries import unpacked
from tacit.mechanisms import Decoding
from tacit.mechanisms.choice import MechanismChoice
from tacit.models.tokenizer import PublicTokenizer
from tacit.prediction import Drawing, Drawn
from tacit.prediction.accounts import model_of
from tacit.privacy.filter import NANO
from tacit.runs import Run
from tacit.serving.books import Books
from tacit.serving.engine import Text
from tacit.serving.problems import Problem
from tacit.serving.service import Question, Service
from tests.models.ensembles import peft_logits
from tests.serving.conftest import PROMPT, TENANT, NewPlace, Place, ledger_of

MECHANISMS = ["submix-guarded", "submix", "certified", "individual"]


def question(service: Service, prompt: str = PROMPT, **changes: Any) -> Question:
    tokenizer: PublicTokenizer = service.tokenizer
    ids = [tokenizer.start_token, *tokenizer.encode([prompt])[0]]
    usual: dict[str, Any] = {
        "tenant": TENANT,
        "prompts": [ids],
        "choices": 1,
        "max_tokens": 6,
        "decoding": Decoding(),
    }
    return Question(**(usual | changes))


async def answer(service: Service, asked: Question) -> tuple[str, list[str]]:
    """The request's id and the whole text of each choice."""
    texts = [""] * (len(asked.prompts) * asked.choices)
    async with service.answering(asked) as (conversation, pieces):
        async for written in pieces:
            texts[written.choice] += written.text
        return conversation.request.id, texts


def answers(service: Service, *asked: Question) -> list[tuple[str, list[str]]]:
    """Ask at the same time."""

    async def all_of_them() -> list[tuple[str, list[str]]]:
        return await asyncio.gather(*(answer(service, one) for one in asked))

    return asyncio.run(all_of_them())


def booked(ledger: Ledger, request: str | None = None) -> list[tuple[str, str, int, tuple[int, ...]]]:
    """Request, kind, token and charges of every answer, in order."""
    rows = ledger.store.run(
        "SELECT request, kind, token, charges FROM entry WHERE kind IN ('token', 'public') ORDER BY seq"
    )
    found = [(str(row[0]), str(row[1]), int(row[2]), unpacked(bytes(row[3]))) for row in rows]
    return [row for row in found if request is None or row[0] == request]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_was_received_is_what_was_booked(place: NewPlace, mechanism: str) -> None:
    """I1, I3: every text that left is the text of booked tokens; the chain and the sums are whole."""
    where = place(mechanism)
    with where.service(slots=3) as service:
        asked = [question(service, f"{PROMPT} {word}", choices=2) for word in ("carries", "paints", "sells")]
        found = answers(service, *asked)
        tokenizer = service.tokenizer
    with where.opened() as ledger:
        verify(ledger, "people")
        for request, texts in found:
            for choice, text in enumerate(texts):
                tokens = [row[2] for row in booked(ledger, f"{request}/{choice}")]
                assert 1 <= len(tokens) <= 6
                ends = tokens[-1] in tokenizer.stop_tokens
                assert tokenizer.decode(tokens[:-1] if ends else tokens) == text
        assert ledger.balance("people").private_answers == len(booked(ledger))


class _Slow(Books):
    """A ledger whose write takes as long as a test wants."""

    def prepare(self) -> None:
        self.begun, self.go_on, self.fail = threading.Event(), threading.Event(), False

    def book(self, decided: Decided) -> None:
        self.begun.set()
        self.go_on.wait(30)
        if self.fail:
            self.shut()
            raise LedgerUnavailable("the disk is full")
        super().book(decided)


def slow_service(where: Place) -> tuple[Service, _Slow]:
    service = where.idle_service()
    books = service.books
    books.__class__ = _Slow
    assert isinstance(books, _Slow)
    books.prepare()
    return service, books


def test_nothing_leaves_before_it_is_booked_and_the_next_step_does_not_wait(place: NewPlace) -> None:
    """I1; and the forward pass of a step overlaps the commit of the one before."""
    service, books = slow_service(place())
    passes = 0
    second = threading.Event()
    draw = service.engine._draw

    def counted(texts: Sequence[Any]) -> tuple[list[Any], list[Drawn]]:
        nonlocal passes
        passes += 1
        if passes == 2:
            second.set()
        return draw(texts)

    service.engine._draw = counted  # type: ignore[method-assign]
    service.engine.start()

    async def ask() -> str:
        text = ""
        async with service.answering(question(service, max_tokens=4)) as (_, pieces):
            await asyncio.to_thread(books.begun.wait, 30)
            assert await asyncio.to_thread(second.wait, 30), "the next pass waits for the commit"
            first = asyncio.ensure_future(anext(pieces))
            done, _ = await asyncio.wait({first}, timeout=0.3)
            assert not done, "a piece left before its step was durable"
            books.go_on.set()
            text += (await first).text
            async for written in pieces:
                text += written.text
        return text

    try:
        assert asyncio.run(ask())
    finally:
        books.go_on.set()
        service.close()


def test_a_failed_write_gives_no_token_and_the_service_recovers(place: NewPlace) -> None:
    """I9: ledger failure means zero private tokens; afterwards it answers again, from what is durable."""
    where = place()
    service, books = slow_service(where)
    books.fail = True
    books.go_on.set()
    service.engine.start()
    try:
        received: list[str] = []

        async def ask() -> None:
            async with service.answering(question(service)) as (_, pieces):
                async for written in pieces:
                    received.append(written.text)

        with pytest.raises(Problem) as problem:
            asyncio.run(ask())
        assert (problem.value.status, problem.value.code) == (503, "ledger_unavailable")
        assert received == []
        books.fail = False
        deadline = threading.Event()
        for _ in range(300):
            if service.ready:
                break
            deadline.wait(0.1)
        assert service.ready
        asyncio.run(ask())
        assert received
    finally:
        service.close()
    with where.opened() as ledger:
        verify(ledger, "people")


def test_charges_are_those_of_the_very_distributions_that_were_sampled(
    place: NewPlace, runs: Any, tiny_transformer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: recomputed with 40 digits from the definition, no charge is below, for texts that share steps."""
    seen: list[tuple[torch.Tensor, torch.Tensor, Drawn]] = []
    draw = Drawing.draw

    def remembered(self: Drawing, queries: Any, left: Any) -> Any:
        drawn: Any = draw(self, queries, left)
        seen.extend(
            (query[1:].reshape(2, 2, -1).double(), query[0].double(), one)
            for query, one in zip(queries, drawn, strict=True)
        )
        return drawn

    monkeypatch.setattr(Drawing, "draw", remembered)
    where = place("submix-guarded", epsilon=50.0)
    with where.service(queries=100, chunk=3) as service:
        asked = [
            question(service, f"{PROMPT} {word} a red boat", max_tokens=3) for word in ("carries", "sells")
        ]
        found = answers(service, *asked)
    with where.opened() as ledger:
        rows = booked(ledger)
        for request, _ in found:
            assert booked(ledger, f"{request}/0")
    assert len(rows) == len(seen) >= 2
    mpmath.mp.dps = 40
    for (_, kind, token, charges), (members, public, drawn) in zip(rows, seen, strict=True):
        assert (kind, token) == ("token", drawn.private)
        exact = _null_part_divergences(members.numpy(), public.numpy(), drawn.weights)
        for charge, least in zip(charges, exact, strict=True):
            assert charge >= float(least) * NANO - 1e-6
            assert charge <= float(least) * NANO * (1 + 1e-6) + 3, "padded by far less than it is worth"
    # The members' distributions are plain PEFT's, although texts shared a batch and came in chunks.
    tokenizer = service.tokenizer
    ids = [tokenizer.start_token, *tokenizer.encode([f"{PROMPT} carries a red boat"])[0]]
    folder = runs / "halves" / "members"
    expected = torch.stack(
        [
            torch.softmax(peft_logits(tiny_transformer, member, torch.tensor([ids]))[0, -1].double(), -1)
            for member in sorted(folder.iterdir())
        ]
    ).view(2, 2, -1)
    nearest = min(float((members - expected).abs().max()) for members, _, _ in seen)
    assert nearest < 1e-4


def _null_part_divergences(
    members: np.ndarray[Any, Any], public: np.ndarray[Any, Any], weights: Sequence[float]
) -> list[Any]:
    """D_2 between the mixture and the one in which a part answers as the public model: the larger way."""
    size = public.shape[-1]

    def floored(*pmfs: np.ndarray[Any, Any]) -> list[Any]:
        """The mean of distributions: added up first and normalised then, as in the mechanism."""
        sums = [
            mpmath.fsum(map(mpmath.mpf, column)) for column in zip(*(p.tolist() for p in pmfs), strict=True)
        ]
        total = mpmath.fsum(sums)
        return [(1 - mpmath.mpf("1e-9")) * x / total + mpmath.mpf("1e-9") / size for x in sums]

    base = floored(public)
    parts = []
    for halves, weight in zip(members, weights, strict=True):
        mean = floored(*halves)
        parts.append([weight * g + (1 - mpmath.mpf(weight)) * r for g, r in zip(mean, base, strict=True)])
    k = len(parts)
    whole = [mpmath.fsum(column) / k for column in zip(*parts, strict=True)]
    found = []
    for i in range(k):
        others = [part for j, part in enumerate(parts) if j != i]
        without = [mpmath.fsum((*column, r)) / k for *column, r in zip(*others, base, strict=True)]
        both = [
            mpmath.log(mpmath.fsum(p * p / q for p, q in zip(first, second, strict=True)))
            for first, second in ((whole, without), (without, whole))
        ]
        found.append(max(both))
    return found


@pytest.mark.parametrize("name", ["submix", "certified", "individual"])
def test_tokens_have_the_frequencies_of_the_mixture(name: Any) -> None:
    """I11: chi-square of what the engine draws, private and public, against what was charged."""
    torch.manual_seed(1)
    size, parts, draws = 12, 3, 1_500
    halves = 2 if name == "submix" else 1
    members = torch.softmax(torch.randn(parts, halves, size), -1)
    public = torch.softmax(torch.randn(size), -1)
    drawing = Drawing(MechanismChoice(name, target=0.05), parts=parts, halves=halves)
    query = torch.cat([public.unsqueeze(0), members.flatten(0, 1)])
    given: Any = members if halves == 2 else members.mean(1)
    pmf = drawing.mechanism.mix(given, public).pmf.numpy()
    drawn: list[Any] = drawing.draw([query] * draws, [10**15] * parts)
    for tokens, expected in (
        ([one.private for one in drawn], pmf),
        ([one.public for one in drawn], public.double().numpy()),
    ):
        counts = np.bincount(tokens, minlength=size)
        # One false alarm in a million: the generator is the operating system's and has no seed.
        assert scipy.stats.chisquare(counts, expected / expected.sum() * draws).pvalue > 1e-6
    other = np.roll(pmf, 1)
    counts = np.bincount([one.private for one in drawn], minlength=size)
    assert scipy.stats.chisquare(counts, other / other.sum() * draws).pvalue < 1e-6, "the test can see"


def test_a_lazy_answer_has_the_mixture_too() -> None:
    """Drawing a slot and then a token is drawing from the mixture."""
    torch.manual_seed(2)
    size, parts, draws = 10, 4, 1_500
    members = torch.softmax(torch.randn(parts, size), -1)
    public = torch.softmax(torch.randn(size), -1)
    drawing = Drawing(MechanismChoice("certified", target=0.05), parts=parts, halves=1, lazy=True)
    mechanism: Any = drawing.mechanism
    pmf = mechanism.mix(members, public).pmf.numpy()
    queries = [torch.stack([public, members[drawing.secret_slot()]]) for _ in range(draws)]
    drawn: list[Any] = drawing.draw(queries, [0] * parts)
    counts = np.bincount([one.private for one in drawn], minlength=size)
    assert scipy.stats.chisquare(counts, pmf / pmf.sum() * draws).pvalue > 1e-6
    for other in (
        members.mean(0).double().numpy(),
        public.double().numpy(),
    ):  # had it drawn from one side only
        assert scipy.stats.chisquare(counts, other / other.sum() * draws).pvalue < 1e-6, "the test can see"


def test_a_certified_budget_pays_for_exactly_its_number_of_answers(place: NewPlace) -> None:
    where = place("certified", epsilon=2.0)
    with where.service(queries=7, slots=4) as service:
        assert service.engine.lazy
        answers(service, *(question(service, max_tokens=5) for _ in range(4)))
    with where.opened() as ledger:
        kinds = [kind for _, kind, _, _ in booked(ledger)]
        balance = ledger.balance("people")
    assert kinds.count("token") == min(7, len(kinds)) == 7
    assert kinds == ["token"] * 7 + ["public"] * (len(kinds) - 7)
    assert balance.stopped
    assert all(spent <= budget for spent, budget in zip(balance.spent, balance.budget, strict=True))  # I2


def booked_once(where: Place, mechanism: str, price: float) -> None:
    """One answer at a price."""
    model = model_of(Run.open(where.run))
    with where.opened() as ledger:
        draws = [Draw("earlier", 0, TENANT, [price] * model.parts, 1, 2)]
        ledger.answer("people", draws, model=model.fingerprint, mechanism=mechanism, order=2.0)


def test_a_counted_budget_is_not_ended_early_by_a_larger_price(place: NewPlace) -> None:
    """E.g. of somebody who forgets --queries: what is left would never be spent."""
    where = place("certified", epsilon=2.0)
    with where.opened() as ledger:
        ledger.book_training("people", 1.9985, "weights")
    with pytest.raises(InputError, match=r"0.0015 nats left, .* target=0.001953125 .*; .*--target 0.0015"):
        where.idle_service()
    booked_once(where, "certified", 0.0002)
    with pytest.raises(InputError, match=r"0.0013 nats left, .*--target 0.0002"):
        where.idle_service()
    with where.opened() as ledger:
        verify(ledger, "people")
        assert ledger.balance("people").private_answers == 1, "nothing was booked, and nothing is held"
    with where.service(queries=10_000) as service:
        answers(service, question(service, max_tokens=4))
        assert service.books.booked.private_answers == 5
        # While it runs nothing is looked at again: what is left ends as every budget does.
        service.books.choice = replace(service.books.choice, target=0.5)
        service.books.shut()
        assert eventually(lambda: service.books.is_open)


def test_what_is_left_at_the_end_of_a_counted_budget_keeps_no_service_from_starting(place: NewPlace) -> None:
    """Budgets are seldom whole multiples of a price; after the last answer less than one is left."""
    where = place("certified", epsilon=1.0)
    with where.service(queries=3) as service:
        answers(service, question(service, max_tokens=3))
        assert not service.books.booked.stopped
        assert min(service.books.booked.left) == 1
    for queries in (3, 1):
        with where.service(queries=queries):
            pass
    with where.service(queries=3) as service:
        answers(service, question(service))
        assert service.books.booked.stopped
    with where.service(queries=1):
        pass


@pytest.mark.parametrize("mechanism", ["submix-guarded", "submix", "individual"])
def test_where_spending_is_private_a_start_does_not_depend_on_it(place: NewPlace, mechanism: str) -> None:
    where = place(mechanism, epsilon=2.0)
    booked_once(where, mechanism, 1.9999)
    with where.service(queries=1) as service:
        assert [text for _, (text, *_) in answers(service, question(service))]


@pytest.mark.parametrize("mechanism", ["submix-guarded", "submix"])
def test_after_stop_the_same_work_is_done_and_the_public_model_answers(
    place: NewPlace, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2, I4: the budget is never passed, STOP is for good; two draws for every answer, before and after."""
    drawn: list[int] = []
    counts: list[float] = []
    draw = Drawing.draw

    def counted(self: Drawing, queries: Any, left: Any) -> Any:
        calls = 0
        randbelow = self._randbelow

        def counting(bound: int) -> int:
            nonlocal calls
            calls += 1
            return randbelow(bound)

        self._randbelow = counting
        try:
            found: Any = draw(self, queries, left)
        finally:
            self._randbelow = randbelow
        counts.append(calls / len(queries))
        drawn.extend(one.public for one in found)
        return found

    monkeypatch.setattr(Drawing, "draw", counted)
    where = place(mechanism, epsilon=2e-4)
    with where.service(queries=1) as service:
        answers(service, *(question(service, max_tokens=8) for _ in range(3)))
    with where.opened() as ledger:
        rows = booked(ledger)
        balance = ledger.balance("people")
        assert balance.stopped
        assert all(spent < budget for spent, budget in zip(balance.spent, balance.budget, strict=True))
    kinds = [kind for _, kind, _, _ in rows]
    assert "public" in kinds
    stop = kinds.index("public")
    assert set(kinds[stop:]) == {"public"}
    assert [token for _, kind, token, _ in rows if kind == "public"] == drawn[stop:]
    assert set(counts) == {2}
    # And after a restart.
    with where.service(queries=1) as service:
        answers(service, question(service))
    with where.opened() as ledger:
        assert {kind for _, kind, _, _ in booked(ledger)[len(rows) :]} == {"public"}


def test_individual_budgets_fade_and_are_never_passed(place: NewPlace) -> None:
    """Texts of one step are mixed one after the other, each within what those before it leave."""
    where = place("individual", epsilon=3e-4)
    with where.service(queries=1, slots=4) as service:
        answers(service, *(question(service, max_tokens=10) for _ in range(4)))
    with where.opened() as ledger:
        verify(ledger, "people")
        rows, balance = booked(ledger), ledger.balance("people")
    assert {kind for _, kind, _, _ in rows} == {"token"}
    assert not balance.stopped
    assert all(spent <= budget for spent, budget in zip(balance.spent, balance.budget, strict=True))
    assert balance.worst > 0.9, "the test comes near the end of the budget"


def test_a_repeated_request_gets_the_same_bytes_and_pays_nothing(place: NewPlace) -> None:
    """I5."""
    where = place()
    with where.service() as service:
        asked = question(service, choices=2, key="key-1", body=b"the body")
        first = answers(service, asked)
        entries = service.books.balance.entries
        assert answers(service, asked) == first
        assert service.books.balance.entries == entries
        other = question(service, choices=2, key="key-1", body=b"another body")
        with pytest.raises(Problem) as problem:
            answers(service, other)
        assert (problem.value.status, problem.value.headers["x-should-retry"]) == (409, "false")


def test_a_request_that_was_cut_is_continued_from_what_was_paid(place: NewPlace) -> None:
    """I5 for a client that went away: the same beginning, then more, and every token booked once."""
    where = place()
    with where.service() as service:
        asked = question(service, max_tokens=12, key="key-1", body=b"the body")

        async def cut() -> str:
            async with service.answering(asked) as (_, pieces):
                return (await anext(pieces)).text

        beginning = asyncio.run(cut())
        # It waits until the step that was running is booked and the engine has let go.
        ((request, (text,)),) = answers(service, asked)
        assert text.startswith(beginning)
    with where.opened() as ledger:
        verify(ledger, "people")
        rows = ledger.store.run("SELECT step FROM entry WHERE request = ? ORDER BY seq", (f"{request}/0",))
    assert [int(row[0]) for row in rows] == list(range(len(rows)))


def test_two_requests_with_one_key_do_not_spoil_each_other(place: NewPlace) -> None:
    with place().service() as service:
        asked = question(service, max_tokens=8, key="key-1", body=b"the body")
        bystander = question(service, max_tokens=8)

        async def both() -> list[Any]:
            asking = (answer(service, one) for one in (asked, asked, bystander))
            return await asyncio.gather(*asking, return_exceptions=True)

        first, second, third = asyncio.run(both())
        failed = [one for one in (first, second) if isinstance(one, Problem)]
        assert [one.code for one in failed] == ["idempotency_key_in_use"]
        assert not isinstance(third, BaseException)


def test_quotas_are_reserved_for_what_runs(place: NewPlace) -> None:
    where = place(tokens=20)
    with where.service() as service:

        async def two() -> list[Any]:
            asked = question(service, max_tokens=12)
            asking = (answer(service, asked) for _ in range(2))
            return await asyncio.gather(*asking, return_exceptions=True)

        refused = [one for one in asyncio.run(two()) if isinstance(one, Problem)]
        assert [one.code for one in refused] == ["tenant_quota_exceeded"]
        # What the other one does not use comes back: it is worth asking again.
        assert refused[0].headers == {"retry-after": "5"}
        assert "reserved" in str(refused[0])
        assert Access(ledger_of(service)).tenant(TENANT).tokens_used <= 12


def test_a_counted_budget_is_reserved_for_what_runs(place: NewPlace) -> None:
    """For whoever it runs: the budget is everybody's."""
    where = place("certified", epsilon=2.0)
    # It does not run: nothing that is reserved is used, or comes back.
    service = where.idle_service(queries=6, on_exhausted="error")
    try:

        async def at_once() -> None:
            async with service.answering(question(service, max_tokens=4)):
                for tenant in (TENANT, OPERATOR):
                    with pytest.raises(Problem) as problem:
                        async with service.answering(question(service, max_tokens=3, tenant=tenant)):
                            pytest.fail("more was promised than the budget pays for")
                    assert (problem.value.status, problem.value.code) == (429, "privacy_budget_exhausted")
                    assert "pays for 6 more, of which 4 are reserved" in str(problem.value)
                    # What is not used comes back: it is worth asking again.
                    assert problem.value.headers == {"retry-after": "5"}
                async with service.answering(question(service, max_tokens=2)):
                    pass  # exactly what is left

        asyncio.run(at_once())
        assert service.books.balance.private_answers == 0
    finally:
        service.engine.start()
        service.close()


def test_a_token_that_is_booked_at_once_is_the_requests_own(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was booked earlier is known before the engine has the texts, which may book a step at once."""
    with place().service() as service:
        submit = service.engine.submit

        def slowly(texts: Sequence[Text]) -> None:
            submit(texts)
            until = time.monotonic() + 60
            while not texts[0].paid:
                assert time.monotonic() < until, "no token was booked"
                time.sleep(0.01)

        async def counts() -> tuple[int, int]:
            async with service.answering(question(service)) as (conversation, pieces):
                async for _ in pieces:
                    pass
                return conversation.booked_tokens, conversation.completion_tokens

        monkeypatch.setattr(service.engine, "submit", slowly)
        booked_tokens, completion_tokens = asyncio.run(counts())
    assert booked_tokens == completion_tokens > 0


def test_a_full_queue_turns_away_and_nothing_is_charged(place: NewPlace) -> None:
    where = place()
    service = where.idle_service(slots=1, waiting=2)  # it does not run: everything waits
    try:

        async def three() -> None:
            async with service.answering(question(service, choices=3)):
                with pytest.raises(Problem) as problem:
                    async with service.answering(question(service)):
                        pytest.fail("one more than a slot and two places to wait was taken")
                assert (problem.value.status, problem.value.code) == (503, "overloaded")
                assert problem.value.headers["retry-after"]

        asyncio.run(three())
        assert service.books.balance.private_answers == 0
    finally:
        service.engine.start()
        service.close()


def test_texts_come_and_go_between_steps(place: NewPlace) -> None:
    """Continuous batching: more texts than slots, of all lengths, and everybody gets an own answer."""
    where = place()
    with where.service(slots=2, chunk=4) as service:
        asked = [
            question(service, f"{PROMPT} {'carries ' * (n % 5)}", max_tokens=1 + n % 7) for n in range(11)
        ]
        found = answers(service, *asked)
        assert service.engine.load == (0, 0)
    with where.opened() as ledger:
        for one, (request, (text,)) in zip(asked, found, strict=True):
            tokens = [row[2] for row in booked(ledger, f"{request}/0")]
            assert 1 <= len(tokens) <= one.max_tokens
            ends = tokens[-1] in service.tokenizer.stop_tokens
            assert service.tokenizer.decode(tokens[:-1] if ends else tokens) == text


def test_closing_finishes_what_was_begun(place: NewPlace) -> None:
    where = place()
    service = where.idle_service()
    service.engine.start()

    async def ask_and_close() -> str:
        async with service.answering(question(service, max_tokens=10)) as (_, pieces):
            text = (await anext(pieces)).text
            closing = asyncio.ensure_future(asyncio.to_thread(service.close))
            async for written in pieces:
                text += written.text
            await closing
            with pytest.raises(Problem, match="shutting down"):
                service.engine.submit([])
        return text

    text = asyncio.run(ask_and_close())
    with where.opened() as ledger:
        tokens = [row[2] for row in booked(ledger)]
    ends = tokens[-1] in service.tokenizer.stop_tokens
    assert service.tokenizer.decode(tokens[:-1] if ends else tokens) == text


def eventually(check: Callable[[], bool]) -> bool:
    """Whether something comes true within half a minute."""
    pause = threading.Event()
    return any(check() or pause.wait(0.1) for _ in range(300))


@pytest.mark.parametrize("fault", ["open", "step", "read", "close"])
def test_a_fault_of_the_executor_loses_no_request(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Everybody is told and nothing of it is said; slots and claims are given back; the next is answered."""
    with place().service(slots=2) as service:
        executor = service.engine._executor
        working = getattr(executor, fault)

        def faulty(*_: Any) -> Any:
            raise RuntimeError("0.123 nats of a private number")

        monkeypatch.setattr(executor, fault, faulty)
        asked = [question(service, key=f"key-{n}", body=b"x") for n in range(4)]

        async def ask() -> list[Any]:
            return await asyncio.gather(*(answer(service, one) for one in asked), return_exceptions=True)

        found = asyncio.run(ask())
        told = [one for one in found if isinstance(one, Problem)]
        assert {one.code for one in told} <= {"internal_error", "ledger_unavailable"}
        assert not any("0.123" in str(one) for one in told)
        # Who was answered before a slot failed to close has the answer; of all others everybody is told.
        assert [one for one in found if isinstance(one, BaseException)] == told
        assert len(told) == 4 if fault != "close" else 1 <= len(told) < 4
        monkeypatch.setattr(executor, fault, working)
        assert eventually(lambda: service.ready and not service._open)
        if fault != "close":  # whose slots stay open, for it failed to close them
            assert all(text for _, texts in answers(service, *asked) for text in texts)


def test_a_ledger_that_fails_at_the_door_is_opened_anew(place: NewPlace) -> None:
    """Whoever notices: a key that cannot be read is as good a sign as a step that cannot be booked."""
    with place().service() as service:

        def fail(_: Ledger) -> None:
            raise LedgerUnavailable("the connection is lost")

        with pytest.raises(Problem) as problem:
            asyncio.run(service.with_ledger(fail))
        assert problem.value.code == "ledger_unavailable"
        assert eventually(lambda: service.ready)
        assert answers(service, question(service))


def test_a_ledger_with_other_terms_is_not_taken_for_the_same(place: NewPlace, tmp_path: Path) -> None:
    where = place("submix", epsilon=5.0)
    service = where.idle_service()
    try:
        service.books.shut()
        for file in tmp_path.glob("ledger.db*"):
            file.unlink()
        where.anchor.unlink()
        place("submix-guarded", epsilon=7.0)  # another account of the same ensemble in the same place
        assert "other terms than at the start" in str(service.books.reopen())
        assert not service.books.is_open
    finally:
        service.close()


def test_whoever_is_not_finished_when_the_time_is_over_is_told_so(place: NewPlace) -> None:
    """And what was booked is what left; nothing more is taken."""
    where = place()
    with where.service() as service:
        received = ""

        async def ask() -> None:
            nonlocal received
            async with service.answering(question(service, max_tokens=100)) as (_, pieces):
                async for written in pieces:
                    received += written.text
                    service.engine.give_up()

        with pytest.raises(Problem) as problem:
            asyncio.run(ask())
        assert (problem.value.status, problem.value.code) == (503, "shutting_down")
        with pytest.raises(Problem, match="shutting down"):
            answers(service, question(service))
    with where.opened() as ledger:
        verify(ledger, "people")
        assert service.tokenizer.decode([row[2] for row in booked(ledger)]).startswith(received)


def test_idle_slots_are_places_too(place: NewPlace) -> None:
    """One place to wait and three slots take a request for four answers."""
    with place().service(slots=3, waiting=1) as service:
        ((_, texts),) = answers(service, question(service, choices=4))
        assert len(texts) == 4


def test_a_shorter_limit_than_then_cuts_what_is_told_again(place: NewPlace) -> None:
    where = place()
    with where.service() as service:
        ((_, (long,)),) = answers(service, question(service, max_tokens=9, key="key", body=b"x"))
        ((_, (short,)),) = answers(service, question(service, max_tokens=2, key="key", body=b"x"))
        ends = service.tokenizer.stop_tokens
    with where.opened() as ledger:
        tokens = [row[2] for row in booked(ledger)]
    for told, most in ((long, 9), (short, 2)):
        assert told == service.tokenizer.decode([token for token in tokens[:most] if token not in ends])


def test_a_question_that_fits_is_read_in_one_piece(place: NewPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a turn's budget is not spent on the beginning of the next question."""
    with place("certified").service(slots=4, chunk=8) as service:
        executor: Any = service.engine._executor
        read, pieces = executor.read, []

        def remembered(slot: int, tokens: Sequence[int]) -> None:
            pieces.append(len(tokens))
            read(slot, tokens)

        monkeypatch.setattr(executor, "read", remembered)
        ids = list(question(service).prompts[0])
        asked = [question(service, prompts=[(ids * 9)[: length + 1]], max_tokens=1) for length in (6, 5, 20)]
        answers(service, *asked)
    assert sorted(pieces) == [4, 5, 6, 8, 8]
