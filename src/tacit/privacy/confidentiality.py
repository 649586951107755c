"""What confidentially redacted training (CRT) promises about secrets: Zhao, Li and Wang 2022, made exact.

Neighbours (Definition 2). A secret is replaced by <MASK> where it stands, and its data point stays: one
example is *replaced*. The authors accounted DP-SGD for an example added or removed, which understates; those
figures are labelled ``paper``.

u is the number of data points in which screen(D) and screen(D') differ, D' having every secret in question
masked. It is counted by screening twice. The paper's count (missed unique secrets, Theorem 8.2) is too small:
deduplication merges sentences that differ in masked secrets only.

The random secret (Definition 4, Proposition 6, Theorem 8.3). Let r be the law of the weights from D'. With
probability 1 - gamma the redaction policy catches x and the weights have law r too, *identically*: training
sees the same bytes. Else it misses x: with probability m both policies do (law s, unprotected), and otherwise
the law is q, which is one replaced example away from r: H_a(q||r), H_a(r||q) <= delta_A(log a). So
P = (1 - gamma) r + (gamma - m) q + m s is compared with r. Write a' = 1 + gamma (a - 1), a >= 1.

  P over r.  P - a' r = (gamma - m) q - gamma a r + m s. On any event this is at most
             (gamma - m) (q - a r) + m, as gamma a >= (gamma - m) a. So H_a'(P||r) <= gamma delta_A + m; with
             m = 0 it is gamma H_a(q||r) exactly (advanced joint convexity).
  r over P.  r - a' P <= c r - a' (gamma - m) q with c = 1 - a' (1 - gamma) = gamma (1 - (a-1)(1-gamma)).
             If c <= 0 this is at most 0. Else split c r by the shares (gamma - m)/gamma and m/gamma. The
             first part is (gamma - m)/gamma of c r - a' gamma q, where c <= gamma and a' gamma >= a c
             (as (a-1)^2 (1-gamma) >= 0): at most (gamma - m) delta_A. The second is at most m.

Hence in *both* directions delta_B(log a') <= gamma delta_A(log a) + m, and m <= min(gamma, delta2). The
reverse direction is never the larger one where delta_A is the larger of both, as it is here. The expression
grows with gamma and with delta2, so upper bounds of either may stand in for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from scipy import stats

from tacit.errors import InputError
from tacit.privacy.conversions import check_delta, check_epsilon, check_number
from tacit.privacy.dpsgd import PrivacyCurve, check_group

CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Indistinguishable:
    """Definition 1: any event has at most e^epsilon times the probability plus delta, in both directions.

    ``epsilon`` is infinite where there is no bound.
    """

    epsilon: float
    delta: float

    @property
    def says_nothing(self) -> bool:
        """Whether every pair of worlds is this close."""
        return math.isinf(self.epsilon) or self.delta >= 1

    def to_json(self) -> dict[str, Any]:
        """JSON form. JSON has no infinity; it is written as a string."""
        return {
            "epsilon": str(self.epsilon) if math.isinf(self.epsilon) else self.epsilon,
            "delta": self.delta,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Indistinguishable:
        """Inverse of :meth:`to_json`."""
        return cls(float(fields["epsilon"]), fields["delta"])


@dataclass(frozen=True)
class MissRate:
    """How often a policy misses a secret, at most, and how that is known.

    upper       the bound that every statement uses
    misses      of ``sample`` labelled secrets; None where nothing was measured
    confidence  with which ``upper`` is one (Clopper-Pearson, one-sided); None where it was not measured
    source      in words
    """

    upper: float
    misses: int | None
    sample: int | None
    confidence: float | None
    source: str

    def __post_init__(self) -> None:
        check_rate("miss rate", self.upper)

    @classmethod
    def measured(
        cls, misses: int, sample: int, *, confidence: float = CONFIDENCE, kinds: Iterable[str] = ()
    ) -> MissRate:
        """From labelled secrets: the miss rate is at most ``upper``, but for a chance of 1 - confidence.

        ``kinds`` are the labels of the sample: the rate says nothing about secrets of other kinds.
        """
        if not (isinstance(misses, int) and isinstance(sample, int) and 0 <= misses <= sample):
            raise InputError(
                f"misses={misses} of sample={sample}: give whole numbers, 0 <= misses <= sample."
            )
        if not 0 < confidence < 1:
            raise InputError(f"confidence={confidence}: must lie strictly between 0 and 1, e.g. 0.95.")
        upper = 1.0 if misses == sample else float(stats.beta.ppf(confidence, misses + 1, sample - misses))
        of_kinds = f" of the kinds {', '.join(kinds)}" if (kinds := sorted(kinds)) else ""
        source = f"{misses:,} of {sample:,} labelled secrets{of_kinds} missed"
        return cls(upper, misses, sample, confidence, source)

    @classmethod
    def assumed(cls, rate: float) -> MissRate:
        """A rate that somebody gives. The statement is about as good as that."""
        return cls(rate, None, None, None, "assumed, not measured")

    @classmethod
    def all_private(cls) -> MissRate:
        """Of a conservative policy that there is none of: everything is private, and nothing is missed."""
        return cls(0.0, None, None, None, "no conservative policy: every data point is private")

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> MissRate:
        """Inverse of :meth:`to_json`."""
        return cls(**{name: fields[name] for name in ("upper", "misses", "sample", "confidence", "source")})


def calibrated_rates(calibration: Mapping[str, Any]) -> tuple[MissRate, MissRate | None]:
    """gamma and delta2 of what `tacit corpus calibrate` wrote; no delta2 where everything is private."""
    try:
        kinds = set(calibration["recall"]) - {"ALL"}
        gamma, delta2 = (
            MissRate.measured(found["misses"], found["n"], confidence=found["confidence"], kinds=kinds)
            for found in (calibration["gamma"], calibration["delta2"])
        )
        everything = calibration["thresholds"]["conservative"] is None
    except (KeyError, TypeError):
        raise InputError("this is no calibration; write one with tacit corpus calibrate.") from None
    return gamma, None if everything else delta2


def each_secret(
    curve: PrivacyCurve, delta: float, *, caught: bool, private: bool = True, paper: bool = False
) -> Indistinguishable:
    """Definition 2, Proposition 5 and Theorem 8.1: one secret, whatever it is.

    ``caught``   its data point comes out as if it had been masked beforehand: training sees the same bytes
                 with and without it, (0, 0). True of a whole labelled span of a settled point, if its
                 sentence occurs once; not of everything that is masked.
    ``private``  else, whether its data point is private, because the conservative policy labels it or because
                 everything is. Where it is not, it is trained on as it stands, and there is no bound.

    The curve is for as many replaced examples as the secret changes data points: one, if its sentence
    occurs once.
    """
    _check_neighbours(curve, paper=paper)
    if caught:
        return Indistinguishable(0.0, 0.0)
    if not private:
        return Indistinguishable(math.inf, 0.0)
    return Indistinguishable(curve.epsilon_at(delta), delta)


def group_by_composition(epsilon: float, delta: float, points: int) -> Indistinguishable:
    """Definition 3, Proposition 5 and Theorem 8.2 from one point of the curve: (u eps, u e^(u eps) delta).

    u = ``points``. True, and soon empty: its delta passes 1. Computed from the whole process
    (``dpsgd_curve(..., group=u)``) the same group costs far less.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_group(points)
    if points == 0:
        return Indistinguishable(0.0, 0.0)
    exponent = points * epsilon + math.log(points) + math.log(delta)
    return Indistinguishable(points * epsilon, math.exp(exponent) if exponent < 0 else 1.0)


