"""Who may come in, and whether there is a place.

A place is either one of ``max_clients``, or a share of the measured capacity: each client has reserved what it sends,
between a tenth of ``client_fps`` and all of it, and a new one is let in if its ``client_fps`` still fits. So silent
connections do not keep a place from others, and clients that send more than they were promised give way to new ones
(``pace.py`` tells them). This is measurement-based admission control (Jamin et al., IEEE/ACM ToN 5(1), 1997).
"""

from __future__ import annotations

import math

from framelane.server.errors import Refused
from framelane.server.protocol import Hello, Refusal

from .lane import Lane
from .limits import Limits

_USED = 0.9  # a place is not taken back when the capacity falls
_SILENT = 0.1
_RISE = 0.5  # per look: soon, since frames come
_FADE = 0.35  # a little later, since they may come back


class Admission:
    """Counts places and what is reserved.

    Args:
        limits: see ``Limits``.

    Attributes:
        admitted: clients that have a place.
        taken: places given so far.
        reserved_fps: what they have reserved together.
    """

    __slots__ = ("_held", "_limits", "admitted", "reserved_fps", "taken")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: dict[str, float] = {}  # ticket → until when a lost client may come back to its place
        self.admitted = 0
        self.taken = 0
        self.reserved_fps = 0.0

    def check(self, hello: Hello, draining: bool) -> None:
        """Decide whether a client that has said hello is one to be served at all.

        Raises:
            Refused: with a code of ``Refusal``, and a time after which it may try again if that can help.
        """
        limits = self._limits
        if draining:
            raise Refused("this server is going away", code=Refusal.DRAINING, retry_after_ms=limits.retry_after_ms)
        if hello.pipeline is not None and hello.pipeline != limits.pipeline:
            raise Refused(f"this server runs the pipeline {limits.pipeline!r}", code=Refusal.BAD_REQUEST)

    def places(self, capacity: float) -> int:
        """How many more clients could have a place now, with `capacity` frames per second."""
        limits, held = self._limits, len(self._held)
        if limits.max_clients is not None:
            return max(0, limits.max_clients - self.admitted - held)
        free = capacity * _USED - self.reserved_fps - held * limits.client_fps
        if math.isinf(free):
            return 1 << 30
        if self.admitted + held == 0 and capacity > 0:
            return max(1, int(free / limits.client_fps))  # a server that is slower than any client serves one
        return max(0, int(free / limits.client_fps))

    @property
    def occupied(self) -> int:
        """Places that are taken, or held for somebody."""
        return self.admitted + len(self._held)

    def take(self, lane: Lane) -> None:
        """The client gets a place."""
        lane.reserved_fps = self._limits.client_fps
        self.reserved_fps += lane.reserved_fps
        self.admitted += 1
        self.taken += 1

    def give_back(self, lane: Lane, now: float, *, lost: bool) -> None:
        """The client has gone. If its connection was only `lost`, its place is held for a while."""
        self.admitted -= 1
        self.reserved_fps -= lane.reserved_fps
        if not self.admitted:
            self.reserved_fps = 0.0  # rid of rounding
        if lost and lane.ticket and self._limits.grace_s > 0:
            self._held[lane.ticket] = now + self._limits.grace_s

    def holds(self, ticket: str) -> bool:
        """Whether a place is held for this ticket."""
        return ticket in self._held

    def reclaim(self, ticket: str) -> bool:
        """Whether a client that comes back with this ticket has a place that was held for it; it is held no more."""
        return self._held.pop(ticket, None) is not None

    def expire(self, now: float) -> None:
        """Free the places of those who have not come back in time."""
        while self._held:
            ticket, until = next(iter(self._held.items()))
            if until > now:
                return
            del self._held[ticket]

    def measured(self, lane: Lane, rate: float) -> None:
        """A client that has a place sends `rate` frames per second."""
        most = self._limits.client_fps
        used = min(most, max(_SILENT * most, rate))
        change = (used - lane.reserved_fps) * (_RISE if used > lane.reserved_fps else _FADE)
        lane.reserved_fps += change
        self.reserved_fps += change
