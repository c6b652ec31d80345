"""The progress page: 64 bytes per process in shared memory that say what it does, without a message.

    offset  field       meaning
    0       loops       u64, turns of the process's main loop: it grows while the process works
    8       request     u64, the request in work now; 0 when idle
    16      since       f64, monotonic seconds since when
    24      busy        f64, seconds spent working since start (not waiting for messages)
    32      waiting     u64, requests that wait in this process
    40      done        u64, requests finished since start

Each field is eight bytes and aligned, has one writer, and is read without a lock. The gateway tells from two readings
who works, who hangs on what, and how busy each process is; a worker tells from a slot's page how many wait there.
"""

from __future__ import annotations

from typing import NamedTuple

PAGE_BYTES = 64
_FIELDS = PAGE_BYTES // 8


class Progress(NamedTuple):
    """One reading of a page."""

    loops: int
    request: int
    since: float
    busy: float
    waiting: int
    done: int


class ProgressPage:
    """One process's page.

    Args:
        view: the shared memory of all pages.
        index: which page.
    """

    __slots__ = ("_busy_from", "_float", "_int")

    def __init__(self, view: memoryview, index: int) -> None:
        page = view[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]
        self._int = page.cast("Q")
        self._float = page.cast("d")
        self._busy_from = 0.0

    def clear(self) -> None:
        """Zero the page, before a new process takes it over."""
        for field in range(_FIELDS):
            self._int[field] = 0

    def turn(self) -> None:
        """The main loop has turned once more."""
        self._int[0] += 1

    def awake(self, now: float) -> None:
        """The process has work: count its time as busy from ``now``."""
        self._busy_from = now

    def asleep(self, now: float) -> None:
        """The process is about to wait for messages."""
        self._float[3] += now - self._busy_from

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
        return Progress(i[0], i[1], f[2], f[3], i[4], i[5])
