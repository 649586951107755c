"""What a client gets out of a running service: do secrets that were planted come back?

The attacker has what every client has, OpenAI's API, and asks each canary's prefix for its continuation.
Every token that comes is a query, and costs budget: the meter runs, and a limit is kept.

Tests, all exact, none of which assumes that generations are independent:

- **Phantom disclosure.** A secret and its twin were drawn alike, and only the secret was planted. Had the
  service no memory, swapping the two would change nothing; so among canaries where one came back more often
  than the other, the secret is ahead in a fair coin's number of cases (sign test over canaries). Counting
  generations instead would be wrong: one lucky canary answers many of them alike.
- **In against out.** Canaries were inserted by a coin. Without memory, how many of either kind came back is
  hypergeometric (Fisher).
- **The claim.** (order, epsilon)-RDP for every corpus bounds the chance that one answer is the secret of one
  part (extraction certificate) by b. So N answers hold N b secrets in expectation at most, and h or more with
  probability at most N b / h (Markov), however answers depend on each other. SubMix's instance-specific claim
  bounds no extraction: nothing here contradicts it.

Secrets stay in the manifest: results hold counts by canary id.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from scipy import stats

from tacit.audit.verdicts import Verdict
from tacit.corpus.canaries import Canary
from tacit.errors import EnvironmentProblem, InputError
from tacit.privacy import Guarantee
from tacit.progress import Progress, Silent
from tacit.statistics import Estimate, clopper_pearson

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


@dataclass(frozen=True)
class CanaryAnswers:
    """How often a canary's secret, and its twin, came back."""

    id: str
    inserted: bool
    generations: int = 0
    secret: int = 0
    twin: int = 0


@dataclass(frozen=True)
class Meter:
    """What the attack cost.

    asked   tokens received, by the service's own count in each answer
    booked  answers that the operator's statement counts more than before; None where nobody may read it
    spent   nats per part that were charged meanwhile, this attack's and everybody else's
    """

    requests: int
    asked: int
    booked: int | None
    spent: tuple[float, ...] | None

    @property
    def undercounted(self) -> bool:
        """Whether tokens left that the ledger does not know of."""
        return self.booked is not None and self.booked < self.asked


