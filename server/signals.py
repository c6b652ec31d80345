"""SIGTERM and Ctrl-C: the first one asks to stop, and any that comes after it ends the process at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

log = logging.getLogger("framelane")

_SAME_S = 0.25
"""``timeout``, terminals and process managers signal a process and its group: what comes so soon is the same signal."""


def is_another(first: float | None, now: float) -> bool:
    """Whether a signal that comes now is not the first one. Seconds of any clock; None: none has come before."""
    return first is not None and now - first > _SAME_S


def on_stop(ask: Callable[[], None]) -> None:
    """Call ``ask`` at the first signal, on the running event loop; at the next, end this process and its children."""
    loop = asyncio.get_running_loop()
    first: float | None = None

    def asked(number: signal.Signals) -> None:
        nonlocal first
        if is_another(first, loop.time()):
            log.warning("second signal, %s: ending at once", number.name)
            os._exit(1)
        if first is None:
            first = loop.time()
            ask()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)
