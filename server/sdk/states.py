"""The client's states: the table in ``framelane.server.protocol``, as in states.js. A test holds all three equal."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a client is between not wanting a connection and having one."""

    IDLE = "idle"
    CONNECTING = "connecting"
    GREETING = "greeting"
    WAITING = "waiting"
    LIVE = "live"
    DRAINING = "draining"
    BACKOFF = "backoff"
    CLOSED = "closed"


TABLE: Final[Mapping[str, Mapping[str, State]]] = {
    State.IDLE: {"connect": State.CONNECTING},
    State.CONNECTING: {"opened": State.GREETING, "lost": State.BACKOFF},
    State.GREETING: {
        "ready": State.LIVE,
        "waiting": State.WAITING,
        "refused_for_now": State.BACKOFF,
        "refused": State.CLOSED,
        "lost": State.BACKOFF,
    },
    State.WAITING: {
        "waiting": State.WAITING,
        "ready": State.LIVE,
        "expires": State.WAITING,
        "drain": State.DRAINING,
        "refused_for_now": State.BACKOFF,
        "refused": State.CLOSED,
        "lost": State.BACKOFF,
    },
    State.LIVE: {
        "answered": State.LIVE,
        "pace": State.LIVE,
        "expires": State.LIVE,
        "drain": State.DRAINING,
        "refused_for_now": State.BACKOFF,
        "refused": State.CLOSED,
        "lost": State.BACKOFF,
    },
    State.DRAINING: {
        "answered": State.DRAINING,
        "all_answered": State.BACKOFF,
        "refused_for_now": State.BACKOFF,
        "refused": State.CLOSED,
        "lost": State.BACKOFF,
    },
    State.BACKOFF: {"elapsed": State.CONNECTING},
    State.CLOSED: {"connect": State.CONNECTING},
}
"""State → event → next state. `close`, the application's own, ends in `closed` from anywhere."""


def next_state(state: State, event: str) -> State:
    """The state after `event`.

    Raises:
        ValueError: the table has no such transition.
    """
    target = State.CLOSED if event == "close" else TABLE[state].get(event)
    if target is None:
        raise ValueError(f"a client that is {state} knows no {event}")
    return target
