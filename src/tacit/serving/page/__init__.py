"""The two pages: the operator's, with everything, and the public one, with what everybody may know.

Rendered here, refreshed by a small script of our own; nothing is loaded from anywhere else, and the headers
forbid it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from tacit.ledger import OPERATOR
from tacit.privacy import Guarantee
from tacit.privacy.guarantee import DELTA
from tacit.serving.metrics import BINS
from tacit.serving.overview import Overview, when
from tacit.serving.service import Service

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_MOST_TENANTS = 12  # that the page lists
_YEAR = 31_557_600
_EVENTS = {
    "terms": "account opened",
    "model": "ensemble attached",
    "people": "whom it was trained on, as keyed hashes",
    "stop": "STOP: the public model answers",
    "training": "training booked",
    "repartition": "new partition",
    "anchor": "new anchor begun by hand",
}


def static_file(name: str) -> bytes:
    """A file that the pages load."""
    return (resources.files(__package__) / "static" / name).read_bytes()


def public_page(service: Service) -> str:
    """For everybody: model, guarantee, tokens. Nothing here depends on private text."""
    template = _environment().get_template("public.html")
    return template.render(
        service=service,
        words=_words(service),
        public_model=service.public_model,
        counted=_is(service, "counted"),
    )


def operator_page(service: Service, seen: Overview | None, verified: str) -> str:
    """The operator's page; without an overview where the ledger cannot be read."""
    return _render("operator.html", service, seen, verified)


def operator_figures(service: Service, seen: Overview | None, verified: str) -> str:
    """The part of the page that is refreshed."""
    return _render("figures.html", service, seen, verified)


def _render(template: str, service: Service, seen: Overview | None, verified: str) -> str:
    metrics = service.metrics
    running, waiting = service.engine.load
    tenants = sorted(seen.tenants, key=lambda tenant: -tenant.tokens_used) if seen else []
    return (
        _environment()
        .get_template(template)
        .render(
            service=service,
            public_model=service.public_model,
            fading=_is(service, "fading"),
            counted=_is(service, "counted"),
            seen=seen,
            tenants=tenants[:_MOST_TENANTS],
            operator=OPERATOR,
            events=_EVENTS,
            words=_words(service),
            verified=verified,
            running=running,
            waiting=waiting,
            requests=metrics.requests,
            served=metrics.served,
            latencies=[
                ("first token", metrics.first_token),
                ("between tokens", metrics.between_tokens),
                ("whole request", metrics.whole_request),
            ],
            weights=metrics.weights,
            weight_names=_weight_names(metrics.weights),
            names_of=_part_names,
            up=span(time.time() - service.started),
        )
    )


def _is(service: Service, spending: str) -> bool:
    return service.books.account.rule.spending == spending


def _words(service: Service) -> dict[str, Any]:
    """The guarantee in words."""
    guarantee = service.guarantee
    if guarantee is None:
        return {
            "statement": "No statement covers all answers: see the ledger's statement.",
            "sentences": [],
            "holds_if": [],
        }
    return {
        "statement": str(guarantee),
        "sentences": _sentences(guarantee, service.books.account.unit),
        "holds_if": guarantee.assumptions,
    }


def _sentences(guarantee: Guarantee, unit: str) -> list[str]:
    bound = f"within Renyi divergence {guarantee.epsilon:g} (order {guarantee.order:g})"
    if guarantee.kind == "rop":
        return [
            f"All answers together stay {bound} of those of a neighbouring ensemble, as measured on this "
            "corpus and this partition. It is true of no other corpus, and it is not differential privacy."
        ]
    sentences = [
        f"All answers together, whatever is asked and until the budget is gone, stay {bound} of those of a "
        "neighbouring ensemble. This is true of every corpus.",
        f"As differential privacy, for one {guarantee.unit}: {guarantee.to_dp(DELTA).numbers}.",
    ]
    if guarantee.unit == "part":
        converted = guarantee.to_user().to_dp(DELTA)
        sentences.append(f"For one {unit}, whose text is replaced: {converted.numbers}.")
    return sentences


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tacit.serving.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (percent, span, moment, seconds, nats, bars, when)
    environment.filters |= {one.__name__: one for one in shown}
    return environment


def percent(share: float) -> str:
    """A share as people read it: a little is not shown as nothing, nor almost all as all."""
    if 0 < share < 1e-4:
        return "<0.01%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{100 * share:.3g}%"


def nats(value: float) -> str:
    """A charge."""
    return f"{value:.3g} nats"


def seconds(value: float | None) -> str:
    """A short duration."""
    if value is None:
        return "–"
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.1f} s"


def span(value: float | None) -> str:
    """A long duration, roughly: at least two of its unit, so that it is never far off."""
    if value is None or math.isinf(value):
        return "–"
    if value >= 1000 * _YEAR:
        return "over 1,000 years"
    for unit, size in (("years", _YEAR), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if value >= 2 * size:
            return f"{int(value / size)} {unit}"
    return f"{int(value)} second{'' if int(value) == 1 else 's'}"


def moment(left: float | None) -> str:
    """The time in so many seconds; empty where no calendar reaches."""
    if left is None or left > 1000 * _YEAR:
        return ""
    return f"around {datetime.fromtimestamp(time.time() + left, UTC):%Y-%m-%d %H:%M} UTC"


def bars(
    values: Sequence[float], *, width: float = 100.0, height: float = 30.0, slots: int = 1
) -> list[dict[str, float]]:
    """Rectangles of a bar chart in a box of this size, which has room for at least so many."""
    top = max(values, default=0.0) or 1.0
    step = width / max(slots, len(values))
    # A value above 0 is seen, however small.
    heights = [max(0.4, height * value / top) if value > 0 else 0.0 for value in values]
    return [
        {
            "x": round(step * (place + 0.1), 3),
            "y": round(height - tall, 3),
            "width": round(0.8 * step, 3),
            "height": round(tall, 3),
        }
        for place, tall in enumerate(heights)
    ]


def _part_names(used: Sequence[float]) -> list[str]:
    return [f"part {number}: {percent(share)}" for number, share in enumerate(used, 1)]


def _weight_names(weights: Sequence[int]) -> list[str]:
    return [f"{at / BINS:g} to {(at + 1) / BINS:g}: {count:,} times" for at, count in enumerate(weights)]
