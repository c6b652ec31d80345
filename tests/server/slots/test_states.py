"""The states of a slot: every pair of states, one by one."""

import itertools

import pytest

from framelane.server.slots.states import FOLLOWERS, State, follow
from framelane.server.transitions import IllegalTransition

ALLOWED = {
    ("starting", "standby"),
    ("standby", "active"),
    ("standby", "audit"),
    ("standby", "draining"),
    ("active", "draining"),
    ("audit", "standby"),
    ("audit", "draining"),
    ("draining", "standby"),
    ("failed", "starting"),
    *((state, "failed") for state in ("starting", "standby", "active", "audit", "draining")),
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(State, State)), ids=str)
def test_each_state_may_be_followed_by_those_of_the_table_and_no_others(old: State, new: State) -> None:
    if (old, new) in ALLOWED:
        assert follow(old, new) is new
    else:
        with pytest.raises(IllegalTransition, match=f"a slot that is {old} cannot become {new}"):
            follow(old, new)


def test_the_table_names_every_state() -> None:
    assert set(FOLLOWERS) == set(State)


def test_every_state_can_fail_and_every_failed_slot_can_serve_again() -> None:
    for state in State:
        reached, edge = {state}, {state}
        while edge:
            edge = {new for old in edge for new in FOLLOWERS[old]} - reached
            reached |= edge
        assert State.ACTIVE in reached
        assert state is State.FAILED or State.FAILED in FOLLOWERS[state]


def test_nothing_serves_clients_before_it_was_warm() -> None:
    assert [state for state in State if State.ACTIVE in FOLLOWERS[state]] == [State.STANDBY]
