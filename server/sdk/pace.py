"""How often a client sends. The server's budget is the ceiling; below it the rate rises by one frame a second every
second while results come (additive increase), and falls by a third when frames are lost to load (multiplicative
decrease), so that many clients find their share without being told. Times are in milliseconds. The same as pace.js.
"""

from __future__ import annotations

import math

_SLACK = 0.25  # of an interval, early or made up for: a camera's jitter must not cost every second frame
_DECREASE = 0.67
_SETTLE_MS = 500.0  # several losses at once are one piece of news
_SLOWEST_MS = 1000.0


class Pace:
    """The interval between two frames, and when the next one may go."""

    __slots__ = ("_budget", "_decreased", "_next", "interval")

    def __init__(self) -> None:
        self.interval = 0.0
        self.begin(0.0)

    def begin(self, interval_ms: float) -> None:
        """A new connection: its server's budget is where it starts."""
        self._budget = self.interval = interval_ms
        self._next = self._decreased = -math.inf

    def budget(self, interval_ms: float) -> None:
        """The server says what it can sustain now."""
        held = self.interval > self._budget
        self._budget = interval_ms
        self.interval = max(self.interval, interval_ms) if held else interval_ms

    @property
    def due_at(self) -> float:
        """When the next frame may go."""
        return self._next - _SLACK * self.interval

    def sent(self, now: float) -> None:
        self._next = max(self._next, now - _SLACK * self.interval) + self.interval

    def answered(self) -> None:
        if self.interval <= self._budget:
            return
        rate = 1000 / self.interval
        self.interval = max(self._budget, 1000 / (rate + 1 / rate))

    def congested(self, now: float) -> None:
        """A frame was lost to load."""
        if now < self._decreased + _SETTLE_MS:
            return
        self._decreased = now
        slower = max(self.interval, 1.0) / _DECREASE
        self.interval = max(self._budget, min(slower, _SLOWEST_MS))
