"""Counters that one process writes and another reads while it runs, without a message between them.

A generator or a bare loop writes into a file that both map; the bench reads it at both ends of a window. So measuring
costs the measured process an assignment per frame, and nobody has to be asked, woken or waited for.

    8 counters of 64 bits | CAPACITY latencies in milliseconds, float32, by number of the result, as a ring
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CAPACITY = 1 << 18
_COUNTERS = 8
_SIZE = 8 * _COUNTERS + 4 * CAPACITY
_READY, _RESULTS, _DROPPED, _ERRORS = range(4)


class Counts(NamedTuple):
    """What a tally says at one moment: results, drops and errors since the process began."""

    results: int
    dropped: int
    errors: int

    def since(self, earlier: Counts) -> Counts:
        """The counts of the time between."""
        return Counts(*(now - then for now, then in zip(self, earlier, strict=True)))


def total(counts: Sequence[Counts]) -> Counts:
    """The sum of several counts."""
    return Counts(*(sum(column) for column in zip(Counts(0, 0, 0), *counts, strict=True)))


class Tally:
    """One tally, mapped. One process writes; any number may read.

    Args:
        path: the file; it must have been made by ``Tally.create``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._view = memoryview(mmap.mmap(file.fileno(), _SIZE))
        self._counters = self._view[: 8 * _COUNTERS].cast("Q")
        self._latencies = self._view[8 * _COUNTERS :].cast("f")
        self._written = 0

    @classmethod
    def create(cls, path: Path) -> Tally:
        """Make the file, all zeros."""
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _SIZE)
        return cls(path)

    # -- the writer --------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Say that the work has begun."""
        self._counters[_READY] = 1

    def result(self, seconds: float) -> None:
        """Count one result that took so long."""
        number = self._written
        self._latencies[number % CAPACITY] = seconds * 1000
        self._written = self._counters[_RESULTS] = number + 1

    def dropped(self) -> None:
        """Count one frame that was answered without a result."""
        self._counters[_DROPPED] += 1

    def error(self) -> None:
        """Count one answer that no client should get."""
        self._counters[_ERRORS] += 1

    # -- the reader --------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the writer has begun its work."""
        return bool(self._counters[_READY])

    def counts(self) -> Counts:
        """The counters now."""
        counters = self._counters
        return Counts(counters[_RESULTS], counters[_DROPPED], counters[_ERRORS])

    def latencies(self, start: int, stop: int) -> list[float]:
        """Milliseconds of the results numbered ``start`` up to ``stop``; of more than the ring holds, the newest."""
        start = max(start, stop - CAPACITY)
        return [self._latencies[number % CAPACITY] for number in range(start, stop)]
