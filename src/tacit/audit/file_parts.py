"""What parts of ``audit.json`` are made of: measured numbers, shares, bounds, counts; checked as read."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from tacit.statistics import Estimate


def _estimate(content: Any) -> Estimate:
    if isinstance(content, Estimate):
        return content
    try:
        found = Estimate.from_json(content)
        numbers = (found.value, found.low, found.high, found.confidence)
        if not (isinstance(found.method, str) and all(type(one) in (int, float) for one in numbers)):
            raise TypeError
        math.ulp(found.value), math.ulp(found.low), math.ulp(found.high)  # no float holds 10 ** 400
    except (KeyError, TypeError, OverflowError):
        raise ValueError("expected value, low, high, confidence and method") from None
    if math.isinf(found.value):
        raise ValueError("expected a value that is finite")
    return found


def _bits_of_a_text(content: Any) -> Any:
    # A count of candidates is text: 40000 ** 5 is more than other readers' numbers hold.
    return content if isinstance(content, int | str) and not isinstance(content, bool) else repr(content)


Measured = Annotated[Estimate, PlainValidator(_estimate)]
Confidence = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=True)]  # an infinite epsilon is written as "inf"
Count = Annotated[int, Field(ge=0)]
Candidates = Annotated[int, BeforeValidator(_bits_of_a_text), Field(ge=1)]


class Part(BaseModel):
    """A part of the file: frozen, and open to keys of later versions."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)
