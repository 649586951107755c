"""A confidentiality certificate as somebody reads it who has to sign it. Every bound is rounded up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tacit.privacy.confidentiality import Indistinguishable, MissRate
    from tacit.privacy.crt_certificate import Certificate, GroupPromise

NEIGHBOURS: Final = (
    "Two corpora are neighbours if one is the other with a secret replaced by <MASK> where it stands. The "
    "data point stays, so that one example of DP-SGD is replaced: replace-one."
)
ASSUMPTIONS: Final = (
    "text was split into data points of whole sentences, then deduplicated, then redacted, in this order",
    "duplicates and redacted spans became the same <MASK>, and every data point with a <MASK> is private",
    "the tagger's labels had settled on the masked text; sentences that never settle count as missed",
    "a secret is caught only where its data point comes out as if the secret had been masked beforehand: "
    "one that is a whole labelled span is; all others count as missed, masked or not",
    "a step's batch is wholly public or a Poisson sample of the private part, clipped and noised; an empty "
    "batch takes its step; the divisor is the expected batch",
)
NOT_COVERED: Final = (
    "that there is a secret, and the text around it: only what the secret says is protected",
    "tokenizer, vocabulary, hyper-parameters and early stopping, where they were chosen on the private text",
    "public data points, which are trained on as they are",
)

_DIGITS = 4


def once(points: int) -> str:
    """What has to hold of the sentence that a secret stands in."""
    if points == 1:
        return "a secret stands in one data point, whose sentence occurs once in the corpus"
    return f"masking a secret changes at most {points:,} data points, those of repeated sentences included"


def who_misses(points: int) -> str:
    """Which policies leave a secret in public text, as far as that is bounded."""
    return "both policies miss" if points == 1 else "the conservative policy misses"


def up(value: float) -> str:
    """A bound with four digits that matter, rounded up: a printed bound must still be one."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - _DIGITS + 1)
    nearest = float(f"{value:.{_DIGITS - 1}e}")
    # Up to a billionth, which every bound is padded by more than: 0.1 * 8e-5 is not 8.001e-06.
    return f"{nearest if nearest >= value * (1 - 1e-9) else nearest + unit:.{_DIGITS}g}"


def paragraphs(certificate: Certificate) -> list[tuple[str, list[str]]]:
    """Headings and the sentences below them."""
    return [
        *promises(certificate),
        ("For comparison: the paper's accounting", _paper(certificate)),
        ("Holds if", [f"- {one}" for one in certificate.assumptions]),
        ("Does not cover", [f"- {one}" for one in (*NOT_COVERED, *certificate.outside)]),
    ]


def promises(certificate: Certificate) -> list[tuple[str, list[str]]]:
    """The same without comparison and conditions."""
    found = [
        ("Neighbours", [NEIGHBOURS]),
        ("Training on the private part", _training(certificate)),
        ("Screening policies", _policies(certificate)),
        ("Each secret", _each_secret(certificate)),
        ("A random secret (Bayesian)", _random_secret(certificate)),
    ]
    if certificate.groups or certificate.uniform:
        found.append(("Several secrets together", _groups(certificate)))
    return found


def miss_rates(certificate: Certificate) -> str:
    """What the statements take for granted of the policies, and how it is known."""
    gamma, delta2, sure = certificate.gamma, certificate.delta2, certificate.confidence
    return (
        f"the redaction policy misses at most {up(gamma.upper)} of such secrets ({_evidence(gamma)}), the "
        f"conservative one {up(delta2.upper)} ({_evidence(delta2)})"
    ) + ("" if sure is None else f"; what was measured holds together with confidence {sure:.4g}")


def how_sure(certificate: Certificate) -> str:
    """A sentence for the headline: the samples that the rates are from, and the confidence of all of it."""
    rates = [rate for rate in (certificate.gamma, certificate.delta2) if rate.sample is not None]
    if not rates:
        return ""
    sizes = " and ".join(dict.fromkeys(f"{rate.sample:,}" for rate in rates))
    on = f"measured on {sizes} labelled secrets"
    sure = f"with confidence {certificate.confidence:.4g}."
    if len(rates) == 1:
        return f" A miss rate was {on} and is within its bound {sure}"
    return f" Miss rates were {on}; both are within their bounds {sure}"


def _training(certificate: Certificate) -> list[str]:
    process, part = certificate.process, certificate.private_part
    lines = [
        f"Poisson-sampled DP-SGD: sampling rate {process.sampling_rate:.6g}, noise multiplier "
        f"{process.noise_multiplier:.6g}, {process.steps:,} steps.",
    ]
    if process.reveals_nothing:
        lines.append("Nothing private was sampled, and nothing of it is revealed.")
    lines.append(f"One data point replaced: {_bound(certificate.training)}, by the whole privacy curve.")
    if part is None:
        return lines
    if part.points == 0:
        return [*lines, "There are no private data points."]
    lines.append(f"{part.points:,} private data points, of which {part.bare:,} are a bare <MASK>.")
    if part.without_bare is None:
        lines.append("All of them are bare masks: there is no private text.")
    elif part.bare:
        lines.append(
            f"Bare masks train nothing and make the sampling rate smaller. Without them, as many steps with "
            f"batches as large on {part.points - part.bare:,} data points would give "
            f"{_epsilon(part.without_bare)}."
        )
    return lines


