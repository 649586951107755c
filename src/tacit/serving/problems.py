"""What can be wrong with a request, as OpenAI's clients expect to be told.

Messages name fields, bounds and remedies: never a number that was computed from private text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tacit.errors import (
    BudgetExceeded,
    InputError,
    KeyReused,
    LedgerRefused,
    LedgerUnavailable,
    TacitError,
)

_log = logging.getLogger("tacit.serving")
_LATER = {"retry-after": "5"}
_NEVER_RETRY = {"x-should-retry": "false"}


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.kind = kind
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """OpenAI's shape; the code is a string, always."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid_key() -> Problem:
    """No key, or not one of ours."""
    return Problem(
        401,
        "invalid_api_key",
        "A valid API key is needed: Authorization: Bearer KEY.",
        headers={"www-authenticate": "Bearer"},
    )


def unknown_model(name: str, known: str) -> Problem:
    """A model that is not served here."""
    return Problem(
        404, "model_not_found", f"There is no model {name[:200]!r} here; use {known!r}.", param="model"
    )


def unsupported(param: str, why: str) -> Problem:
    """A field that is refused because it would be ignored, or would tell more than was paid for."""
    return Problem(400, "unsupported_parameter", f"{param} is not supported: {why}.", param=param)


def invalid(message: str, param: str | None = None) -> Problem:
    """A value that cannot be used."""
    return Problem(400, "invalid_value", message, param=param)


def too_long(tokens: int, context: int) -> Problem:
    """Question and answer do not fit."""
    return Problem(
        400,
        "context_length_exceeded",
        f"The prompt and max_tokens need {tokens:,} tokens together, and the context has {context:,}; "
        "shorten one of them.",
        param="prompt",
    )


def far_too_long(characters: int, context: int) -> Problem:
    """A text that is refused by its characters."""
    return Problem(
        400,
        "context_length_exceeded",
        f"The prompt has {characters:,} characters, and the context has {context:,} tokens; shorten it.",
        param="prompt",
    )


def quota(left: int, reserved: int, wanted: int) -> Problem:
    """A tenant's tokens do not suffice; those reserved come back where answers end early."""
    lower = f"lower max_tokens{_or_wait(left, wanted)} or " if left else ""
    return Problem(
        429,
        "tenant_quota_exceeded",
        f"The request may need {wanted:,} tokens, and {left:,} are left of the quota"
        f"{_reserved(reserved, left)}; {lower}ask the operator for more.",
        kind="insufficient_quota",
        headers=_LATER if wanted <= left else _NEVER_RETRY,
    )


def exhausted(left: int, reserved: int, wanted: int) -> Problem:
    """A counted budget does not pay for the request: all numbers are public."""
    known = (
        f"pays for {left:,} more{_reserved(reserved, left)}; lower max_tokens{_or_wait(left, wanted)}"
        if left
        else "is used up"
    )
    return Problem(
        429,
        "privacy_budget_exhausted",
        f"The request may need {wanted:,} private tokens, and the privacy budget {known}.",
        kind="insufficient_quota",
        headers=_LATER if wanted <= left else _NEVER_RETRY,
    )


def _reserved(tokens: int, left: int) -> str:
    tokens = min(tokens, left)  # a quota can be lowered while answers are written
    return f", of which {tokens:,} are reserved for answers that are being written" if tokens else ""


def _or_wait(left: int, wanted: int) -> str:
    return ", try again later" if wanted <= left else ""


def overloaded() -> Problem:
    """The queue is full."""
    return Problem(
        503,
        "overloaded",
        "Too many requests are waiting; try again in a moment.",
        kind="server_error",
        headers={"retry-after": "1"},
    )


def ledger_unavailable() -> Problem:
    """Nothing can be charged, so nothing private leaves."""
    return Problem(
        503,
        "ledger_unavailable",
        "The ledger cannot be written; no answer leaves until it can.",
        kind="server_error",
        headers={"retry-after": "5"},
    )


def closing() -> Problem:
    """The service is shutting down."""
    return Problem(
        503,
        "shutting_down",
        "The service is shutting down.",
        kind="server_error",
        headers={"retry-after": "5"},
    )


def still_running() -> Problem:
    """A second request with the Idempotency-Key of one that is being answered."""
    return Problem(
        409,
        "idempotency_key_in_use",
        "A request with this Idempotency-Key is being answered; try again when it is done.",
        headers={"retry-after": "1"},
    )


def internal() -> Problem:
    """A fault of ours; what it was is in the operator's log."""
    return Problem(
        500, "internal_error", "The service failed; its operator can see why.", kind="server_error"
    )


def problem_of(error: TacitError) -> Problem:
    """An error of the library as an answer."""
    if isinstance(error, KeyReused):
        return Problem(409, "idempotency_key_reused", str(error), headers=_NEVER_RETRY)
    if isinstance(error, LedgerUnavailable):
        return ledger_unavailable()
    if isinstance(error, InputError) and not isinstance(error, BudgetExceeded | LedgerRefused):
        return invalid(str(error))
    log_fault(error)
    return internal()  # whose words might depend on private text


def log_fault(fault: BaseException, **known: str) -> None:
    """What the operator can see of a fault: its kind, not its words, which might depend on private text."""
    _log.error("fault", extra={"event": "fault", "detail": type(fault).__name__, **known})
