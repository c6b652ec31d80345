"""Who serves, who stands by, who is restarted when: the decisions about a fleet's replicas. No I/O, no clock.

What happened comes in (``probed``, ``ended``, ``roll``), what must be done goes out (``turn`` returns actions); the
shell (``fleet.py``) acts. The rules:

- Active are as many as are wanted, as long as so many are ready. A spare takes over in the very turn in which an active
  one ends or stops answering: it is ready, so there is nothing to start.
- An ended replica is started again, at once if it had lived for a while, later and later if it had not; one that says
  again and again that it cannot start is given up (the same ``Budget`` as for workers and slots).
- A rolling restart takes one replica at a time, spares first, and goes on only when all are ready again. A spare
  replaces an active one *before* that one is asked to drain, and comes from it afterwards.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from framelane.preprocess.keeper import Budget

from .layout import Member
from .states import State, follow

MISSES = 3
"""Probes in a row without a good answer until a replica is unwell."""
UNWELL_S = 10.0
"""An unwell replica that is not well again by then is killed."""

_STEADY = {State.SPARE, State.ACTIVE}


class Verb(StrEnum):
    """What the shell must do with a replica."""

    START = "start"
    OPEN = "open"
    """Let the balancer give it clients."""
    SHUT = "shut"
    """Let the balancer give it no new ones; those that it has, stay."""
    DRAIN = "drain"
    """Ask the process to end (SIGTERM)."""
    KILL = "kill"


class Action(NamedTuple):
    """Do this with that replica; ``why`` is for the log."""

    verb: Verb
    number: int
    why: str


class Entry:
    """What is known of one replica.

    Attributes:
        share: which set of CPUs it has.
        born: when its process was started.
        restarts: how often its process was started again.
        due: when it is started, while it is down.
        until: when it is killed, while it drains or does not answer.
        reasons: why it was not ready when it was asked last.
        misses: probes in a row that it has not answered.
        budget: how soon it is started again.
        asked: whether it was asked to end, so that its end is no failure.
    """

    def __init__(self, member: Member, share: int) -> None:
        self.member = member
        self.share = share
        self.state = State.DOWN
        self.since = 0.0
        self.born = 0.0
        self.due = 0.0
        self.until = math.inf
        self.restarts = -1
        self.misses = 0
        self.budget = Budget()
        self.reasons: list[str] = []
        self.asked = False


class Roster:
    """The replicas of a fleet.

    Args:
        members: all of them.
        active: how many are to serve at the same time.
        drain_s: how long one may take to end when it was asked to.
    """

    def __init__(self, members: Iterable[Member], active: int, drain_s: float) -> None:
        self._wanted = active
        self._drain_s = drain_s
        self._rolling: deque[int] = deque()
        self._pending: list[Action] = []
        self._leaving = False
        self._complete = False
        self.entries = {member.number: Entry(member, index % active) for index, member in enumerate(members)}
        self.takeovers = 0
        self.rolls = 0

    # -- what happened -----------------------------------------------------------------------------------------------

    def probed(self, number: int, reasons: list[str] | None, now: float) -> None:
        """A replica was asked whether it is ready: it is (no reasons), is not, or did not answer (None)."""
        entry = self.entries[number]
        entry.misses = entry.misses + 1 if reasons is None else 0
        entry.reasons = ["no answer"] if reasons is None else reasons
        if not entry.reasons:
            if entry.state in (State.STARTING, State.UNWELL):
                self._enter(entry, State.SPARE, now)
        elif entry.state in _STEADY and (reasons or entry.misses >= MISSES):
            self._enter(entry, State.UNWELL, now)
            entry.until = now + UNWELL_S
            self._pending.append(Action(Verb.SHUT, number, f"it is not ready: {', '.join(entry.reasons)}"))
        elif entry.state is State.UNWELL and reasons:
            entry.until = now + UNWELL_S  # it answers, so it knows, and does about it what can be done

    def ended(self, number: int, now: float, *, could_start: bool = True) -> None:
        """A replica's process has ended; not ``could_start``: it said that it cannot start."""
        entry = self.entries[number]
        if entry.state is State.ACTIVE:
            self._pending.append(Action(Verb.SHUT, number, "its process has ended"))
        self._enter(entry, State.DOWN, now)
        entry.due = now
        if not entry.asked:
            pause = entry.budget.pause(now - entry.born, could_start=could_start)
            entry.due = now + (pause or 0.0)
            if pause is None:
                self._enter(entry, State.GIVEN_UP, now)

    def roll(self) -> bool:
        """Begin a rolling restart; False if one is going on. Those that were given up get another chance."""
        if self._rolling or self._leaving:
            return False
        order = sorted(self.entries.values(), key=lambda entry: entry.state is State.ACTIVE)
        self._rolling.extend(entry.member.number for entry in order)
        self.rolls += 1
        return True

    def leave(self) -> None:
        """The fleet goes away: nothing is started or promoted any more, all are asked to end."""
        self._leaving = True
        self._rolling.clear()

    # -- what is so --------------------------------------------------------------------------------------------------

    @property
    def rolling(self) -> int:
        """Replicas that a rolling restart still has before it."""
        return len(self._rolling)

    def of(self, *states: State) -> list[Entry]:
        """The replicas in one of these states."""
        return [entry for entry in self.entries.values() if entry.state in states]

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: all are ready, or given up."""
        return all(entry.state in _STEADY | {State.GIVEN_UP} for entry in self.entries.values())

    @property
    def hopeless(self) -> bool:
        """Whether none is left to hope for."""
        return all(entry.state is State.GIVEN_UP for entry in self.entries.values())

    # -- what must be done -------------------------------------------------------------------------------------------

    def turn(self, now: float) -> list[Action]:
        """What must be done now. Call it whenever something happened, and now and then."""
        if self._leaving:
            return self._farewell(now)
        actions, self._pending = self._pending, []
        return [*actions, *self._hung(now), *self._promote(now), *self._roll_on(now), *self._start(now)]

    def _farewell(self, now: float) -> list[Action]:
        states = (State.STARTING, State.SPARE, State.ACTIVE, State.UNWELL)
        going = [self._retire(entry, now, "the fleet goes away") for entry in self.of(*states)]
        return going + self._hung(now)

    def _hung(self, now: float) -> list[Action]:
        """Those that do not answer, or do not end, for too long."""
        actions = []
        for entry in self.of(State.UNWELL, State.DRAINING):
            if now >= entry.until:
                entry.until = now + UNWELL_S  # its end is on its way
                why = "it did not end in time" if entry.state is State.DRAINING else "it does not answer"
                actions.append(Action(Verb.KILL, entry.member.number, why))
        return actions

    def _promote(self, now: float) -> list[Action]:
        actions = []
        for _ in range(self._wanted - len(self.of(State.ACTIVE))):
            entry = self._best_spare()
            if entry is None:
                break
            taken = [other.share for other in self.of(State.ACTIVE)]
            share = min(range(self._wanted), key=lambda share: (taken.count(share), share != entry.share))
            why = "it takes over" if self._complete else "one of the first"
            self.takeovers += self._complete
            actions.append(self._activate(entry, share, now, why))
        self._complete |= len(self.of(State.ACTIVE)) == self._wanted
        return actions

    def _activate(self, entry: Entry, share: int, now: float, why: str) -> Action:
        entry.share = share
        self._enter(entry, State.ACTIVE, now)
        return Action(Verb.OPEN, entry.member.number, why)

    def _roll_on(self, now: float) -> list[Action]:
        if not self._rolling or not self.settled:
            return []
        entry = self.entries[self._rolling.popleft()]
        if entry.state is State.GIVEN_UP:
            entry.budget = Budget()
            return [self._begin(entry, now, "another chance, with the rolling restart")]
        actions = []
        if entry.state is State.ACTIVE:
            spare = self._best_spare()
            if spare is not None:
                actions.append(self._activate(spare, entry.share, now, f"it replaces {entry.member.name}"))
            actions.append(Action(Verb.SHUT, entry.member.number, "rolling restart"))
        return [*actions, self._retire(entry, now, "rolling restart")]

    def _retire(self, entry: Entry, now: float, why: str) -> Action:
        entry.asked = True
        self._enter(entry, State.DRAINING, now)
        entry.until = now + self._drain_s
        return Action(Verb.DRAIN, entry.member.number, why)

    def _start(self, now: float) -> list[Action]:
        return [self._begin(entry, now, "its turn to start") for entry in self.of(State.DOWN) if now >= entry.due]

    def _begin(self, entry: Entry, now: float, why: str) -> Action:
        entry.restarts += 1
        entry.asked = False
        entry.born = now
        self._enter(entry, State.STARTING, now)
        return Action(Verb.START, entry.member.number, why)

    def _best_spare(self) -> Entry | None:
        """The ready spare on the device that has the fewest active replicas."""
        on = [entry.member.device for entry in self.of(State.ACTIVE)]
        return min(self.of(State.SPARE), key=lambda entry: on.count(entry.member.device), default=None)

    def _enter(self, entry: Entry, state: State, now: float) -> None:
        entry.state = follow(entry.state, state)
        entry.since = now
        entry.misses = 0
        entry.until = math.inf
