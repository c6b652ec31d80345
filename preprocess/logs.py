"""Logs of every process: one line per event on stderr, and no floods.

A record that repeats (same logger, same text before its arguments are filled in, same kind of exception) is written
once per ten seconds; the next one that is written says how many were left out. A record with ``extra=ALWAYS`` is always
written: it says what somebody with the right to do so has done. Pictures and tokens are never logged.
"""

from __future__ import annotations

import logging
import time

_EVERY_S = 10.0
_MOST_KINDS = 256
ALWAYS = {"always": True}


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


def set_up_logs(level: str = "INFO") -> None:
    """Configure the root logger of this process. Called by the mains only."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s[%(process)d] %(message)s", "%H:%M:%S"))
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for library in ("uvicorn", "socketio"):
        logging.getLogger(library).setLevel(logging.WARNING)
