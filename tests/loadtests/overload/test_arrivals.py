"""When frames are due."""

import itertools
import math
from random import Random

import pytest

from framelane.loadtests.overload.arrivals import Arrivals, Phase, Profile

STEADY = Profile([Phase(10.0, 20.0)])


def drawn(arrivals):
    found = []
    while arrivals.next_at < math.inf:
        found.append(arrivals.pop())
    return found


def test_profile_maps_frames_to_time_across_phases():
    profile = Profile([Phase(2.0, 10.0), Phase(1.0, 100.0)])
    assert (profile.seconds, profile.frames) == (3.0, 120.0)
    assert [profile.when(frames) for frames in (0, 10, 20, 70)] == [0.0, 1.0, 2.0, 2.5]
    assert profile.when(120) == math.inf


def test_phase_without_frames_is_passed_over():
    assert Profile([Phase(1.0, 0.0), Phase(1.0, 2.0)]).when(1.0) == 1.5


def test_fixed_arrivals_are_even_and_each_client_has_a_phase_of_its_own():
    found = drawn(Arrivals(STEADY, [1.0, 1.0], "fixed", Random(1)))
    times = [[at for at, client in found if client == number] for number in (0, 1)]
    for own in times:
        assert [b - a for a, b in itertools.pairwise(own)] == pytest.approx([0.05] * (len(own) - 1))
    assert times[0][0] != times[1][0]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process():
    times = [at for at, _ in drawn(Arrivals(Profile([Phase(100.0, 50.0)]), [1.0], "poisson", Random(2)))]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)


def test_arrivals_come_in_order_of_time_and_by_weight():
    found = drawn(Arrivals(STEADY, [1.0, 10.0, 0.0], "fixed", Random(3)))
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    counts = [sum(client == number for _, client in found) for number in range(3)]
    assert counts[0] == pytest.approx(200, abs=1)
    assert counts[1] == pytest.approx(2000, abs=1)
    assert counts[2] == 0


def test_nobody_who_sends_is_no_arrival():
    assert Arrivals(STEADY, [0.0], "poisson", Random(4)).next_at == math.inf
