"""How many frames may be in the workers' and slots' hands at once: enough to keep them busy, and no more.

Credits bound it too, but they must be many where there are many workers: 16 workers with 3 credits each in front of
one slot hold 48 frames, and a run of 8 ms then makes every result 0.4 s old. Frames that wait in the lanes instead can
still be replaced by newer ones, and the latency of what is delivered stays flat.

The rule is CoDel's (Nichols, Jacobson: "Controlling Queue Delay", ACM Queue 2012), with the limit of a Vegas-like
window as its lever: the *least* time in work over a period shows a standing queue, since bursts drain in between. If
even the luckiest frame of a period took more than three times what frames take without a backlog, then two such times'
worth of frames always stood in front of the slowest stage, and it cannot run dry with fewer: the limit is lowered in
proportion (Little's law: time = limit / throughput). Otherwise it is raised by one.

Why not a gradient of mean latencies, or Vegas' own two to four packets: both take slow frames, waiting for a batch to
fill and a change of the pictures for a queue, and lose throughput to it. A whole service time of slack on top leaves
room for batches, and a guard has the last word: where a lower limit has cost throughput, it is taken back, and the
longer time in work becomes what is normal.
"""

from __future__ import annotations

import math

from .gauge import READ_FRAMES, Reading

_QUEUED = 3.0  # times the time without a backlog: one in work, two that wait
_SHORT_S = 0.015  # below that, nothing can be gained
_STEEPEST = 0.7
_KEPT = 0.95
_FADES = 0.99
_FOLLOW = 0.25
_QUIET = 0.5  # of the capacity: below it, hardly any frame meets another


class Inflight:
    """The limit.

    Args:
        limit: where it starts.
        fixed: an operator's own limit, which nothing here changes.

    Attributes:
        limit: frames that may be in work; the pool's credits bound it anyway.
        normal_s: seconds in work without a backlog; 0 while unknown, and then there is no limit.
    """

    __slots__ = ("_best", "_credits", "_fixed", "_lowered_from", "limit", "normal_s")

    def __init__(self, limit: float = math.inf, fixed: int | None = None) -> None:
        self.limit = limit
        self._fixed = fixed
        self.normal_s = 0.0
        self._best = 0.0
        self._credits = 0
        self._lowered_from: tuple[float, float] | None = None

    def expect(self, alone_s: float) -> None:
        """Work may begin: a frame that is alone takes so long."""
        self.normal_s = alone_s
        self.limit = self._fixed or math.inf

    def turn(self, reading: Reading, credits: int, capacity: float) -> None:
        """Decide after a period.

        Args:
            reading: what it brought.
            credits: frames that the pool could hold now.
            capacity: frames per second that can be sustained.
        """
        if self._fixed:
            return
        self._credits = credits
        goal = max(_QUEUED * self.normal_s, _SHORT_S)
        queued = self.normal_s > 0 and reading.frames >= READ_FRAMES and reading.least_s > goal
        if not queued and not reading.saturated:
            self._best = 0.0
            self._lowered_from = None
            self._learn_normal(reading, quiet=reading.rate < _QUIET * capacity)
            self._raise()
            return
        cost_throughput = self._lowered_from is not None and reading.rate < _KEPT * self._best
        self._best = max(reading.rate, self._best * _FADES)
        if cost_throughput:
            self._take_back(reading)
            return
        self._lowered_from = None
        if queued:
            self._lower(reading, goal)
        else:
            self._raise()

    def _learn_normal(self, reading: Reading, quiet: bool) -> None:
        """Nothing queued here, but frames may have met behind it: only in quiet times may a longer time be normal."""
        known = self.normal_s or reading.mean_s
        if not reading.backlog_frames and (quiet or reading.mean_s < known):
            known += (reading.mean_s - known) * _FOLLOW
        self.normal_s = known

    def _lower(self, reading: Reading, goal: float) -> None:
        now = min(self.limit, self._credits)
        self._lowered_from = (now, reading.least_s)
        self.limit = max(1, min(now - 1, math.ceil(now * max(_STEEPEST, goal / reading.least_s))))

    def _take_back(self, reading: Reading) -> None:
        """The lower limit starved somebody: what seemed to be a queue was work."""
        assert self._lowered_from is not None
        self.limit, least_s = self._lowered_from
        self.normal_s = max(self.normal_s, least_s / _QUEUED)
        self._best = reading.rate
        self._lowered_from = None

    def _raise(self) -> None:
        self.limit = self.limit + 1 if self.limit < self._credits else math.inf
