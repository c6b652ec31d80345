"""What the replica does, as seen at its exit: a few sums over the frames that end, read now and then.

While more frames wait than may be in work (a *backlog*), the time from one result to the next is all that the replica
needs for a frame: throughput then is capacity, however short the backlog was. So capacity is measured also when the
load is well below it, in the moments in which frames queue. Results that are read in one go with the one that began a
backlog were made before it: they do not count.
"""

from __future__ import annotations

import math
from typing import NamedTuple

READ_FRAMES = 32
_LEAST_S = 0.5
_MOST_S = 2.0
_BURST_GAP_S = 0.001


class Reading(NamedTuple):
    """Sums over one period.

    Attributes:
        seconds: its length.
        frames: results.
        backlog_frames, backlog_s: results that came while others queued, and the time that these took.
        mean_s, least_s: of the times from a frame's submission to its result.
    """

    seconds: float
    frames: int
    backlog_frames: int
    backlog_s: float
    mean_s: float
    least_s: float

    @property
    def rate(self) -> float:
        """Results per second."""
        return self.frames / self.seconds

    @property
    def backlog_rate(self) -> float:
        """Results per second of backlog: what the replica can do. 0 if there was none."""
        return self.backlog_frames / self.backlog_s if self.backlog_s > 0 else 0.0

    @property
    def saturated(self) -> bool:
        """Whether frames queued for (nearly) all of the period, and there were enough of them to say so."""
        return self.backlog_frames >= max(READ_FRAMES // 2, 0.9 * self.frames)


class Gauge:
    """The sums of the current period."""

    __slots__ = ("_backlog", "_backlog_frames", "_backlog_s", "_counting", "_frames", "_last", "_least_s", "_since",
                 "_taken_s")  # fmt: skip

    def __init__(self) -> None:
        self._backlog = self._counting = False
        self._last = 0.0
        self._since = -math.inf
        self._frames = 0
        self._taken_s = 0.0
        self._least_s = math.inf
        self._backlog_frames = 0
        self._backlog_s = 0.0

    def finished(self, now: float, taken_s: float, backlog: bool) -> None:
        """A frame has its result `taken_s` after it was submitted; `backlog` says whether others queue now."""
        self._frames += 1
        self._taken_s += taken_s
        self._least_s = min(self._least_s, taken_s)
        if self._backlog:
            gap = now - self._last
            if self._counting or gap > _BURST_GAP_S:
                self._counting = True
                self._backlog_frames += 1
                self._backlog_s += gap
        self._last = now
        self._backlog = backlog
        self._counting = self._counting and backlog

    def read(self, now: float) -> Reading | None:
        """The sums since the last reading; None while there are too few frames for one."""
        seconds = now - self._since
        if seconds < _LEAST_S or (self._frames < READ_FRAMES and seconds < _MOST_S):
            return None
        reading = None
        if self._frames and seconds < 2 * _MOST_S:
            reading = Reading(
                seconds,
                self._frames,
                self._backlog_frames,
                self._backlog_s,
                self._taken_s / self._frames,
                self._least_s,
            )
        self._begin(now)
        return reading

    def _begin(self, now: float) -> None:
        self._since = now
        self._frames = self._backlog_frames = 0
        self._taken_s = self._backlog_s = 0.0
        self._least_s = math.inf
