"""The other replicas as they told of themselves, and what follows for this one. No I/O, no clock.

Places for the whole fleet (``--fleet-clients``) are shared out from everybody's last beat. Free ones go to those who
wait, wherever they do, the longest first; if nobody waits, each replica may give away an equal part of them until the
next beat, so that two newcomers at two replicas do not take the same one. A newcomer for whom there is none waits for a
beat or two. What is known of the others is up to a second old: with several replicas short of places at once there can
be a few clients too many for that long, never lastingly. A replica that cannot reach the others keeps to an equal share
of them all. Positions are counted over the fleet in the same way.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from .messages import Beat

FORGET_S = 3.5
TOLD = 32
"""Of those who wait at one replica, so many are told of with their times; the others by their count."""


class Peers:
    """What is known of the other replicas.

    Args:
        own: this one's name.
        most: places of the whole fleet; None: each replica decides by itself.
    """

    def __init__(self, own: str, most: int | None) -> None:
        self._own = own
        self._most = most
        self._beats: dict[str, tuple[Beat, float]] = {}
        self._told = 0
        self._largest = 1  # as many replicas as were ever known at once

    def heard(self, beat: Beat, now: float) -> None:
        """A replica has told of itself."""
        if beat.replica != self._own:
            self._beats[beat.replica] = beat, now

    def told(self, beat: Beat) -> None:
        """This replica tells the others so of itself: they reckon with that until the next time."""
        self._told = beat.admitted

    def others(self, now: float) -> list[Beat]:
        """Those that are there, by name."""
        for name in [name for name, (_beat, at) in self._beats.items() if now - at > FORGET_S]:
            del self._beats[name]
        self._largest = max(self._largest, len(self._beats) + 1)
        return [self._beats[name][0] for name in sorted(self._beats)]

    def places(self, admitted: int, line: Sequence[float], now: float, *, reachable: bool) -> int | None:
        """How many more clients this replica may give a place; None: no limit but its own.

        Args:
            admitted: clients here that have one, or for whom one is held.
            line: since when those have waited who are present here, the longest first.
            now: the time, on the clock of ``heard``.
            reachable: whether the others are heard.
        """
        if self._most is None:
            return None
        others = self.others(now) if reachable else []
        if not reachable:
            return max(0, self._most // self._largest - admitted)
        free = max(0, self._most - self._told - sum(beat.admitted for beat in others))
        given = max(0, admitted - self._told)  # since then; one that fell free is everybody's, from the next beat on
        return max(0, self._share(free, line, others) - given)

    def _share(self, free: int, line: Sequence[float], others: Sequence[Beat]) -> int:
        """How many of the free places are this replica's to give."""
        elsewhere = sorted(since for beat in others for since in beat.line)
        mine = 0
        for since in line:
            if bisect.bisect_left(elsewhere, since) + mine >= free:
                return mine
            mine += 1
        if elsewhere:
            return mine
        return mine + (free - mine) // (len(others) + 1)

    def ahead(self, since: float, now: float) -> int:
        """How many wait elsewhere for longer; exact among the first ``TOLD`` of each replica."""
        count = 0
        for beat in self.others(now):
            known = bisect.bisect_left(beat.line, since)
            count += beat.waiting if known == len(beat.line) and beat.waiting > known else known
        return count
