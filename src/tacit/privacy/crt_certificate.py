"""The confidentiality certificate: everything that a CRT Run promises about secrets, to read and to sign.

A certificate is made from public numbers and from measured miss rates; nothing in it is a secret, but the
counts of data points are functions of the private text. In words every bound is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypedDict

from tacit.errors import InputError
from tacit.privacy.certificate_words import (
    ASSUMPTIONS,
    NEIGHBOURS,
    NOT_COVERED,
    how_sure,
    miss_rates,
    once,
    paragraphs,
    promises,
    up,
    who_misses,
)
from tacit.privacy.confidentiality import (
    Indistinguishable,
    MissRate,
    each_secret,
    group_by_composition,
    random_secret_at_point,
    random_secret_epsilon,
)
from tacit.privacy.conversions import check_delta
from tacit.privacy.dpsgd import DpSgdProcess, PrivacyCurve, check_group, dpsgd_curve
from tacit.privacy.guarantee import Guarantee

FORMAT: Final = 1
_NOTHING_MISSED = "secrets that the conservative policy misses, of which it was assumed that there are none"


@dataclass(frozen=True)
class GroupPromise:
    """Definition 3 for one group.

    points           u: data points that differ between the two screened corpora
    direct           computed from the whole process: the statement
    composition      (u eps, u e^(u eps) delta), as the paper has it
    assumed_private  whether nobody counted how many of the points are public: none, it was assumed
    """

    name: str
    points: int
    direct: Indistinguishable
    composition: Indistinguishable
    assumed_private: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "name": self.name,
            "points": self.points,
            "direct": self.direct.to_json(),
            "composition": self.composition.to_json(),
            "assumed_private": self.assumed_private,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> GroupPromise:
        """Inverse of :meth:`to_json`."""
        return cls(
            fields["name"],
            fields["points"],
            Indistinguishable.from_json(fields["direct"]),
            Indistinguishable.from_json(fields["composition"]),
            fields.get("assumed_private", False),
        )


@dataclass(frozen=True)
class PaperFigures:
    """The same training by the authors' accounting: an example added or removed. For comparison only."""

    training: Indistinguishable
    at_point: Indistinguishable
    random_secret: Indistinguishable
    label: str = "paper: add-remove, which understates; a masked secret is an example replaced"

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "training": self.training.to_json(),
            "at_point": self.at_point.to_json(),
            "random_secret": self.random_secret.to_json(),
            "label": self.label,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PaperFigures:
        """Inverse of :meth:`to_json`."""
        return cls(
            Indistinguishable.from_json(fields["training"]),
            Indistinguishable.from_json(fields["at_point"]),
            Indistinguishable.from_json(fields["random_secret"]),
            fields["label"],
        )


@dataclass(frozen=True)
class PrivatePart:
    """D_pri: its data points, and those that are a bare <MASK>, which train nothing.

    without_bare  epsilon of as many steps with as large batches, if only data points with text were there;
                  None where nothing would be left. A comparison: bare ones make the sampling rate smaller.
    """

    points: int
    bare: int
    without_bare: float | None

    def to_json(self) -> dict[str, Any]:
        """JSON form. JSON has no infinity; it is written as a string."""
        fields = asdict(self)
        if self.without_bare is not None and math.isinf(self.without_bare):
            fields["without_bare"] = str(self.without_bare)
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PrivatePart:
        """Inverse of :meth:`to_json`."""
        without = fields["without_bare"]
        return cls(fields["points"], fields["bare"], None if without is None else float(without))


