"""What is promised, as a value that travels with every Run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["none", "public"]
Unit = Literal["user", "block"]


@dataclass(frozen=True)
class Guarantee:
    """A promise about what a Run's weights reveal, or the plain statement that there is none.

    kind        ``none``: trained on private text without protection. ``public``: trained on text that was
                declared public; there is nobody to protect.
    unit        whose text is at stake: one ``user``, or one ``block`` of tokens.
    assumptions what must be true for the statement to hold.
    caveat      what the reader must not conclude.
    outside     choices that were made on the private text and that no statement here covers.
    """

    kind: Kind
    unit: Unit
    assumptions: tuple[str, ...] = ()
    caveat: str = ""
    outside: tuple[str, ...] = ()

    @classmethod
    def unprotected(cls, unit: Unit, *, outside: tuple[str, ...] = ()) -> Guarantee:
        """Plain fine-tuning: the weights may hold any training text verbatim."""
        return cls(
            kind="none",
            unit=unit,
            caveat="The weights may reproduce any training text word for word.",
            outside=outside,
        )

    @classmethod
    def public_text(cls, unit: Unit, *, outside: tuple[str, ...] = ()) -> Guarantee:
        """Training on text that the operator declared public."""
        return cls(
            kind="public",
            unit=unit,
            assumptions=("the recipe's corpus is public, as declared by `corpus.public: true`",),
            caveat="Covers nobody: the text was declared public.",
            outside=outside,
        )

    def __str__(self) -> str:
        """One line, as shown beside every number of the Run."""
        headline = {"none": "no guarantee", "public": "public text"}[self.kind]
        outside = f" Outside any guarantee: {'; '.join(self.outside)}." if self.outside else ""
        return f"{headline} (unit: {self.unit}). {self.caveat}{outside}"

    def to_json(self) -> dict[str, Any]:
        """JSON form, as saved in ``privacy.json``."""
        fields = asdict(self)
        fields["statement"] = str(self)
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Guarantee:
        """Inverse of :meth:`to_json`."""
        return cls(
            kind=fields["kind"],
            unit=fields["unit"],
            assumptions=tuple(fields["assumptions"]),
            caveat=fields["caveat"],
            outside=tuple(fields["outside"]),
        )
