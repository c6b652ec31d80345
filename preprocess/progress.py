"""The progress page: a few bytes per process in shared memory that say what it does, without a message.

    offset  field       meaning
    0       loops       u64, turns of the process's main loop: it grows while the process works
    8       request     u64, the request in work now; 0 when idle
    16      since       f64, monotonic seconds since when
    24      busy        f64, seconds spent working since start (not waiting for messages)
    32      waiting     u64, requests that wait in this process
    40      done        u64, requests finished since start
    48      awake       f64, monotonic seconds since when it has been working without a pause; 0 while it waits
    64      stages      histograms, see ``stages.py``

A process that takes over the page of one that has ended goes on with its ``busy``, ``done`` and stages. Each field is
eight bytes and aligned, has one writer, and is read without a lock. The gateway tells from two readings who works, who
hangs on what, and how busy each process is; a worker tells from a slot's page how many wait there.
"""

from __future__ import annotations

from typing import NamedTuple

from .stages import STAGES_BYTES, StagePage

_STAGES_AT = 64
PAGE_BYTES = 1024
_KEPT = (3, 5)
assert _STAGES_AT + STAGES_BYTES <= PAGE_BYTES


class Progress(NamedTuple):
    """One reading of a page."""

    loops: int
    request: int
    since: float
    busy: float
    waiting: int
    done: int
    awake: float = 0.0

    def busy_at(self, now: float) -> float:
        """Seconds spent working so far, those included that it has been at it without a pause."""
        return self.busy + (max(0.0, now - self.awake) if self.awake else 0.0)


class ProgressPage:
    """One process's page.

    Args:
        view: the shared memory of all pages.
        index: which page.

    Attributes:
        stages: the histograms behind it.
    """

    __slots__ = ("_float", "_int", "stages")

    def __init__(self, view: memoryview, index: int) -> None:
        page = view[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]
        self._int = page[:_STAGES_AT].cast("Q")
        self._float = page[:_STAGES_AT].cast("d")
        self.stages = StagePage(page[_STAGES_AT:])

    def clear(self) -> None:
        """Forget what the last process was doing, before a new one takes the page over; what was counted stays."""
        for field in range(_STAGES_AT // 8):
            if field not in _KEPT:
                self._int[field] = 0

    def turn(self) -> None:
        """The main loop has turned once more."""
        self._int[0] += 1

    def awake(self, now: float) -> None:
        """The process has work: count its time as busy from ``now``."""
        self._float[6] = now

    def asleep(self, now: float) -> None:
        """The process is about to wait for messages."""
        self._float[3] += now - self._float[6]
        self._float[6] = 0.0

    def start(self, request: int, now: float) -> None:
        """``request`` is in work from ``now``."""
        self._float[2] = now
        self._int[1] = request

    def finish(self, count: int = 1) -> None:
        """What was in work has ended."""
        self._int[1] = 0
        self._int[5] += count

    def wait(self, count: int) -> None:
        """``count`` requests wait in this process."""
        self._int[4] = count

    def load(self) -> int:
        """How many requests wait there or are in work (a batch counts once)."""
        return self._int[4] + (self._int[1] > 0)

    def read(self) -> Progress:
        """All fields; each is consistent in itself, not with the others."""
        i, f = self._int, self._float
        return Progress(i[0], i[1], f[2], f[3], i[4], i[5], f[6])
