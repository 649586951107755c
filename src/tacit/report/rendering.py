"""One HTML file with everything in it: style, icon, figures and data; it asks nobody for anything.

The policy in its head forbids what it does not hold: no script runs, no style but ours, no request leaves.
All text is escaped by the templates; only drawings and data blocks, which are built of elements and of JSON,
are not.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from tacit.report.words import clean, estimate, moment, number, percent

SYMBOLS = {"supported": "✓", "contradicted": "✕", "inconclusive": "?"}


def render(template: str, **content: Any) -> str:
    """Fill a template; the result can be written as UTF-8 whatever the names in it."""
    page = _environment().get_template(template).render(**content)
    # A lone surrogate, which JSON can hold and UTF-8 cannot.
    return page.encode("utf-8", "replace").decode("utf-8")


def _read(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tacit.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = _read("report.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment.globals |= {
        "style": Markup(style),  # noqa: S704 - our own file
        "policy": (
            f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
            "form-action 'none'"
        ),
        "icon": "data:image/svg+xml," + quote(_read("icon.svg").strip()),
        "symbols": SYMBOLS,
    }
    shown = (clean, estimate, moment, number, percent)
    environment.filters |= {one.__name__: one for one in shown}
    return environment
