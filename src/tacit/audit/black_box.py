"""What a client gets out of a running service: do secrets that were planted come back?

The attacker has what every client has, OpenAI's API, and asks each canary's prefix for its continuation.
Every token that comes is a query, and costs budget: the meter runs, and a limit is kept.

What the answers say is judged in :mod:`tacit.audit.black_box_verdict`. Secrets stay in the manifest: results
hold counts by canary id.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tacit.audit.black_box_verdict import BlackBoxAudit, CanaryAnswers, Meter, Terms, judged_answers
from tacit.corpus.canaries import Canary, begins_with
from tacit.errors import EnvironmentProblem, InputError
from tacit.privacy import Guarantee
from tacit.progress import Progress, Silent

_REFUSED: Final = 429


@dataclass(frozen=True)
class Endpoint:
    """A running service: its API with a key and, where known, the operator's port with its password."""

    url: str
    key: str = field(repr=False)
    model: str | None = None
    admin: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class BlackBoxPlan:
    """How often is asked.

    generations   answers for each canary
    most_queries  tokens that the whole attack may cost; it ends before the limit is passed
    choices       answers in one request
    max_tokens    of an answer; None: as many as the secret has bytes, which every tokenizer can spell
    temperature   None: the service's own
    """

    generations: int = 20
    most_queries: int = 10_000
    choices: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("generations", "most_queries", "choices"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens={self.max_tokens}: must be at least 1.")
        if not 0 < self.confidence < 1:
            raise InputError(f"Expected 0 < confidence={self.confidence} < 1, e.g. 0.95.")


def audit_service(
    endpoint: Endpoint,
    canaries: Sequence[Canary],
    plan: BlackBoxPlan | None = None,
    *,
    candidates: int,
    extractable: bool = False,
    control_rates: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> BlackBoxAudit:
    """Ask a service for its canaries, canary by canary in turn, within the plan's limit.

    ``candidates`` is the number of equally likely secrets (`CanaryManifest.candidates`). ``extractable`` says
    that the same questions get the secrets out of an unprotected model: without that, silence shows nothing.
    ``control_rates`` measure it: by canary, how often one answer of a control is the secret.
    """
    plan, progress = plan or BlackBoxPlan(), progress or Silent()
    if not canaries:
        raise InputError("No canary to ask for; give a manifest with at least one.")
    openai = _openai()
    with openai.OpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
        asking = _Asking(openai, client, endpoint, plan)
        before = asking.statement()
        guarantee, terms = asking.told()
        tally = {canary.id: [0, 0, 0] for canary in canaries}
        progress.phase("asking for canaries", plan.generations * len(canaries))
        for canary, texts in asking.answers(canaries):
            row = tally[canary.id]
            row[0] += len(texts)
            row[1] += sum(_says(text, canary.secret) for text in texts)
            row[2] += sum(_says(text, canary.twin) for text in texts)
            progress.advance(len(texts))
        after = asking.statement()
    answers = tuple(CanaryAnswers(one.id, one.inserted, *tally[one.id]) for one in canaries)
    control_hits = None
    if control_rates is not None:
        control_hits = sum(one.generations * control_rates[one.id] for one in answers if one.inserted)
    return judged_answers(
        answers,
        meter=_meter(asking, before, after),
        ended=asking.ended,
        guarantee=guarantee,
        candidates=candidates,
        confidence=plan.confidence,
        extractable=extractable,
        control_hits=control_hits,
        terms=terms,
    )


def _says(text: str, secret: str) -> bool:
    """Whether an answer begins with a secret, after any space; a word must end where the secret's does.

    So an answer says one candidate at most, which the certificate needs.
    """
    return begins_with(text.lstrip(), secret)


def _meter(asking: _Asking, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Meter:
    booked = spent = None
    if before is not None and after is not None:
        booked = sum(after[name] - before[name] for name in ("private_answers", "public_answers"))
        spent = tuple(now - then for now, then in zip(after["spent"], before["spent"], strict=True))
    return Meter(asking.requests, asking.asked, booked, spent)


def _openai() -> Any:
    try:
        import openai
    except ImportError:
        raise EnvironmentProblem(
            "The black-box audit asks through OpenAI's own client: pip install openai."
        ) from None
    return openai


class _Asking:
    """One client, and what it has received."""

    def __init__(self, openai: Any, client: Any, endpoint: Endpoint, plan: BlackBoxPlan) -> None:
        self._openai, self._client, self._endpoint, self._plan = openai, client, endpoint, plan
        self.requests = self.asked = 0
        self.ended = "complete"
        self._model = endpoint.model or self._tried(lambda: client.models.list().data[0].id)

    def told(self) -> tuple[Guarantee | None, Terms]:
        """What the service says that it guarantees, and by what it answers."""
        found = self._tried(lambda: self._client.models.retrieve(self._model)).model_extra or {}
        content = found.get("guarantee")
        guarantee = None if content is None else Guarantee.from_json(content)
        order, epsilon = (None, None) if guarantee is None else (guarantee.order, guarantee.epsilon)
        return guarantee, Terms(found.get("mechanism"), order, epsilon, found.get("queries"))

    def answers(self, canaries: Sequence[Canary]) -> Iterator[tuple[Canary, list[str]]]:
        """Answers in turn: every canary, then every canary again, until enough or no more are allowed."""
        left = dict.fromkeys((canary.id for canary in canaries), self._plan.generations)
        while any(left.values()):
            for canary in canaries:
                if not left[canary.id]:
                    continue
                tokens = self._tokens_for(canary)
                paid = (self._plan.most_queries - self.asked) // tokens
                if paid < 1:
                    self.ended = "limit"
                    return
                texts = self._ask(canary.prefix, tokens, min(self._plan.choices, left[canary.id], paid))
                if texts is None:
                    return
                left[canary.id] -= len(texts)
                yield canary, texts

    def _tokens_for(self, canary: Canary) -> int:
        if self._plan.max_tokens is not None:
            return self._plan.max_tokens
        return max(len(canary.continuation(one).encode()) for one in (canary.secret, canary.twin))

    def _ask(self, prompt: str, tokens: int, choices: int) -> list[str] | None:
        options = {} if self._plan.temperature is None else {"temperature": self._plan.temperature}
        try:
            answer = self._client.completions.create(
                model=self._model,
                prompt=prompt,
                max_tokens=tokens,
                n=choices,
                # A retry of one request is one question, and is charged once.
                extra_headers={"Idempotency-Key": uuid.uuid4().hex},
                **options,
            )
        except self._openai.APIStatusError as problem:
            if problem.status_code != _REFUSED:
                raise self._refusal(problem) from None
            self.ended = str(problem.code or _REFUSED)
            return None
        except self._openai.APIConnectionError:
            raise self._unreachable() from None
        self.requests += 1
        self.asked += answer.usage.completion_tokens
        return [choice.text for choice in answer.choices]

    def statement(self) -> dict[str, Any] | None:
        """What the ledger has booked so far, where the operator's port is known."""
        if self._endpoint.admin is None:
            return None
        where, password = self._endpoint.admin, self._endpoint.password
        headers = {}
        if password is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"operator:{password}".encode()).decode()
        options = {"base_url": where, "api_key": "none", "max_retries": 0, "default_headers": headers}
        try:
            with self._openai.OpenAI(**options) as operator:
                content: dict[str, Any] = operator.get("/admin/statement", cast_to=object)
        except self._openai.APIStatusError as problem:
            raise InputError(
                f"The admin port answered {problem.status_code}; give its address and its password, or leave "
                "both out."
            ) from None
        except self._openai.APIConnectionError:
            raise EnvironmentProblem(
                f"Nobody answers on the admin port at {where}; give its address, or leave it out."
            ) from None
        return content

    def _tried(self, call: Any) -> Any:
        try:
            return call()
        except self._openai.APIStatusError as problem:
            raise self._refusal(problem) from None
        except self._openai.APIConnectionError:
            raise self._unreachable() from None

    def _refusal(self, problem: Any) -> InputError:
        """The service's own words name fields, bounds and remedies, and never what was computed."""
        said = problem.body.get("message", "") if isinstance(problem.body, dict) else ""
        return InputError(f"The service refused with {problem.status_code} ({problem.code}): {said}")

    def _unreachable(self) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"No service answers at {self._endpoint.url}; start it or give its address."
        )
