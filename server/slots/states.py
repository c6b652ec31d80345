"""The states of a slot, as a table.

    starting ──▶ standby ──▶ active ──▶ draining ──▶ standby
                    │           │           │
                    ▼           ▼           ▼
                  audit ──▶  failed ◀── (any state: the process ended, hangs, or could not start) ──▶ starting

``starting``: opening and warming its models. ``standby``: ready, and used by nobody. ``active``: workers send it runs.
``audit``: reserved for long jobs. ``draining``: takes no new runs, finishes those it has. ``failed``: its process has
ended or is being ended; the next incarnation begins with ``starting``.
"""

from __future__ import annotations

from enum import StrEnum

from framelane.server import transitions


class State(StrEnum):
    """See the table above."""

    STARTING = "starting"
    STANDBY = "standby"
    ACTIVE = "active"
    AUDIT = "audit"
    DRAINING = "draining"
    FAILED = "failed"


FOLLOWERS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.STANDBY, State.FAILED}),
    State.STANDBY: frozenset({State.ACTIVE, State.AUDIT, State.DRAINING, State.FAILED}),
    State.ACTIVE: frozenset({State.DRAINING, State.FAILED}),
    State.AUDIT: frozenset({State.STANDBY, State.DRAINING, State.FAILED}),
    State.DRAINING: frozenset({State.STANDBY, State.FAILED}),
    State.FAILED: frozenset({State.STARTING}),
}


def follow(state: State, new: State) -> State:
    """``new``, if it may follow ``state``.

    Raises:
        transitions.IllegalTransition: naming both.
    """
    return transitions.follow(FOLLOWERS, "a slot", state, new)
