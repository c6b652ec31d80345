"""How much of the time the gateway's interpreter lock is taken, where ``gilknocker`` is installed.

It asks for the lock now and then, from a thread that needs no lock to wait, and measures how long it takes to get it.
Without it there is still the event loop's lag (``lag.py``): the loop is the one thread that does anything here.

Only from Python 3.14 on. Older interpreters, when they end, make threads that ask for the lock exit from within; a
thread of Rust answers that by aborting the process ("FATAL: exception not rethrown", status -6 after a good drain).
"""

from __future__ import annotations

import sys
from typing import Any

_POLL_US = 20_000
_SAMPLE_US = 100_000
_SLEEP_US = 900_000
_AWAKE = _SAMPLE_US / (_SAMPLE_US + _SLEEP_US)  # what it measures is a share of all time, its sleep included


class Gil:
    """The share of the time in which it was taken."""

    def __init__(self) -> None:
        self._knocker: Any = None

    def start(self) -> bool:
        """Begin; whether it can be measured here."""
        if sys.version_info < (3, 14):
            return False
        try:
            from gilknocker import KnockKnock
        except ImportError:
            return False
        self._knocker = KnockKnock(
            polling_interval_micros=_POLL_US, sampling_interval_micros=_SAMPLE_US, sleeping_interval_micros=_SLEEP_US
        )
        self._knocker.start()
        return True

    def read(self) -> float | None:
        """Since the last reading; None where it is not measured."""
        if self._knocker is None:
            return None
        share = float(self._knocker.contention_metric) / _AWAKE
        self._knocker.reset_contention_metric()
        return round(min(1.0, share), 3)

    def stop(self) -> None:
        """End the thread."""
        if self._knocker is not None:
            self._knocker.stop()
            self._knocker = None
