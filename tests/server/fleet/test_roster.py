"""Who serves, who stands by, who is restarted when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framelane.server.fleet.layout import Member
from framelane.server.fleet.roster import MISSES, UNWELL_S, Action, Roster, Verb
from framelane.server.fleet.states import State, follow
from framelane.server.transitions import IllegalTransition

DRAIN_S = 15.0


def roster_of(count: int, active: int, devices: tuple[str, ...] = ("cuda:0",)) -> Roster:
    members = [Member(number=n + 1, device=devices[n % len(devices)], port=8001 + n) for n in range(count)]
    return Roster(members, active, DRAIN_S)


def running(count: int = 3, active: int = 2, devices: tuple[str, ...] = ("cuda:0",)) -> Roster:
    """A fleet whose replicas are all ready."""
    roster = roster_of(count, active, devices)
    roster.turn(0.0)
    for number in roster.entries:
        roster.probed(number, [], 1.0)
    roster.turn(1.0)
    return roster


def verbs(actions: list[Action]) -> list[tuple[Verb, int]]:
    return [(action.verb, action.number) for action in actions]


def states(roster: Roster) -> list[State]:
    return [entry.state for entry in roster.entries.values()]


def test_all_are_started_and_the_first_that_are_ready_serve() -> None:
    roster = roster_of(3, 2)
    assert verbs(roster.turn(0.0)) == [(Verb.START, 1), (Verb.START, 2), (Verb.START, 3)]
    roster.probed(3, [], 1.0)
    assert verbs(roster.turn(1.0)) == [(Verb.OPEN, 3)]
    roster.probed(1, [], 2.0)
    roster.probed(2, [], 2.0)
    assert verbs(roster.turn(2.0)) == [(Verb.OPEN, 1)]
    assert states(roster) == [State.ACTIVE, State.SPARE, State.ACTIVE]
    assert roster.takeovers == 0


def test_a_spare_takes_over_in_the_turn_after_a_death_without_a_start() -> None:
    roster = running()
    roster.ended(1, 50.0)
    actions = verbs(roster.turn(50.0))
    assert actions == [(Verb.SHUT, 1), (Verb.OPEN, 3), (Verb.START, 1)]
    assert roster.takeovers == 1


def test_the_dead_one_comes_back_as_the_spare() -> None:
    roster = running()
    roster.ended(1, 50.0)
    roster.turn(50.0)
    roster.probed(1, [], 55.0)
    assert roster.turn(55.0) == []
    assert states(roster) == [State.SPARE, State.ACTIVE, State.ACTIVE]


def test_a_spare_takes_over_the_cpus_of_the_one_that_it_replaces() -> None:
    roster = running()
    assert [entry.share for entry in roster.entries.values()] == [0, 1, 0]
    roster.ended(2, 50.0)
    roster.turn(50.0)
    assert roster.entries[3].share == 1


def test_the_spare_on_the_emptiest_device_takes_over() -> None:
    roster = running(4, 2, ("cuda:0", "cuda:1"))
    assert states(roster) == [State.ACTIVE, State.ACTIVE, State.SPARE, State.SPARE]
    roster.ended(2, 50.0)
    assert (Verb.OPEN, 4) in verbs(roster.turn(50.0))


def test_a_few_missed_probes_are_forgiven_and_more_are_not() -> None:
    roster = running()
    for _ in range(MISSES - 1):
        roster.probed(1, None, 10.0)
    roster.probed(1, [], 10.5)
    assert roster.turn(10.5) == []
    for _ in range(MISSES):
        roster.probed(1, None, 11.0)
    assert verbs(roster.turn(11.0)) == [(Verb.SHUT, 1), (Verb.OPEN, 3)]


def test_one_that_does_not_answer_is_killed_and_one_that_says_why_is_not() -> None:
    roster = running(4, 2)
    roster.probed(1, ["no slot is active"], 10.0)
    for _ in range(MISSES):
        roster.probed(2, None, 10.0)
    roster.turn(10.0)
    roster.probed(1, ["no slot is active"], 10.0 + UNWELL_S)
    assert verbs(roster.turn(10.0 + UNWELL_S)) == [(Verb.KILL, 2)]
    assert roster.turn(10.1 + UNWELL_S) == []


def test_a_replica_that_is_well_again_is_a_spare() -> None:
    roster = running()
    roster.probed(1, ["no slot is active"], 10.0)
    roster.turn(10.0)
    roster.probed(1, [], 12.0)
    assert roster.turn(12.0) == []
    assert roster.entries[1].state is State.SPARE


def test_without_a_spare_a_well_one_serves_again() -> None:
    roster = running(2, 2)
    roster.probed(1, ["no slot is active"], 10.0)
    assert verbs(roster.turn(10.0)) == [(Verb.SHUT, 1)]
    roster.probed(1, [], 12.0)
    assert verbs(roster.turn(12.0)) == [(Verb.OPEN, 1)]


def test_short_lives_are_followed_by_longer_and_longer_waits() -> None:
    roster, now, waits = running(), 100.0, []
    for _ in range(6):
        roster.ended(1, now)
        died = now
        while (Verb.START, 1) not in verbs(roster.turn(now)):
            now += 0.05
        waits.append(now - died)
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert 1 < waits[-1] <= 10.1


def test_one_that_cannot_start_is_given_up_until_the_next_rolling_restart() -> None:
    roster, now = running(), 100.0
    while roster.entries[1].state is not State.GIVEN_UP:
        roster.ended(1, now, could_start=False)
        now += 30.0
        roster.turn(now)
        assert now < 2000
    assert roster.turn(now + 1000) == []
    assert not roster.hopeless
    roster.roll()
    assert (Verb.START, 1) in [step for _ in range(2) for step in verbs(finish(roster, now + 1001))]


def finish(roster: Roster, now: float) -> list[Action]:
    """One turn of a rolling restart, in which whoever is asked to end does so, and is ready again."""
    actions = roster.turn(now)
    for action in actions:
        if action.verb is Verb.DRAIN:
            roster.ended(action.number, now)
    actions += roster.turn(now)
    for entry in roster.of(State.STARTING):
        roster.probed(entry.member.number, [], now)
    return actions


def test_rolling_restart_takes_spares_first_and_one_at_a_time() -> None:
    roster = running()
    assert roster.roll()
    assert not roster.roll(), "one at a time"
    steps = [verbs(finish(roster, 100.0 + n)) for n in range(4)]
    assert steps[0] == [(Verb.DRAIN, 3), (Verb.START, 3)]
    assert steps[1] == [(Verb.OPEN, 3), (Verb.SHUT, 1), (Verb.DRAIN, 1), (Verb.START, 1)]
    assert steps[2] == [(Verb.OPEN, 1), (Verb.SHUT, 2), (Verb.DRAIN, 2), (Verb.START, 2)]
    assert steps[3] == []
    assert roster.rolling == 0
    assert len(roster.of(State.ACTIVE)) == 2


def test_rolling_restart_waits_until_all_are_ready() -> None:
    roster = running()
    roster.roll()
    roster.turn(100.0)
    roster.ended(3, 101.0)
    assert verbs(roster.turn(101.0)) == [(Verb.START, 3)]
    assert roster.turn(130.0) == []
    roster.ended(1, 131.0)  # meanwhile another one dies: it comes back first
    assert (Verb.DRAIN, 2) not in verbs(roster.turn(131.0))
    roster.probed(3, [], 132.0)
    assert verbs(roster.turn(132.0)) == [(Verb.OPEN, 3)]


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    roster = running()
    for turn in range(20):
        roster.roll()
        for step in range(4):
            finish(roster, 100.0 + turn + step / 10)
    assert roster.settled


def test_one_that_does_not_end_in_time_is_killed() -> None:
    roster = running()
    roster.roll()
    assert verbs(roster.turn(100.0)) == [(Verb.DRAIN, 3)]
    assert roster.turn(99.9 + DRAIN_S) == []
    assert verbs(roster.turn(100.0 + DRAIN_S)) == [(Verb.KILL, 3)]


def test_leaving_drains_all_and_starts_nothing() -> None:
    roster = running()
    roster.ended(1, 10.0)
    roster.leave()
    assert verbs(roster.turn(10.0)) == [(Verb.DRAIN, 2), (Verb.DRAIN, 3)]
    roster.ended(2, 11.0)
    roster.ended(3, 11.0)
    assert roster.turn(60.0) == []
    assert not roster.roll()


def test_states_change_by_the_table_only() -> None:
    with pytest.raises(IllegalTransition, match="down cannot become active"):
        follow(State.DOWN, State.ACTIVE)


EVENTS = st.lists(st.tuples(st.sampled_from(["ready", "sick", "mute", "end", "roll", "time"]), st.integers(1, 4)))


@given(EVENTS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_no_ready_spare_waits_while_an_active_is_missing(events: list[tuple[str, int]]) -> None:
    roster, now = running(4, 2), 10.0
    drained: set[int] = set()
    for event, number in events:
        entry = roster.entries[number]
        now += 0.5
        if event in ("ready", "sick", "mute") and entry.state not in (State.DOWN, State.GIVEN_UP):
            roster.probed(number, {"ready": [], "sick": ["sick"], "mute": None}[event], now)
        elif event == "end" and entry.state not in (State.DOWN, State.GIVEN_UP):
            roster.ended(number, now)
            drained.discard(number)
        elif event == "roll":
            roster.roll()
        for action in roster.turn(now):
            if action.verb is Verb.DRAIN:
                drained.add(action.number)
        assert len(drained) <= 1, "one at a time"
        assert len(roster.of(State.ACTIVE)) <= 2
        assert len(roster.of(State.ACTIVE)) == 2 or not roster.of(State.SPARE)
