"""Log lines as JSON, one per event, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_FIELDS = ("event", "id", "endpoint", "status", "tenant", "tokens", "seconds", "detail")


class JsonLines(logging.Formatter):
    """Only fields that are named here are ever written: nothing slips into a log by accident."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if "event" not in line:  # a library's own message: its level and its name are enough
            line["event"] = record.name
        return json.dumps(line)


def log_to_stderr() -> None:
    """Everything the service and its web server say goes to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("tacit.serving", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("tacit.serving").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
