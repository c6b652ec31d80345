"""How many frames per second this replica can sustain, as measured: what pace and admission share out.

It starts with what a burst of sample pictures gave at the start, and follows what is measured while frames queue
(``gauge.py``). Where nothing queues, there is nothing to measure: if clients are held back all the same, the estimate
rises a little every time, faster towards what was seen before, until it is right or frames queue. So a dip, for
example while a slot was replaced, heals.

Pace may act on a guess, since the next one corrects it. A place, once given, is not taken back: admission counts on no
more than has been seen.
"""

from __future__ import annotations

import math

from .gauge import Reading

_ENOUGH = 8  # results during a backlog that are worth looking at
_WEIGHT = 100  # results that weigh as much as all that was known before
_NEAR = 0.8
_GROWTH = 0.03
_RETURN = 0.25  # of the way to what was seen before
_FORGET = 0.01


class Capacity:
    """The estimate.

    Args:
        rate: frames per second; infinity while nothing is known and nobody has to wait for it.

    Attributes:
        rate: the best guess now.
        seen: the most that was measured; forgotten slowly when it is not seen again.
    """

    __slots__ = ("rate", "seen")

    def __init__(self, rate: float = math.inf) -> None:
        self.rate = self.seen = rate

    @property
    def sure(self) -> float:
        """What a new client may count on."""
        return min(self.rate, self.seen)

    def expect(self, rate: float) -> None:
        """Start from here."""
        self.rate = self.seen = rate

    def turn(self, reading: Reading, held_back: bool) -> None:
        """Learn from a period.

        Args:
            reading: what it brought.
            held_back: whether clients wait for a place, or are asked to send less than they would.
        """
        if reading.backlog_frames >= _ENOUGH and reading.backlog_s > 0:
            self._measured(reading.backlog_rate, reading.backlog_frames)
        elif reading.rate > self.rate:
            self._measured(reading.rate, reading.frames)
        elif held_back and reading.rate > _NEAR * self.rate:
            self.rate += max(_GROWTH * self.rate, _RETURN * (self.seen - self.rate))

    def _measured(self, rate: float, frames: int) -> None:
        if math.isinf(self.rate):
            self.expect(rate)
            return
        self.rate += (rate - self.rate) * frames / (frames + _WEIGHT)
        self.seen = max(self.rate, self.seen + (self.rate - self.seen) * _FORGET)