@dataclass(frozen=True)
class Certificate:
    """What CRT promises at one delta.

    training          DP-SGD on the private part, for one data point replaced
    private_part      None where the counts were not given
    gamma, delta2     miss rates of the redaction policy and of the conservative one
    secret_points     data points that one secret changes: 1 if its sentence occurs once
    missed            a secret that the redaction policy misses, and whose data point is private
    unprotected       whether there are secrets that neither policy may catch: they have no bound each
    groups, uniform   several secrets together, and all of them
    outside           choices made on the private text, which nothing here covers
    at_point          the random secret by Theorem 8.3 as printed
    random_secret     the random secret by the whole curve: the statement; infinite where delta2 alone is more
    with_delta2       the same with delta2 on top of delta
    """

    process: DpSgdProcess
    delta: float
    training: Indistinguishable
    private_part: PrivatePart | None
    gamma: MissRate
    delta2: MissRate
    secret_points: int
    missed: Indistinguishable
    unprotected: bool
    groups: tuple[GroupPromise, ...]
    uniform: GroupPromise | None
    at_point: Indistinguishable
    random_secret: Indistinguishable
    with_delta2: Indistinguishable
    paper: PaperFigures
    outside: tuple[str, ...] = ()

    @property
    def confidence(self) -> float | None:
        """That both measured miss rates are within their bounds; None where neither was measured."""
        measured = [rate.confidence for rate in (self.gamma, self.delta2) if rate.confidence is not None]
        return 1 - sum(1 - one for one in measured) if measured else None

    @property
    def guarantee(self) -> Guarantee:
        """The headline: each secret where everything is private, else a random one."""
        if not self.unprotected:
            everything = self.delta2 == MissRate.all_private()
            return Guarantee.confidentiality(
                epsilon=self.missed.epsilon,
                delta=self.delta,
                about="each secret",
                assumptions=self.assumptions if everything else (*self.assumptions, miss_rates(self)),
                # That a policy misses nothing can be assumed and never measured: the headline says so.
                outside=self.outside if everything else (*self.outside, _NOTHING_MISSED),
            )
        bound = self.with_delta2 if self.random_secret.says_nothing else self.random_secret
        if bound.says_nothing:
            bound = Indistinguishable(math.inf, 0.0)
        found = Guarantee.confidentiality(
            epsilon=bound.epsilon,
            delta=bound.delta,
            about="a random secret",
            assumptions=(*self.assumptions, miss_rates(self)),
            outside=self.outside,
        )
        if found.promises:
            found = replace(found, caveat=found.caveat + how_sure(self))
        if bound.delta <= self.delta:
            return found
        more = (
            f"delta is {self.delta:g} and {up(bound.delta - self.delta)} more, for what "
            f"{who_misses(self.secret_points)}."
        )
        return replace(found, caveat=f"{found.caveat} {more[0].upper()}{more[1:]}")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true for the statements to hold."""
        return (*ASSUMPTIONS, once(self.secret_points))

    def promises(self) -> list[tuple[str, list[str]]]:
        """In words, what it promises: headings, and sentences below them."""
        return promises(self)

    def to_json(self) -> dict[str, Any]:
        """JSON form; the exact numbers, and the certificate in words."""
        return {
            "format": FORMAT,
            "neighbours": NEIGHBOURS,
            "process": self.process.to_json(),
            "delta": self.delta,
            "training": self.training.to_json(),
            "private_part": None if self.private_part is None else self.private_part.to_json(),
            "gamma": self.gamma.to_json(),
            "delta2": self.delta2.to_json(),
            "confidence": self.confidence,
            "secret_points": self.secret_points,
            # Only where its sentence occurs once is a caught secret no difference at all.
            "caught": Indistinguishable(0.0, 0.0).to_json() if self.secret_points == 1 else None,
            "missed": self.missed.to_json(),
            "unprotected": self.unprotected,
            "groups": [one.to_json() for one in self.groups],
            "uniform": None if self.uniform is None else self.uniform.to_json(),
            "at_point": self.at_point.to_json(),
            "random_secret": self.random_secret.to_json(),
            "with_delta2": self.with_delta2.to_json(),
            "paper": self.paper.to_json(),
            "assumptions": list(self.assumptions),
            "not_covered": list(NOT_COVERED),
            "outside": list(self.outside),
            "words": str(self),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Certificate:
        """Inverse of :meth:`to_json`."""
        if fields.get("format") != FORMAT:
            raise InputError("the certificate was written by another version of tacit; make it again.")
        part, uniform = fields["private_part"], fields["uniform"]
        return cls(
            process=DpSgdProcess.from_json(fields["process"]),
            delta=fields["delta"],
            training=Indistinguishable.from_json(fields["training"]),
            private_part=None if part is None else PrivatePart.from_json(part),
            gamma=MissRate.from_json(fields["gamma"]),
            delta2=MissRate.from_json(fields["delta2"]),
            secret_points=fields["secret_points"],
            missed=Indistinguishable.from_json(fields["missed"]),
            unprotected=fields["unprotected"],
            groups=tuple(GroupPromise.from_json(one) for one in fields["groups"]),
            uniform=None if uniform is None else GroupPromise.from_json(uniform),
            at_point=Indistinguishable.from_json(fields["at_point"]),
            random_secret=Indistinguishable.from_json(fields["random_secret"]),
            with_delta2=Indistinguishable.from_json(fields["with_delta2"]),
            paper=PaperFigures.from_json(fields["paper"]),
            outside=tuple(fields["outside"]),
        )

    def __str__(self) -> str:
        """The certificate in words: headings, and sentences below them."""
        return "\n\n".join(f"{heading}\n" + "\n".join(lines) for heading, lines in paragraphs(self))


def certify(
    process: DpSgdProcess,
    *,
    delta: float,
    gamma: MissRate,
    delta2: MissRate | None = None,
    private_points: int | None = None,
    bare_points: int = 0,
    secret_points: int = 1,
    groups: Mapping[str, int] | None = None,
    uniform_points: int | None = None,
    uniform_public_points: int | None = None,
    outside: tuple[str, ...] = (),
) -> Certificate:
    """Everything that CRT promises at ``delta``, for a process that trained on the private part.

    delta2          None: there is no conservative policy and every data point is private
    private_points  |D_pri|, of which ``bare_points`` are a bare <MASK>; None if not known
    secret_points   data points that masking one secret changes, the most for any: 1 if its sentence occurs
                    once
    groups          names of groups, and the data points that masking each changes (u)
    uniform_points  the same for all secrets together, of which ``uniform_public_points`` are public: what
                    differs there is trained on as it stands, and there is no bound

    Every u is counted by screening the corpus twice. Of how many of its points are public nothing is known
    for ``groups``, nor where ``uniform_public_points`` is None: that none is, is then an assumption, which
    the certificate names where there is public text. Takes about a second for each curve.
    """
    check_delta(delta)
    check_group(secret_points)
    one = dpsgd_curve(process, "replace-one")
    secret = one if secret_points == 1 else dpsgd_curve(process, "replace-one", group=secret_points)
    second = MissRate.all_private() if delta2 is None else delta2
    printed = _Rates(gamma=gamma.upper, delta2=second.upper)
    # A caught secret changes nothing only where its sentence occurs once. Where it may be repeated, masking
    # it turns repeats into other points, caught or not: nothing is gained from how often it is caught.
    rates = printed if secret_points == 1 else _Rates(gamma=1.0, delta2=second.upper)
    training = Indistinguishable(one.epsilon_at(delta), delta)
    missed = each_secret(secret, delta, caught=False)
    assumed = delta2 is not None
    promised = [_group(one, name, u, delta, assumed=assumed) for name, u in (groups or {}).items()]
    return Certificate(
        process=process,
        delta=delta,
        training=training,
        private_part=_private_part(process, delta, private_points, bare_points),
        gamma=gamma,
        delta2=second,
        secret_points=secret_points,
        missed=missed,
        unprotected=second.upper > 0,
        groups=tuple(promised),
        uniform=_uniform(one, uniform_points, uniform_public_points, delta, assumed=assumed),
        at_point=random_secret_at_point(missed.epsilon, delta, **rates),
        random_secret=Indistinguishable(random_secret_epsilon(secret, delta, **rates), delta),
        with_delta2=_with_delta2(secret, delta, rates),
        paper=_paper(process, delta, printed),
        outside=outside,
    )


def _group(one: PrivacyCurve, name: str, points: int, delta: float, *, assumed: bool) -> GroupPromise:
    curve = dpsgd_curve(one.process, one.adjacency, group=points)
    return GroupPromise(
        name,
        points,
        Indistinguishable(curve.epsilon_at(delta), delta),
        group_by_composition(one.epsilon_at(delta), delta, points),
        assumed,
    )


def _uniform(
    one: PrivacyCurve, points: int | None, public: int | None, delta: float, *, assumed: bool
) -> GroupPromise | None:
    if points is None:
        return None
    if public:
        nothing = Indistinguishable(math.inf, 0.0)
        return GroupPromise("all secrets", points, nothing, nothing)
    return _group(one, "all secrets", points, delta, assumed=assumed and public is None)


def _with_delta2(curve: PrivacyCurve, delta: float, rates: _Rates) -> Indistinguishable:
    total = delta + min(rates["gamma"], rates["delta2"])
    if total >= 1:
        return Indistinguishable(math.inf, 1.0)
    return Indistinguishable(random_secret_epsilon(curve, total, **rates), total)


class _Rates(TypedDict):
    gamma: float
    delta2: float


def _paper(process: DpSgdProcess, delta: float, rates: _Rates) -> PaperFigures:
    curve = dpsgd_curve(process, "add-remove")
    epsilon = curve.epsilon_at(delta)
    return PaperFigures(
        Indistinguishable(epsilon, delta),
        random_secret_at_point(epsilon, delta, **rates),
        Indistinguishable(random_secret_epsilon(curve, delta, paper=True, **rates), delta),
    )


def _private_part(process: DpSgdProcess, delta: float, points: int | None, bare: int) -> PrivatePart | None:
    if points is None:
        if bare:
            raise InputError(f"bare_points={bare}: give private_points as well, of which they are some.")
        return None
    if not 0 <= bare <= points:
        raise InputError(f"bare_points={bare}: must lie between 0 and private_points={points}.")
    if bare == points:
        return PrivatePart(points, bare, None)
    rate = min(1.0, process.sampling_rate * points / (points - bare))
    without = dpsgd_curve(DpSgdProcess(rate, process.noise_multiplier, process.steps), "replace-one")
    return PrivatePart(points, bare, without.epsilon_at(delta))
