"""Logs of every process: one line per event on stderr, and no floods.

In a terminal a line is for people; elsewhere, in a container for example, it is one JSON object::

    {"time": "2026-11-30T17:40:21.123Z", "level": "warning", "logger": "framelane.pool", "pid": 71, "message": "…"}

with ``exception`` where there is one, and ``lane``, ``seq`` and ``request`` where a frame is concerned.

How much is written is said per process in one text, ``LEVELS[;FORMAT]``: ``INFO``, ``INFO,lanes=DEBUG``,
``WARNING;json``. A module is named as its logger is, with or without ``framelane`` or ``framelane.server`` in front.

A record that repeats (same logger, same text before its arguments are filled in, same kind of exception) is written
once per ten seconds; the next one that is written says how many were left out. A record with ``extra=ALWAYS`` is always
written: it says what somebody with the right to do so has done. Pictures and tokens are never logged: libraries that
would write what they send and receive stay at WARNING, unless they are named.
"""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_one = f"({'|'.join(LEVELS)})"
LEVELS_PATTERN = rf"^{_one}(,[A-Za-z_][\w.]*={_one})*$"
"""What ``--log-level`` takes."""

ALWAYS = {"always": True}
_EVERY_S = 10.0
_MOST_KINDS = 256
_IDS = ("lane", "seq", "request")
_PREFIXES = ("", "framelane.", "framelane.server.", "framelane.preprocess.")
_TALKATIVE = ("uvicorn", "socketio", "engineio", "websockets", "asyncio", "opentelemetry", "urllib3")


class RepeatFilter(logging.Filter):
    """Lets one record of a kind through per interval."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is written; adds the number of those that were not."""
        if record.levelno < logging.WARNING or getattr(record, "always", False):
            return True
        kind = (record.name, str(record.msg), record.exc_info[0] if record.exc_info else None)
        now = time.monotonic()
        last, left_out = self._seen.get(kind, (now - _EVERY_S, 0))
        if now - last < _EVERY_S:
            self._seen[kind] = (last, left_out + 1)
            return False
        if len(self._seen) >= _MOST_KINDS:
            self._seen.clear()
        self._seen[kind] = (now, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} more like this were left out)"
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        line |= {key: getattr(record, key) for key in _IDS if hasattr(record, key)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """One line per record for people; a traceback has more."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s[%(process)d] %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with the ids that it has."""
        ids = " ".join(f"{key}={getattr(record, key)}" for key in _IDS if hasattr(record, key))
        return super().formatMessage(record) + (f" [{ids}]" if ids else "")


def set_up_logs(spec: str = "INFO") -> None:
    """Configure the logs of this process. Called by the mains only.

    Args:
        spec: ``LEVELS[;FORMAT]``, see above; the format is "auto", "json" or "text".
    """
    levels, _, form = spec.partition(";")
    root, *modules = levels.split(",")
    handler = logging.StreamHandler()
    as_json = form == "json" or (form != "text" and not sys.stderr.isatty())
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=root, handlers=[handler], force=True)
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    for module in modules:
        name, _, level = module.partition("=")
        for prefix in _PREFIXES:
            logging.getLogger(prefix + name).setLevel(level)
