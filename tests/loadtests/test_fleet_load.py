"""What the clients of a fleet note down."""

import math

import pytest

from framelane.loadtests.fleet_check import CHECKS
from framelane.loadtests.fleet_load import Answered, Crowd, Outage


def crowd_with(*answers: Answered, outages: tuple[Outage, ...] = ()) -> Crowd:
    crowd = Crowd("http://localhost", [b""], 2, 1.0)
    crowd.answers, crowd.outages = list(answers), list(outages)
    return crowd


def test_what_the_server_asked_for_is_not_held_against_it() -> None:
    asked = Outage(client=0, began=10.0, ended=13.5, reason="draining", hint_s=3.0)
    assert asked.beyond_hint_s == pytest.approx(0.5)
    assert asked._replace(hint_s=0.0).beyond_hint_s == pytest.approx(3.5)


def test_outcomes_are_counted_by_when_they_were_known_and_for_some_clients_only() -> None:
    crowd = crowd_with(
        Answered(0, 1.0, "result", 10.0), Answered(0, 2.0, "lost", 0.0), Answered(1, 2.5, "result", 30.0)
    )
    assert crowd.outcomes(0, 3) == {"result": 2, "lost": 1}
    assert crowd.outcomes(2, 3) == {"result": 1, "lost": 1}
    assert crowd.outcomes(0, 3, without=frozenset({0})) == {"result": 1}


def test_percentile_is_of_results_only() -> None:
    crowd = crowd_with(*(Answered(0, 1.0, "result", float(n)) for n in range(100)), Answered(1, 1.0, "lost", 0.0))
    assert crowd.percentile(0.99, 0, 2) == 99
    assert math.isnan(crowd.percentile(0.99, 5, 6))


def test_outages_are_found_by_when_they_began() -> None:
    outage = Outage(client=0, began=10.0, ended=13.5, reason="lost", hint_s=0.0)
    assert crowd_with(outages=(outage,)).out(9, 11) == [outage]
    assert not crowd_with(outages=(outage,)).out(11, 20)


def test_every_check_says_what_it_is() -> None:
    assert all(check.__doc__ for check in CHECKS.values())