def _policies(certificate: Certificate) -> list[str]:
    lines = [
        f"The redaction policy misses (does not catch) at most gamma = {up(certificate.gamma.upper)} of the "
        f"secrets ({_evidence(certificate.gamma)}).",
    ]
    if certificate.unprotected:
        lines.append(
            f"The conservative policy misses at most delta2 = {up(certificate.delta2.upper)} "
            f"({_evidence(certificate.delta2)})."
        )
    else:
        lines.append(f"delta2 = 0 ({certificate.delta2.source}).")
    if certificate.confidence is not None:
        lines.append(
            f"The miss rates are within these bounds with confidence {certificate.confidence:.4g}, if the "
            "labelled secrets were drawn like those that are to be protected."
        )
    return lines


def _each_secret(certificate: Certificate) -> list[str]:
    points = certificate.secret_points
    where = "its sentence occurs once" if points == 1 else f"masking it changes up to {points:,} data points"
    lines = [
        "A secret that the redaction policy catches: epsilon 0, delta 0, if its sentence occurs once. "
        "Training sees the same text with and without it. Caught is more than masked: a secret that is "
        "masked as a part of a longer span, or in several, can be missed."
        if points == 1
        else "A secret that the redaction policy catches: no better than one that it misses, for masking it "
        "may turn repeats of its sentence into other points.",
        f"Any other secret in a private data point: {_bound(certificate.missed)}, if {where}.",
    ]
    if certificate.unprotected:
        lines.append(
            "A secret that both policies miss: no bound. It is trained on as it stands; delta2 is how often "
            "that happens."
        )
    return lines


def _random_secret(certificate: Certificate) -> list[str]:
    lines = [
        "The attacker knows everything but the secret, which is drawn like those that gamma and delta2 are "
        "about."
    ]
    if certificate.secret_points > 1:
        lines.append(
            "A secret in a repeated sentence changes data points even where it is caught, so that nothing is "
            "gained from gamma."
        )
    if math.isinf(certificate.random_secret.epsilon):
        missed = certificate.delta2.upper
        if certificate.secret_points == 1:
            missed = min(certificate.gamma.upper, missed)
        if missed >= certificate.delta:
            lines.append(
                f"No finite epsilon at delta {certificate.delta:g}: secrets that "
                f"{who_misses(certificate.secret_points)} may be {up(missed)} of all, more than delta "
                "allows. Label more text, take a conservative policy that misses less, or make everything "
                "private."
            )
        else:
            lines.append(
                f"No finite epsilon at delta {certificate.delta:g}: too little noise for so small a delta."
            )
    else:
        lines.append(f"By the whole privacy curve: {_bound(certificate.random_secret)}.")
    if certificate.unprotected:
        lines.append(f"With delta2 on top of delta: {_bound(certificate.with_delta2)}.")
    lines.append(f"By Theorem 8.3 as printed, from one point of the curve: {_bound(certificate.at_point)}.")
    return lines


def _groups(certificate: Certificate) -> list[str]:
    lines = [_group(one) for one in certificate.groups]
    if certificate.uniform is not None:
        lines.append(_group(certificate.uniform) + " This is uniform confidentiality.")
    return lines


def _group(group: GroupPromise) -> str:
    assumed = " It was assumed that none of these points is public." if group.assumed_private else ""
    return (
        f"{group.name}: {group.points:,} data points differ; {_bound(group.direct)}. By composing single "
        f"bounds: {_bound(group.composition)}.{assumed}"
    )


def _paper(certificate: Certificate) -> list[str]:
    paper = certificate.paper
    return [
        f"{paper.label[:1].upper()}{paper.label[1:]}. Of a secret in one data point.",
        f"Training {_bound(paper.training)}; a random secret {_bound(paper.at_point)} from one point, "
        f"{_bound(paper.random_secret)} by the curve.",
    ]


def _evidence(rate: MissRate) -> str:
    if rate.confidence is None:
        return rate.source
    return f"{rate.source}, one-sided Clopper-Pearson bound at {rate.confidence:g}"


def _bound(bound: Indistinguishable) -> str:
    if math.isinf(bound.epsilon):
        return f"no finite epsilon at delta {up(bound.delta)}" if bound.delta else "no bound"
    if bound.delta >= 1:
        return f"epsilon {up(bound.epsilon)}, delta 1, which says nothing"
    return f"epsilon {up(bound.epsilon)}, delta {up(bound.delta)}"


def _epsilon(epsilon: float) -> str:
    return "no finite epsilon" if math.isinf(epsilon) else f"epsilon {up(epsilon)}"
