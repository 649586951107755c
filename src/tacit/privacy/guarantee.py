"""What is promised, as a value that travels with every Run and every answer."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from tacit.errors import InputError
from tacit.privacy.certificates import ExtractionCertificate, extraction_certificate
from tacit.privacy.conversions import (
    DpFormula,
    RenyiBound,
    UserTheorem,
    check_delta,
    check_epsilon,
    check_renyi,
    part_to_user,
    rdp_group,
    rdp_to_dp,
)
from tacit.privacy.dpsgd import Adjacency

DELTA: Final = 1e-5  # at which a Renyi bound is shown as (epsilon, delta)
Kind = Literal["none", "public", "empirical", "rop", "rdp", "dp", "confidentiality"]
Unit = Literal["user", "block", "part", "example", "secret"]

Neighbours = Literal["removed part", "null part", "changed part"]
_NEIGHBOURS: dict[Neighbours, str] = {
    "removed part": "neighbours: the ensemble with one part less",
    "null part": (
        "neighbours: one part's text is replaced by nothing; the number of parts is fixed and public"
    ),
    "changed part": "neighbours: one part's text is changed arbitrarily; the number of parts is public",
}
_ADJACENT: dict[Adjacency, str] = {
    "add-remove": "neighbours: one {unit}'s text more or less (add-remove)",
    "replace-one": "neighbours: one {unit}'s text is replaced by another (replace-one)",
}
_PERFECT = (
    "the policy labels every secret, and nothing else is labelled or not by what a secret says, as declared"
)
_MASKED = "neighbours: a secret is replaced by <MASK> where it stands, and its data point stays (replace-one)"
About = Literal["each secret", "a random secret", "a group of secrets"]
_ONE_DIRECTIONAL = (
    "One-directional (paper): bounds how far this corpus' answers are from a neighbour's; the reverse may be "
    "larger."
)
_HEADLINES = {
    "none": "no guarantee",
    "public": "public text",
    "empirical": "empirical, no formal guarantee",
    "rop": "instance-specific, not DP",
    "rdp": "Renyi differential privacy",
    "dp": "differential privacy",
    "confidentiality": "confidentiality of secrets",
}


@dataclass(frozen=True)
class Guarantee:
    """A promise about what weights or answers reveal, or the plain statement that there is none.

    kind        ``none``: made from private text without protection. ``public``: made from text that was
                declared public; there is nobody to protect. ``empirical``: meant to leak less; attacks
                may tell, nothing is proven. ``rop``: Renyi operational privacy, measured on this corpus and
                partition and true of no other. ``rdp`` and ``dp``: true of every corpus.
                ``confidentiality``: of what a secret says, compared with a mask in its place; not of the text
                around it.
    unit        whose text is at stake: one ``user``, one ``block`` of tokens, one ``part`` of a partition,
                one training ``example``, or one ``secret`` in the text.
    order       the Renyi order (``rop``, ``rdp``).
    epsilon     the bound in nats; infinite (``dp``, ``confidentiality``) where nothing is promised after all.
    delta       the failure probability (``dp``, ``confidentiality``).
    assumptions what must be true for the statement to hold.
    caveat      what the reader must not conclude.
    outside     choices that were made on the private text and that no statement here covers.
    group       how many units may change together.
    """

    kind: Kind
    unit: Unit
    assumptions: tuple[str, ...] = ()
    caveat: str = ""
    outside: tuple[str, ...] = ()
    order: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    group: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.unit not in get_args(Unit):
            raise InputError(f"'{self.kind}' per '{self.unit}' is no guarantee that tacit knows.")
        if self.kind in ("rop", "rdp"):
            if self.order is None or self.epsilon is None or self.delta is not None:
                raise InputError(
                    f"a guarantee of kind '{self.kind}' has an order and an epsilon, and no delta."
                )
            check_renyi(self.order, self.epsilon)
            if self.epsilon == 0:
                raise InputError("epsilon=0: a Renyi guarantee has a loss above 0; what is free is 'public'.")
        elif self.kind in ("dp", "confidentiality"):
            if self.epsilon is None or self.delta is None or self.order is not None:
                raise InputError(
                    f"a guarantee of kind '{self.kind}' has an epsilon and a delta, and no order."
                )
            check_epsilon(self.epsilon)
            if self.delta:
                check_delta(self.delta)
        elif (self.order, self.epsilon, self.delta) != (None, None, None):
            raise InputError(f"a guarantee of kind '{self.kind}' has no numbers.")
        if self.group < 1:
            raise InputError(f"group={self.group}: a group has at least one member.")

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

    @classmethod
    def regularised(cls, unit: Unit, *, outside: tuple[str, ...] = ()) -> Guarantee:
        """Training that was steered away from what tells authors apart: measured, never proven."""
        return cls(
            kind="empirical",
            unit=unit,
            caveat="Nothing is proven: the weights may still reproduce training text word for word.",
            outside=outside,
        )

    @classmethod
    def operational(
        cls,
        *,
        order: float,
        epsilon: float,
        neighbours: Neighbours = "removed part",
        one_directional: bool = False,
        outside: tuple[str, ...] = (),
    ) -> Guarantee:
        """SubMix: the answers with and without one part, for this corpus and partition, to a common stop.

        ``one_directional``: charges bound the divergence of this corpus' answers from a neighbour's, and not
        the neighbour's from this corpus'.
        """
        caveat = "Says nothing about other corpora, secrets shared by parts, or the moment of STOP."
        return cls(
            kind="rop",
            unit="part",
            order=order,
            epsilon=epsilon,
            assumptions=(
                _NEIGHBOURS[neighbours],
                "every part's charges were computed on this corpus and this partition",
                "both worlds are cut at the same stopping time",
                "each secret is confined to one part",
            ),
            caveat=f"{_ONE_DIRECTIONAL} {caveat}" if one_directional else caveat,
            outside=outside,
        )

    @classmethod
    def certified(
        cls,
        *,
        order: float,
        epsilon: float,
        neighbours: Neighbours = "null part",
        outside: tuple[str, ...] = (),
    ) -> Guarantee:
        """Certified and individual mixing: the answers with one part's text replaced by nothing.

        Noise (subsample-and-aggregate, GNMax) is priced for one part's text changed arbitrarily.
        """
        caveat = "Holds for a part, not at once for a user: the user's figure is the conversion."
        if neighbours == "changed part":
            caveat = "Holds for a part's text changed arbitrarily, and so for one user's at the same figure."
        return cls(
            kind="rdp",
            unit="part",
            order=order,
            epsilon=epsilon,
            assumptions=(
                _NEIGHBOURS[neighbours],
                "the partition does not depend on the text, and each person is in one part",
                "members are trained independently from one public model",
            ),
            caveat=caveat,
            outside=outside,
        )

    @classmethod
    def dp_sgd(
        cls,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        unit: Literal["example", "user"] = "example",
        outside: tuple[str, ...] = (),
    ) -> Guarantee:
        """DP-SGD: the weights with and without one example's or one user's text, or with another in place."""
        caveat = "Holds for one example: a person whose text is in several is a group of as many."
        if unit == "user":
            caveat = "Holds for all of one user's text together."
        if math.isinf(epsilon):
            caveat = "No finite epsilon: so little noise protects nobody."
        return cls(
            kind="dp",
            unit=unit,
            epsilon=epsilon,
            delta=delta,
            assumptions=(
                _ADJACENT[adjacency].format(unit=unit),
                f"every step samples each {unit} by an independent coin, clips, and adds Gaussian noise",
                "each gradient is a function of the example alone, and empty batches take their step",
            ),
            caveat=caveat,
            outside=outside,
        )

    @classmethod
    def confidentiality(
        cls,
        *,
        epsilon: float,
        delta: float,
        about: About,
        assumptions: tuple[str, ...] = (),
        group: int = 1,
        outside: tuple[str, ...] = (),
    ) -> Guarantee:
        """CRT: the weights with a secret, and with a mask in its place.

        ``each secret``      whatever it is, as long as its data point is private (Definition 2)
        ``a random secret``  drawn like those whose miss rates were measured (Definition 4)
        """
        caveat = {
            "each secret": "Protects what a secret says, not that there is one.",
            "a random secret": (
                "Holds for a secret drawn at random, not for each: one that both policies miss is trained on "
                "as it stands."
            ),
            "a group of secrets": f"For secrets in up to {group} data points together.",
        }[about]
        if math.isinf(epsilon):
            caveat = "No finite epsilon: nothing is promised."
        return cls(
            kind="confidentiality",
            unit="secret",
            epsilon=epsilon,
            delta=delta,
            assumptions=(_MASKED, f"about: {about}", *assumptions),
            caveat=caveat,
            outside=outside,
            group=group,
        )

    @classmethod
    def selective(
        cls, *, epsilon: float, delta: float, perfect_policy: bool, outside: tuple[str, ...] = ()
    ) -> Guarantee:
        """Selective DP-SGD (Shi et al. 2021): its epsilon with a policy that misses nothing, else infinite.

        A secret that the policy misses is trained on without noise, so that no finite epsilon is true.
        """
        return cls(
            kind="confidentiality",
            unit="secret",
            epsilon=epsilon if perfect_policy else math.inf,
            delta=delta if perfect_policy else 0.0,
            assumptions=(
                "neighbours: one sensitive span is replaced by another of as many tokens (selective DP)",
                *((_PERFECT,) if perfect_policy else ()),
            ),
            caveat=(
                "Void as soon as the policy misses one secret; one that misses none could redact instead."
                if perfect_policy
                else "No finite epsilon: a secret that the policy misses is trained on without protection."
            ),
            outside=outside,
        )

    def to_dp(self, delta: float, *, formula: DpFormula = "tight") -> Guarantee:
        """The (epsilon, delta) form of a Renyi guarantee."""
        order, epsilon = self._renyi("converted to (epsilon, delta)")
        converted = rdp_to_dp(order=order, epsilon=epsilon, delta=delta, formula=formula)
        return replace(self, kind="dp", order=None, epsilon=converted, delta=delta)

    def to_user(self, *, theorem: UserTheorem = "better") -> Guarantee:
        """From a part's text removed to a user's text replaced.

        Where a part's text may change arbitrarily there is nothing to convert: a user's is in one part.
        """
        order, epsilon = self._renyi("converted to one user")
        if self.unit != "part":
            raise InputError(f"this guarantee is per {self.unit} already; only one per part is converted.")
        if self.group > 1:
            raise InputError("convert to one user first and to a group of users then.")
        bound = RenyiBound(order, epsilon)
        if self.neighbours != "changed part":
            bound = part_to_user(order=order, epsilon=epsilon, theorem=theorem)
        kept = tuple(one for one in self.assumptions if one not in _NEIGHBOURS.values())
        return replace(
            self,
            unit="user",
            order=bound.order,
            epsilon=bound.epsilon,
            assumptions=("neighbours: one user's text, arbitrarily replaced", *kept),
            caveat="Neighbours differ in one user's text, arbitrarily replaced.",
        )

    def for_group(self, size: int) -> Guarantee:
        """For ``size`` units whose text changes together."""
        order, epsilon = self._renyi("converted to a group")
        bound = rdp_group(order=order, epsilon=epsilon, size=size)
        if self.group > 1:
            raise InputError("this guarantee is for a group already; give the whole group's size at once.")
        caveat = f"For groups of up to {size}. {self.caveat}".strip()
        return replace(self, order=bound.order, epsilon=bound.epsilon, caveat=caveat, group=size)

    def extraction(self, candidates: float) -> ExtractionCertificate:
        """How likely a secret of one unit, or of a group of them, can be guessed at most."""
        order, epsilon = self._renyi("turned into an extraction certificate")
        whose = f"one {self.unit}" if self.group == 1 else f"a group of {self.group} {self.unit}s"
        return extraction_certificate(order=order, epsilon=epsilon, candidates=candidates, whose=whose)

    def _renyi(self, wish: str) -> tuple[float, float]:
        if self.kind == "rop":
            raise InputError(
                f"Operational privacy holds for one corpus only and cannot be {wish}; "
                "use the certified or individual mechanism for a guarantee that can."
            )
        if self.kind != "rdp" or self.order is None or self.epsilon is None:
            raise InputError(f"A guarantee of kind '{self.kind}' cannot be {wish}: it is no Renyi bound.")
        return self.order, self.epsilon

    @property
    def neighbours(self) -> Neighbours | None:
        """Which worlds are compared, where they differ in a part."""
        return next((name for name, words in _NEIGHBOURS.items() if words in self.assumptions), None)

    @property
    def adjacency(self) -> Adjacency | Literal["mask"] | None:
        """Which worlds are compared, where they differ in one example's text, one user's, or in a secret."""
        if _MASKED in self.assumptions:
            return "mask"
        words = {name: text.format(unit=self.unit) for name, text in _ADJACENT.items()}
        return next((name for name, text in words.items() if text in self.assumptions), None)

    @property
    def promises(self) -> bool:
        """Whether there is a formal statement that could be false: one with a finite bound."""
        return self.kind in ("rop", "rdp", "dp", "confidentiality") and self.epsilon != math.inf

    @property
    def numbers(self) -> str:
        """The bound alone, e.g. ``(order 2, epsilon 2)``; empty where there is none."""
        if self.kind in ("dp", "confidentiality") and self.epsilon == math.inf:
            return "without a finite epsilon"
        if self.order is not None:
            return f"(order {_figure(self.order)}, epsilon {_figure(self.epsilon)})"
        if self.epsilon is not None:
            return f"(epsilon {_figure(self.epsilon)}, delta {_figure(self.delta)})"
        return ""

    def __str__(self) -> str:
        """One line, as shown beside every number of the Run: a Renyi bound also as (epsilon, delta)."""
        headline = " ".join(filter(None, (_HEADLINES[self.kind], self.numbers)))
        if self.kind == "rdp":
            headline += f", which implies {self._as_dp()}"
        if self.adjacency in _ADJACENT:
            headline += f", {self.adjacency}"
        outside = f" Outside any guarantee: {'; '.join(self.outside)}." if self.outside else ""
        return f"{headline} (unit: {self.unit}). {self.caveat}{outside}"

    def _as_dp(self) -> str:
        if self.order is not None and math.isinf(self.order):  # pure: nothing is left to delta
            return f"(epsilon {_figure(self.epsilon)}, delta 0)"
        return self.to_dp(DELTA).numbers

    def to_json(self) -> dict[str, Any]:
        """JSON form, as saved in ``privacy.json``. JSON has no infinity; it is written as a string."""
        fields = {
            name: str(value) if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(self).items()
        }
        fields["statement"] = str(self)
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Guarantee:
        """Inverse of :meth:`to_json`."""
        number = {name: fields.get(name) for name in ("order", "epsilon", "delta")}
        return cls(
            kind=fields["kind"],
            unit=fields["unit"],
            assumptions=tuple(fields["assumptions"]),
            caveat=fields["caveat"],
            outside=tuple(fields["outside"]),
            group=fields.get("group", 1),
            **{name: None if value is None else float(value) for name, value in number.items()},
        )


def _figure(value: float | None) -> str:
    return f"{value:.6g}"
