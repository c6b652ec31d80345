"""Who the users are and what they do: the personas of an audience and their lives. No clock and no I/O here.

    steady     everybody streams at the chosen rate for as long as the run lasts
    audience   what a campaign page sees: people who stop to think, tabs in the background, phones that turn, slow and
               lossy networks, connections that are lost, one by one and all at once
    hostile    the same, and one in five does harm: never reads, speaks an old protocol, sends garbage

A persona says how often something happens; a ``Life`` draws when. Honest users' figures are told apart from all others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

Conduct = Literal["honest", "deaf", "old", "garbage"]
STORM_EVERY_S = 30.0
"""Between moments at which all who share a router lose their connection."""


class Act(StrEnum):
    """What a user does."""

    PAUSE = "pause"
    RESUME = "resume"
    HIDE = "hide"
    SHOW = "show"
    TURN = "turn"
    VANISH = "vanish"


class Persona(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of user. Times are means in seconds; 0: never.

    Attributes:
        share: of the audience, relative to the other personas'.
        link: its network (``network.LINKS``).
        streams_s, thinks_s: how long it streams, and how long it then does something else.
        visible_s, hidden_s: how long its tab is in front, and how long behind: nothing is sent then.
        turns_s: between turns of the phone, which change the picture's size.
        vanishes_s: between losses of the connection; the client kit comes back by itself.
        storms: whether it loses its connection together with others (``STORM_EVERY_S``).
        conduct: whether it keeps to the protocol.
        paced: whether it keeps to the pace that the server asks for, as the client kits do.
        haste: its frame rate over that of everybody else.
    """

    name: str
    share: float = 1.0
    link: str = "good"
    streams_s: float = 0.0
    thinks_s: float = 0.0
    visible_s: float = 0.0
    hidden_s: float = 0.0
    turns_s: float = 0.0
    vanishes_s: float = 0.0
    storms: bool = False
    conduct: Conduct = "honest"
    paced: bool = True
    haste: float = 1.0

    @property
    def honest(self) -> bool:
        """Whether its figures count as a customer's."""
        return self.conduct == "honest"


STEADY: Final = Persona(name="steady", paced=False)
_PEOPLE: Final = (
    Persona(name="desktop", share=35, streams_s=40, thinks_s=5),
    Persona(name="tabs", share=15, visible_s=20, hidden_s=8),
    Persona(name="phone", share=20, link="4g", turns_s=15, streams_s=30, thinks_s=4),
    Persona(name="wifi", share=15, link="lossy-wifi"),
    Persona(name="slow-3g", share=5, link="slow-3g"),
    Persona(name="train", share=5, link="4g", vanishes_s=15),
    Persona(name="office", share=5, storms=True),
)
_HARM: Final = (
    Persona(name="deaf", share=9, conduct="deaf", paced=False, haste=10),
    Persona(name="old", share=8, conduct="old"),
    Persona(name="garbage", share=8, conduct="garbage", paced=False),
)
AUDIENCES: Final[dict[str, tuple[Persona, ...]]] = {
    "steady": (STEADY,),
    "audience": _PEOPLE,
    "hostile": (*_PEOPLE, *_HARM),
}


def cast(personas: Sequence[Persona], number: int) -> Persona:
    """The persona of the user with this number: in every stretch of numbers each has its share.

    The fractional parts of the multiples of the golden ratio lie more evenly than random numbers (Weyl 1916).
    """
    place = math.modf(number * (math.sqrt(5) - 1) / 2)[0] * sum(persona.share for persona in personas)
    for persona in personas:
        place -= persona.share
        if place < 0:
            return persona
    return personas[-1]


class Life:
    """When a persona does what, from its beginning on.

    Args:
        persona: who.
        begin: the moment its life begins, in seconds; acts are on the same clock.
        exponential: draws an exponentially distributed number with the given rate (``random.Random.expovariate``).
    """

    def __init__(self, persona: Persona, begin: float, exponential: Callable[[float], float]) -> None:
        self._draw = exponential
        self._means = {
            Act.PAUSE: persona.streams_s,
            Act.RESUME: persona.thinks_s,
            Act.HIDE: persona.visible_s,
            Act.SHOW: persona.hidden_s,
            Act.TURN: persona.turns_s,
            Act.VANISH: persona.vanishes_s,
        }
        self._heap: list[tuple[float, str, bool]] = []
        for act in (Act.PAUSE, Act.HIDE, Act.TURN, Act.VANISH):
            self._schedule(act, begin)
        if persona.storms:
            heapq.heappush(self._heap, (_next_storm(begin), Act.VANISH, True))

    def acts(self) -> Iterator[tuple[float, Act]]:
        """Moments and acts in order, without end; none if nothing ever happens."""
        while self._heap:
            at, name, storm = heapq.heappop(self._heap)
            act = Act(name)
            if storm:
                heapq.heappush(self._heap, (_next_storm(at), act, True))
            else:
                self._schedule(_FOLLOWS[act], at)
            yield at, act

    def _schedule(self, act: Act, after: float) -> None:
        if self._means[act]:
            heapq.heappush(self._heap, (after + self._draw(1 / self._means[act]), act, False))


_FOLLOWS: Final = {
    Act.PAUSE: Act.RESUME,
    Act.RESUME: Act.PAUSE,
    Act.HIDE: Act.SHOW,
    Act.SHOW: Act.HIDE,
    Act.TURN: Act.TURN,
    Act.VANISH: Act.VANISH,
}


def _next_storm(now: float) -> float:
    return (math.floor(now / STORM_EVERY_S) + 1) * STORM_EVERY_S


class Presence:
    """Whether a user streams: only while it neither thinks nor is hidden."""

    def __init__(self) -> None:
        self._thinks = self._hidden = False

    @property
    def streams(self) -> bool:
        """Whether frames are due now."""
        return not self._thinks and not self._hidden

    def does(self, act: Act) -> None:
        """The user did something."""
        if act in (Act.PAUSE, Act.RESUME):
            self._thinks = act is Act.PAUSE
        elif act in (Act.HIDE, Act.SHOW):
            self._hidden = act is Act.HIDE


def with_turns(audience: str, sizes: Sequence[str]) -> tuple[str, ...]:
    """The sizes of pictures that an audience needs: where phones turn, each upright too."""
    if not any(persona.turns_s for persona in AUDIENCES[audience]):
        return tuple(sizes)
    return (*sizes, *("x".join(reversed(size.split("x"))) for size in sizes))