@dataclass(frozen=True)
class BlackBoxAudit:
    """What came back, and what it says: the operator's, since it tells which secrets a service knows."""

    answers: tuple[CanaryAnswers, ...]
    meter: Meter
    ended: str  # "complete", "limit", or the code with which the service refused
    secret_rate: Estimate
    twin_rate: Estimate
    chance: float
    p_twins: float
    p_inserted: float
    certificate: float | None  # the most that one answer may be the secret, by the claim
    p_claim: float
    guarantee: str
    confidence: float
    extractable: bool

    @property
    def leaks(self) -> bool:
        """Whether secrets came back more than chance explains: by either test, each at half the error."""
        return 2 * min(self.p_twins, self.p_inserted) <= 1 - self.confidence

    @property
    def verdict(self) -> Verdict:
        """About the claim. Silence supports it only where the same questions extract without protection."""
        if self.meter.undercounted or self.p_claim <= 1 - self.confidence:
            return "contradicted"
        asked = sum(one.generations for one in self.answers if one.inserted)
        enough = self.ended == "complete" and asked >= self.needed_hits
        if self.certificate is not None and self.extractable and enough and not self.leaks:
            return "supported"
        return "inconclusive"

    @property
    def needed_hits(self) -> float:
        """How many answers would have had to be secrets for a contradiction; infinite without a claim."""
        if self.certificate is None:
            return math.inf
        asked = sum(one.generations for one in self.answers if one.inserted)
        return math.ceil(asked * self.certificate / (1 - self.confidence))

    @property
    def reason(self) -> str:
        """The verdict in a sentence."""
        hits = sum(one.secret for one in self.answers if one.inserted)
        asked = sum(one.generations for one in self.answers if one.inserted)
        if self.meter.undercounted:
            return f"{self.meter.asked:,} tokens were received and {self.meter.booked:,} booked."
        if self.verdict == "contradicted":
            return (
                f"{hits:,} of {asked:,} answers were planted secrets; the claim allows that with probability "
                f"{self.p_claim:.2g} at most."
            )
        if self.certificate is None:
            return f"{hits:,} of {asked:,} answers were planted secrets; the claim bounds no extraction."
        told = (
            f"{hits:,} of {asked:,} answers were planted secrets; {self.needed_hits:,.0f} would contradict."
        )
        return told if self.extractable else f"{told} Whether an unprotected model gives them is not known."

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {
            "secret_rate": self.secret_rate.to_json(),
            "twin_rate": self.twin_rate.to_json(),
            "leaks": self.leaks,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def audit_service(
    endpoint: Endpoint,
    canaries: Sequence[Canary],
    plan: BlackBoxPlan | None = None,
    *,
    candidates: int,
    extractable: bool = False,
    progress: Progress | None = None,
) -> BlackBoxAudit:
    """Ask a service for its canaries, canary by canary in turn, within the plan's limit.

    ``candidates`` is the number of equally likely secrets (`CanaryManifest.candidates`). ``extractable`` says
    that the same questions get the secrets out of an unprotected model: without that, silence shows nothing.
    """
    plan, progress = plan or BlackBoxPlan(), progress or Silent()
    if not canaries:
        raise InputError("No canary to ask for; give a manifest with at least one.")
    openai = _openai()
    with openai.OpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
        asking = _Asking(openai, client, endpoint, plan)
        before = asking.statement()
        guarantee = asking.guarantee()
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
    return judged_answers(
        answers,
        meter=_meter(asking, before, after),
        ended=asking.ended,
        guarantee=guarantee,
        candidates=candidates,
        confidence=plan.confidence,
        extractable=extractable,
    )


def judged_answers(
    answers: tuple[CanaryAnswers, ...],
    *,
    meter: Meter,
    ended: str,
    guarantee: Guarantee | None,
    candidates: int,
    confidence: float = 0.95,
    extractable: bool = False,
) -> BlackBoxAudit:
    """From counts to p-values: a pure function of what came back."""
    inserted = [one for one in answers if one.inserted]
    asked, hits = sum(one.generations for one in inserted), sum(one.secret for one in inserted)
    certificate = None
    if guarantee is not None and guarantee.kind == "rdp":
        certificate = guarantee.extraction(candidates).bound
    p_claim = 1.0 if certificate is None or not hits else min(1.0, asked * certificate / hits)
    return BlackBoxAudit(
        answers=answers,
        meter=meter,
        ended=ended,
        secret_rate=clopper_pearson(hits, asked, confidence=confidence),
        twin_rate=clopper_pearson(sum(one.twin for one in inserted), asked, confidence=confidence),
        chance=1 / candidates,
        p_twins=_sign_test(inserted),
        p_inserted=_fisher(answers),
        certificate=certificate,
        p_claim=p_claim,
        guarantee="no claim" if guarantee is None else str(guarantee),
        confidence=confidence,
        extractable=extractable,
    )


def _sign_test(inserted: Sequence[CanaryAnswers]) -> float:
    ahead = sum(one.secret > one.twin for one in inserted)
    differing = sum(one.secret != one.twin for one in inserted)
    return float(stats.binom.sf(ahead - 1, differing, 0.5)) if differing else 1.0


def _fisher(answers: Sequence[CanaryAnswers]) -> float:
    """By canary: came back at least once or never, inserted or not."""
    table = [
        [sum(one.inserted is kind and bool(one.secret) is came for one in answers) for came in (True, False)]
        for kind in (True, False)
    ]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)


def _says(text: str, secret: str) -> bool:
    """Whether an answer begins with a secret, after any space; a word must end where the secret's does.

    So an answer says one candidate at most, which the certificate needs.
    """
    said = text.lstrip()
    if not said.startswith(secret):
        return False
    following = said[len(secret) : len(secret) + 1]
    return not (secret[-1:].isalpha() and following.isalpha())


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

    def guarantee(self) -> Guarantee | None:
        """What the service says that it guarantees."""
        found = self._tried(lambda: self._client.models.retrieve(self._model)).model_extra or {}
        content = found.get("guarantee")
        return None if content is None else Guarantee.from_json(content)

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
