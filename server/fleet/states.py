"""The states of a replica in a fleet, as a table.

    starting ──▶ spare ──▶ active ──▶ draining ──▶ down ──▶ starting
                   ▲ │        │                     ▲          │
                   │ └─▶ unwell ◀──┘                │          ▼
                   └────────┘ (any state: its process has ended)  given_up

``starting``: its process lives and is not ready yet. ``spare``: ready; the balancer gives it nothing. ``active``:
ready, and gets new clients. ``unwell``: it lives and was ready, but does not answer or says that it is not: no new
clients; when it is well again it is a spare, and if it does not answer for long it is killed. ``draining``: it was
asked to end, and finishes what it has. ``down``: its process has ended, and will be started again. ``given_up``: it
cannot start.
"""

from __future__ import annotations

from enum import StrEnum

from framelane.server import transitions


class State(StrEnum):
    """See the table above."""

    STARTING = "starting"
    SPARE = "spare"
    ACTIVE = "active"
    UNWELL = "unwell"
    DRAINING = "draining"
    DOWN = "down"
    GIVEN_UP = "given_up"


FOLLOWERS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.SPARE, State.DRAINING, State.DOWN}),
    State.SPARE: frozenset({State.ACTIVE, State.UNWELL, State.DRAINING, State.DOWN}),
    State.ACTIVE: frozenset({State.UNWELL, State.DRAINING, State.DOWN}),
    State.UNWELL: frozenset({State.SPARE, State.DRAINING, State.DOWN}),
    State.DRAINING: frozenset({State.DOWN}),
    State.DOWN: frozenset({State.STARTING, State.GIVEN_UP}),
    State.GIVEN_UP: frozenset({State.STARTING}),
}


def follow(state: State, new: State) -> State:
    """``new``, if it may follow ``state``.

    Raises:
        transitions.IllegalTransition: naming both.
    """
    return transitions.follow(FOLLOWERS, "a replica", state, new)
