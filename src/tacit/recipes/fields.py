"""What a value in a recipe may be, and what every section has in common."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

DEFAULT_MODEL: Final = "smollm2-135m-instruct"


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # which Python would take for 0 or 1
        raise ValueError("expected a number")
    return value


# Strict, so that true is no number and 1 is not true. Reals may be spelt as text: YAML reads 5e-4 as such.
Whole = Annotated[int, Field(strict=True)]
Real = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, Field(strict=True)]
# Upper bounds are far beyond use: they turn a slip of the keyboard into a sentence instead of a crash.
Share = Annotated[Real, Field(gt=0, lt=1)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]
Tokens = Annotated[Whole, Field(ge=2, le=2**20)]
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


class Section(BaseModel):
    """A part of a recipe: frozen, and with no key that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
