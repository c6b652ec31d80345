"""When frames are meant to be sent: an open loop, in which no answer delays the next frame. No clock and no I/O here.

A profile says how many frames per second a client of weight 1 sends in each phase. Arrivals are drawn in units of
frames and mapped to time through the profile's integral, so that a change of the rate takes effect at once, also in the
middle of an interval, and a Poisson process stays one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Literal

import msgspec

Kind = Literal["poisson", "fixed"]


class Phase(msgspec.Struct, frozen=True):
    """So many seconds in which a client of weight 1 sends so many frames per second."""

    seconds: float
    rate: float


class Profile:
    """Phases, one after another, as a function from frames to time."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases = tuple(phases)
        self._starts = [0.0, *accumulate(phase.seconds for phase in phases)]
        self._frames = [0.0, *accumulate(phase.seconds * phase.rate for phase in phases)]

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self._starts[-1]

    @property
    def frames(self) -> float:
        """Frames that a client of weight 1 sends on average."""
        return self._frames[-1]

    def when(self, frames: float) -> float:
        """Seconds after which a client of weight 1 has sent so many frames; infinity if it never has."""
        for index, phase in enumerate(self._phases):
            if frames < self._frames[index + 1]:
                return self._starts[index] + (frames - self._frames[index]) / phase.rate
        return math.inf


class Arrivals:
    """The next frame of any client, in order of time.

    Args:
        profile: the rate of a client of weight 1.
        weights: of each client; 0 for one that sends nothing.
        kind: "poisson", or "fixed" for even intervals, each client with a phase of its own.
        random: where phases and intervals come from.

    Attributes:
        next_at: seconds from the start to the next arrival; infinity when there is none.
    """

    def __init__(self, profile: Profile, weights: Sequence[float], kind: Kind, random: Random) -> None:
        self._profile = profile
        self._weights = weights
        self._poisson = kind == "poisson"
        self._random = random
        self._sent = [0.0] * len(weights)
        self._heap: list[tuple[float, int]] = []
        for client, weight in enumerate(weights):
            if weight > 0:
                self._push(client, random.expovariate(1) if self._poisson else random.random())
        self.next_at = self._heap[0][0] if self._heap else math.inf

    def pop(self) -> tuple[float, int]:
        """The next arrival: its time, and the number of its client. Raises IndexError without one."""
        at, client = heapq.heappop(self._heap)
        self._push(client, self._random.expovariate(1) if self._poisson else 1.0)
        self.next_at = self._heap[0][0] if self._heap else math.inf
        return at, client

    def _push(self, client: int, frames: float) -> None:
        self._sent[client] += frames
        at = self._profile.when(self._sent[client] / self._weights[client])
        if at < math.inf:
            heapq.heappush(self._heap, (at, client))
