"""The two pages: the operator's, with everything, and the public one, with what everybody may know.

Rendered here, refreshed by a small script of our own; nothing is loaded from anywhere else, and the headers
forbid it.
"""

from __future__ import annotations

import math
import time
from functools import cache
from importlib import resources
from typing import Any

import jinja2

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


def static_file(name: str) -> bytes:
    """A file that the pages load."""
    return (resources.files(__package__) / "static" / name).read_bytes()


def public_page(service: Service) -> str:
    """For everybody: model, guarantee, tokens. Nothing here depends on private text."""
    return _environment().get_template("public.html").render(service=service, words=_words(service))


def operator_page(service: Service, seen: Overview | None, verified: str) -> str:
    """The operator's page; without an overview where the ledger cannot be read."""
    return _render("operator.html", service, seen, verified)


def operator_figures(service: Service, seen: Overview | None, verified: str) -> str:
    """The part of the page that is refreshed."""
    return _render("figures.html", service, seen, verified)


def _render(template: str, service: Service, seen: Overview | None, verified: str) -> str:
    metrics = service.metrics
    running, waiting = service.engine.load
    return (
        _environment()
        .get_template(template)
        .render(
            service=service,
            seen=seen,
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
            up=span(time.time() - service.started),
        )
    )


def _words(service: Service) -> dict[str, Any]:
    """The guarantee in words."""
    guarantee = service.guarantee
    if guarantee is None:
        return {"sentence": "No statement covers all answers: see the ledger's statement.", "dp": None}
    dp = guarantee.to_dp(1e-5).numbers if guarantee.kind == "rdp" else None
    return {"sentence": str(guarantee), "dp": dp}


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tacit.serving.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "span": span, "seconds": seconds, "bars": bars, "when": when}
    return environment


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.3g}%"


def seconds(value: float | None) -> str:
    """A short duration."""
    if value is None:
        return "–"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def span(value: float | None) -> str:
    """A long duration, roughly."""
    if value is None or math.isinf(value):
        return "–"
    for unit, size in (("year", 31_557_600), ("day", 86_400), ("hour", 3600), ("minute", 60)):
        if value >= size:
            count = int(value / size)
            return f"{count:,} {unit}{'s' if count != 1 else ''}"
    return f"{int(value)} seconds"


def bars(values: list[float], *, width: float = 100.0, height: float = 30.0) -> list[dict[str, float]]:
    """Rectangles of a bar chart in a box of this size."""
    if not values:
        return []
    top = max(values) or 1.0
    step = width / len(values)
    return [
        {
            "x": round(step * place + 0.1 * step, 3),
            "y": round(height * (1 - value / top), 3),
            "width": round(0.8 * step, 3),
            "height": round(max(0.4, height * value / top), 3),
        }
        for place, value in enumerate(values)
    ]