def random_secret_at_point(
    epsilon: float, delta: float, *, gamma: float, delta2: float = 0.0
) -> Indistinguishable:
    """Theorem 8.3 as printed: (log(1 + gamma (e^eps - 1)), gamma delta + delta2)."""
    check_epsilon(epsilon)
    check_number("delta", delta)
    if not 0 <= delta <= 1:
        raise InputError(f"delta={delta}: must lie between 0 and 1, e.g. 1e-5.")
    missed = _missed_by_both(gamma, delta2)
    if gamma == 0:
        return Indistinguishable(0.0, 0.0)
    return Indistinguishable(_shrunk(epsilon, gamma), min(1.0, gamma * delta + missed))


def random_secret_delta(
    curve: PrivacyCurve, epsilon: float, *, gamma: float, delta2: float = 0.0, paper: bool = False
) -> float:
    """The delta of a random secret at an epsilon: gamma delta_A(log(1 + (e^eps - 1)/gamma)) + delta2."""
    _check_neighbours(curve, paper=paper)
    check_epsilon(epsilon)
    missed = _missed_by_both(gamma, delta2)
    if gamma == 0:
        return 0.0
    stretched = math.inf
    if epsilon < 700 and math.expm1(epsilon) / gamma < math.inf:
        stretched = math.log1p(math.expm1(epsilon) / gamma)
    # Both worlds are alike but for a missed secret, so that no event differs by more than gamma.
    return min(gamma, gamma * curve.delta_at(stretched) + missed)


def random_secret_epsilon(
    curve: PrivacyCurve, delta: float, *, gamma: float, delta2: float = 0.0, paper: bool = False
) -> float:
    """The epsilon of a random secret at a wanted delta; infinite where delta2 leaves nothing of it.

    Inverts :func:`random_secret_delta` over the whole curve. Theorem 8.3 as printed is one point of it and
    gives more: 0.159 instead of 0.11 for eps 1, delta 8e-5, gamma 0.1.
    """
    _check_neighbours(curve, paper=paper)
    check_delta(delta)
    missed = _missed_by_both(gamma, delta2)
    if gamma <= delta:
        return 0.0
    share = (delta - missed) / gamma
    if share <= 0:
        return math.inf
    return _shrunk(curve.epsilon_at(share), gamma)


def check_rate(name: str, rate: float) -> None:
    """Refuse what is no probability."""
    check_number(name, rate)
    if not 0 <= rate <= 1:
        raise InputError(f"{name}={rate}: a probability from 0 to 1 is needed, e.g. 0.1.")


def _check_neighbours(curve: PrivacyCurve, *, paper: bool) -> None:
    """A masked secret is a replaced example; other neighbours are the authors', and must be asked for."""
    if curve.adjacency != "replace-one" and not paper:
        raise InputError(
            f"adjacency='{curve.adjacency}': a secret that is masked is an example that is replaced; give a "
            "curve for 'replace-one', or ask for the paper's figures."
        )


def _missed_by_both(gamma: float, delta2: float) -> float:
    check_rate("gamma", gamma)
    check_rate("delta2", delta2)
    return min(gamma, delta2)


def _shrunk(epsilon: float, gamma: float) -> float:
    """log(1 + gamma (e^eps - 1)), rounded up."""
    if math.isinf(epsilon):
        return math.inf
    if epsilon > 30:  # e^eps - 1 is e^eps there
        return min(epsilon, epsilon + math.log(gamma + math.exp(-epsilon)))
    return min(epsilon, math.log1p(gamma * math.expm1(epsilon)) * (1 + 1e-14))
