"""What the replica can sustain, as measured at its exit."""

import math

import pytest

from framelane.server.lanes.capacity import Capacity
from framelane.server.lanes.gauge import Gauge, Reading


def reading(*, rate: float, backlog: int = 0, backlog_rate: float = 100.0) -> Reading:
    return Reading(1.0, round(rate), backlog, backlog / backlog_rate, 0.01, 0.01)


def test_capacity_is_measured_in_moments_of_backlog_only() -> None:
    gauge = Gauge()
    gauge.read(0.0)
    for burst in range(10):  # four frames at once every 0.1 s, each 8 ms long: a load of a third
        for frame in range(4):
            gauge.finished(burst * 0.1 + 0.008 * (frame + 1), 0.01, backlog=frame < 3)
    found = gauge.read(1.0)
    assert found is not None
    assert found.rate == 40
    assert found.backlog_rate == pytest.approx(125)
    assert not found.saturated


def test_results_read_in_one_go_after_a_stall_do_not_make_capacity_look_endless() -> None:
    gauge = Gauge()
    gauge.read(0.0)
    for stall in range(10):
        for frame in range(4):
            gauge.finished(0.1 * stall + 0.0001 * frame, 0.01, backlog=True)
        gauge.finished(0.1 * stall + 0.01, 0.01, backlog=False)
    found = gauge.read(1.0)
    assert found is not None
    assert found.backlog_rate < 110


def test_few_frames_are_no_reading_until_some_time_has_gone() -> None:
    gauge = Gauge()
    assert gauge.read(10.0) is None
    for step in range(5):
        gauge.finished(10 + step * 0.1, 0.01, backlog=False)
    assert gauge.read(10.6) is None
    found = gauge.read(12.1)
    assert found is not None
    assert found.frames == 5


def test_first_measurement_is_believed_and_later_ones_weigh_by_their_frames() -> None:
    capacity = Capacity()
    capacity.turn(reading(rate=100, backlog=50, backlog_rate=100), held_back=False)
    assert capacity.rate == 100
    capacity.turn(reading(rate=50, backlog=25, backlog_rate=50), held_back=False)
    assert capacity.rate == pytest.approx(90)
    capacity.turn(reading(rate=50, backlog=1000, backlog_rate=50), held_back=False)
    assert capacity.rate < 55
    assert capacity.seen == pytest.approx(100, rel=0.02)


def test_a_load_that_is_served_proves_a_capacity() -> None:
    capacity = Capacity()
    capacity.expect(10)
    for _ in range(10):
        capacity.turn(reading(rate=200), held_back=False)
    assert capacity.rate == pytest.approx(200, rel=0.01)


def test_dip_heals_though_nothing_queues_and_places_count_on_what_was_seen_only() -> None:
    capacity = Capacity()
    capacity.expect(100)
    capacity.turn(reading(rate=10, backlog=3000, backlog_rate=10), held_back=True)
    assert capacity.sure < 15
    low = capacity.seen
    for _ in range(100):  # clients follow the pace, at 0.95 of what is thought possible
        capacity.turn(reading(rate=0.95 * capacity.rate), held_back=True)
    assert capacity.rate > 150
    assert capacity.sure == low == pytest.approx(100, rel=0.02)


def test_little_load_or_nobody_held_back_changes_nothing() -> None:
    capacity = Capacity()
    capacity.expect(100)
    capacity.turn(reading(rate=70), held_back=True)
    capacity.turn(reading(rate=99), held_back=False)
    assert capacity.rate == 100


def test_unknown_capacity_is_endless() -> None:
    capacity = Capacity()
    capacity.turn(reading(rate=70, backlog=5), held_back=True)
    assert math.isinf(capacity.sure)
