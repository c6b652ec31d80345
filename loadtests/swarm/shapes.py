"""How many users there are, when: the stages of a run. No clock and no I/O here; ``users.py`` shows them to Locust.

    steady   all users come, and stay
    steps    from few to many, each level held
    ramp     from few to many without a stop, then held
    spike    a quarter of them, all at once four times as many, a quarter again
    soak     as steady, for long, in five parts: the report compares the first with the last

A level is measured from two seconds after its last user has come until the next level begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

SHAPES: Final = ("steady", "steps", "ramp", "spike", "soak")
MARKS = "marks"
"""File of the levels that were reached, one JSON object a line."""
SPAWN_RATE = 50.0
"""Users that come per second: some dozens, as after a link was shared, rather than all in one instant."""
SPIKE_RATE = 400.0
_PARTS = 5


class Stage(msgspec.Struct, frozen=True):
    """So many users, reached at so many per second, then held for so many seconds, which are measured."""

    users: int
    rate: float
    seconds: float


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a shape is made from.

    Attributes:
        users: the most there will be; first: how many there are at first, where a shape has such a thing.
        step: users more with each step.
        seconds: of each level.
        rate: users that come per second.
    """

    shape: str = "steady"
    users: int = 50
    first: int = 50
    step: int = 150
    seconds: float = 60.0
    rate: float = SPAWN_RATE

    def stages(self) -> list[Stage]:
        """The stages in order."""
        return _MAKERS[self.shape](self)


def levels(first: int, last: int, step: int) -> list[int]:
    """``first``, one ``step`` more each, and ``last`` whatever the step: 50, 200, 350, 500, 650, 800."""
    return [*range(min(first, last), last, max(1, step)), last]


def _steady(wish: Wish) -> list[Stage]:
    return [Stage(wish.users, wish.rate, wish.seconds)]


def _steps(wish: Wish) -> list[Stage]:
    return [Stage(users, wish.rate, wish.seconds) for users in levels(wish.first, wish.users, wish.step)]


def _ramp(wish: Wish) -> list[Stage]:
    """The time of one level to climb, in ten parts so that each is seen, and one to stay."""
    climb = max(1, wish.users - wish.first)
    parts = min(10, climb)
    climbing = [
        Stage(wish.first + climb * part // parts, max(1.0, climb / wish.seconds), wish.seconds / parts)
        for part in range(parts)
    ]
    return [*climbing, Stage(wish.users, max(1.0, climb / wish.seconds), wish.seconds)]


def _spike(wish: Wish) -> list[Stage]:
    few = max(1, wish.users // 4)
    return [
        Stage(few, wish.rate, wish.seconds),
        Stage(wish.users, SPIKE_RATE, wish.seconds),
        Stage(few, SPIKE_RATE, wish.seconds),
    ]


def _soak(wish: Wish) -> list[Stage]:
    return [Stage(wish.users, wish.rate, wish.seconds / _PARTS)] * _PARTS


_MAKERS: Final = {"steady": _steady, "steps": _steps, "ramp": _ramp, "spike": _spike, "soak": _soak}


class Walk:
    """Where a run is in its stages: asked about once a second, as Locust asks its shape.

    Args:
        stages: in order.
        settle_s: seconds between reaching a level and measuring it, for the greetings.
    """

    def __init__(self, stages: Sequence[Stage], settle_s: float = 2.0) -> None:
        self._stages = stages
        self._settle_s = settle_s
        self._reached_at: float | None = None
        self.index = 0
        self.marks: list[Mark] = []

    def now(self, now: float, users: int) -> Stage | None:
        """The stage that shall be, or None at the end; ``users`` are those that there are."""
        if self.index >= len(self._stages):
            return None
        stage = self._stages[self.index]
        if self._reached_at is None:
            if users == stage.users:
                self._reached_at = now + self._settle_s
                self.marks.append(Mark(users, self._reached_at, self._reached_at + stage.seconds))
        elif now >= self._reached_at + stage.seconds:
            self._reached_at = None
            self.index += 1
            return self.now(now, users)
        return stage


class Mark(msgspec.Struct, frozen=True):
    """A level that was reached: its users, and the window (``time.monotonic``) in which it is measured."""

    users: int
    start: float
    stop: float
