"""Everything that is due at a moment, in one process, in one greenlet: frames, acts of an audience, delayed bytes.

One heap instead of a timer per user: with hundreds of users a process wakes up once per frame, and how late it does so
is the generator's lag.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable

import gevent

log = logging.getLogger(__name__)

_LONGEST_SLEEP_S = 0.02  # an earlier entry may come meanwhile, and nobody is woken for it


class Metronome:
    """Calls functions when they are due; they must not block."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, call: Callable[[float], None]) -> None:
        """Call it at ``when`` (``time.monotonic``), with that moment: how late it is, is for the called to see."""
        heapq.heappush(self._heap, (when, next(self._numbers), call))

    def run(self) -> None:
        """For ever; to be spawned."""
        heap, clock = self._heap, time.monotonic
        while True:
            now = clock()
            while heap and heap[0][0] <= now:
                when, _number, call = heapq.heappop(heap)
                try:
                    call(when)
                except Exception:  # it must cost this entry only, not all that are still to come
                    log.exception("an entry of the metronome failed")
                now = clock()
            gevent.sleep(min(max(0.0, heap[0][0] - now), _LONGEST_SLEEP_S) if heap else _LONGEST_SLEEP_S)
