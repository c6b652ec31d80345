"""One table of states, in three places that must agree: the protocol's docstring, states.py and states.js."""

import re

import pytest

from framelane.server import protocol
from framelane.server.sdk.states import TABLE, State, next_state

# How the docstring's words for what happens read as events.
EVENTS = {
    "connect": ["connect"],
    "transport open": ["opened"],
    "transport error": ["lost"],
    "transport lost": ["lost"],
    "ready": ["ready"],
    "waiting": ["waiting"],
    "refused, connect_error (retryable)": ["refused_for_now"],
    "refused, connect_error (other)": ["refused"],
    "result, dropped, error": ["answered"],
    "result, dropped": ["answered"],
    "pace": ["pace"],
    "drain": ["drain"],
    "expires": ["expires"],
    "refused (retryable)": ["refused_for_now"],
    "refused (other)": ["refused"],
    "all answered, or transport lost": ["all_answered", "lost"],
    "the wait is over": ["elapsed"],
}


def documented() -> dict[tuple[str, str], str]:
    """(state, event) → next state, as the protocol's docstring has it."""
    lines = protocol.__doc__.partition("    state        on")[2].splitlines()[1:]
    found = {}
    for line in filter(str.strip, lines):
        row = re.match(r"    (?P<states>greeting … live:|[\w,]+)\s+(?P<on>\S.*?)\s{2,}(?P<next>\w+)(\s{2,}|$)", line)
        assert row, f"no row of the table: {line!r}"
        states = ["greeting", "waiting", "live"] if "…" in row["states"] else row["states"].split(",")
        found |= {(state, event): row["next"] for state in states for event in EVENTS[row["on"]]}
    return found


def test_python_has_the_documented_table():
    assert {(state, event): to for state, row in TABLE.items() for event, to in row.items()} == documented()


def test_javascript_has_the_same_table(javascript):
    table = javascript.evaluate("import('/sdk/states.js').then(({ TABLE }) => TABLE)")
    assert table == {state: dict(row) for state, row in TABLE.items()}


def test_every_state_can_be_closed():
    assert {next_state(state, "close") for state in State} == {State.CLOSED}


def test_transition_that_is_not_in_the_table_raises():
    with pytest.raises(ValueError, match="a client that is idle knows no ready"):
        next_state(State.IDLE, "ready")


def test_javascript_raises_for_a_transition_that_is_not_in_the_table(javascript):
    said = javascript.evaluate("import('/sdk/states.js').then(({ next }) => next('idle', 'ready')).catch(String)")
    assert said == "Error: a client that is idle knows no ready"
