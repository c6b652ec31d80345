"""What follows from the other replicas' counts."""

from framelane.server.fleet.messages import Beat
from framelane.server.fleet.peers import FORGET_S, Peers


def peers(most: int | None, *beats: Beat, own: str = "a", told: int = 0) -> Peers:
    found = Peers(own, most)
    found.told(Beat(replica=own, admitted=told))
    for beat in beats:
        found.heard(beat, 100.0)
    return found


def beat(replica: str, admitted: int = 0, *line: float) -> Beat:
    return Beat(replica=replica, admitted=admitted, waiting=len(line), line=list(line))


def test_without_a_limit_for_the_fleet_each_decides_by_itself() -> None:
    assert peers(None, beat("b", 99)).places(5, [], 100.0, reachable=True) is None


def test_free_places_are_divided_while_nobody_waits() -> None:
    assert peers(10, beat("b", 3), told=3).places(3, [], 100.0, reachable=True) == 2
    assert peers(10, beat("b", 3), beat("c", 0), told=4).places(4, [], 100.0, reachable=True) == 1


def test_a_part_that_was_given_away_is_not_given_twice_before_the_next_beat() -> None:
    known = peers(10, beat("b", 4), told=4)
    assert known.places(4, [], 100.0, reachable=True) == 1
    assert known.places(5, [], 100.0, reachable=True) == 0


def test_a_place_that_falls_free_here_is_everybodys() -> None:
    known = peers(2, beat("b", 1, 50.0), told=1)
    assert known.places(0, [60.0], 100.0, reachable=True) == 0


def test_who_waits_longest_gets_the_free_place_wherever_it_waits() -> None:
    assert peers(2, beat("b", 0, 50.0), told=1).places(1, [60.0], 100.0, reachable=True) == 0
    assert peers(2, beat("b", 0, 70.0), told=1).places(1, [60.0], 100.0, reachable=True) == 1
    assert peers(4, beat("b", 0, 70.0), told=1).places(1, [60.0, 65.0, 80.0], 100.0, reachable=True) == 2


def test_a_newcomer_does_not_go_before_those_who_wait_elsewhere() -> None:
    assert peers(2, beat("b", 0, 50.0), told=1).places(1, [], 100.0, reachable=True) == 0


def test_one_that_is_heard_no_more_holds_no_places() -> None:
    known = peers(10, beat("b", 6), told=2)
    assert known.places(2, [], 100.0 + FORGET_S, reachable=True) == 1
    assert known.places(2, [], 101.0 + FORGET_S, reachable=True) == 8


def test_a_replica_that_reaches_nobody_keeps_to_its_equal_share() -> None:
    known = peers(10, beat("b", 6), told=2)
    known.others(100.0)
    assert known.places(2, [], 200.0, reachable=False) == 3
    assert known.places(6, [], 200.0, reachable=False) == 0


def test_a_position_counts_those_who_wait_elsewhere_for_longer() -> None:
    known = peers(1, beat("b", 0, 10.0, 20.0), beat("c", 0, 15.0))
    assert known.ahead(12.0, 100.0) == 1
    assert known.ahead(99.0, 100.0) == 3
    known.heard(Beat(replica="b", waiting=500, line=[10.0, 20.0]), 100.0)
    assert known.ahead(99.0, 100.0) == 501


def test_its_own_beat_is_no_peer() -> None:
    assert peers(None, beat("a", 5)).others(100.0) == []
