"""What one client may send, and connections that the server ends for what it sends or does not."""

import pytest
from lane_world import World

from framelane.preprocess.packets import WEBSOCKET
from framelane.server.lanes.rate import Rate


def accepted(rate: Rate, size: int, every_s: float, seconds: float) -> int:
    from framelane.server.lanes.lane import Lane

    lane = Lane(WEBSOCKET, None)  # type: ignore[arg-type]
    times = [index * every_s for index in range(round(seconds / every_s))]
    return sum(rate.allows(lane, size, 100 + now) for now in times)


@pytest.mark.parametrize("offered", [5, 9, 20, 100, 1000])
def test_frames_per_second_with_a_second_at_once(offered: int) -> None:
    assert accepted(Rate(10, 0), 1, 1 / offered, 60) == pytest.approx(min(60 * offered, 610), abs=2)


@pytest.mark.parametrize("size", [10, 999, 1000])
def test_bytes_per_second_with_a_second_at_once(size: int) -> None:
    assert size * accepted(Rate(0, 1000), size, 0.001, 20) == pytest.approx(21_000, rel=0.05)


def test_frame_larger_than_a_seconds_worth_goes_alone() -> None:
    assert accepted(Rate(0, 1000), 5000, 1.0, 60) == 12


@pytest.mark.parametrize("rate", [Rate(1 / 3, 0), Rate(0, 1 / 3)])
def test_first_of_all_goes_at_any_time_however_slow_the_rate(rate: Rate) -> None:
    """Times of ``time.monotonic()``, whose sums are not exact."""
    from framelane.server.lanes.lane import Lane

    times = [7890.1 + index * 0.37 for index in range(500)]
    assert all(rate.allows(Lane(WEBSOCKET, None), 1, now) for now in times)  # type: ignore[arg-type]


def test_both_limits_hold() -> None:
    assert accepted(Rate(10, 1000), 10, 0.01, 60) == pytest.approx(610, abs=2)
    assert accepted(Rate(10, 1000), 1000, 0.01, 60) == pytest.approx(61, abs=2)


def test_what_is_too_much_is_dropped_by_name_and_still_in_the_books() -> None:
    world = World(frames_per_s=5)
    lane, client = world.client()
    for seq in range(20):
        world.exchange.frame(lane, seq, b"x")
    assert [reason for _, reason in client.dropped()].count("rate_limited") == 15
    assert world.exchange.accounts.received == 20
    assert client.closed is None


def test_client_that_goes_on_is_ended_by_name() -> None:
    world = World(frames_per_s=5, excess_burst=10, excess_per_s=1.0)
    (lane, client), (other, calm) = world.client(), world.client()
    seq = 0
    while client.closed is None:
        world.exchange.frame(lane, seq, b"x")
        world.exchange.frame(other, seq, b"x") if seq % 10 == 0 else None
        world.tick(0.02)
        seq += 1
        assert seq < 100
    assert client.closed == (4429, "rate_limited")
    assert client.told("refused")[0]["retry_after_ms"] == 5000
    assert (calm.closed, "rate_limited" in dict(calm.dropped()).values()) == (None, False)
    assert world.exchange.accounts.cut == {"rate_limited": 1}


def test_client_that_slows_down_is_forgiven() -> None:
    world = World(frames_per_s=5, excess_burst=10, excess_per_s=1.0)
    lane, client = world.client()
    seq = 0
    for _ in range(20):
        for _ in range(12):  # a burst every ten seconds
            world.exchange.frame(lane, seq, b"x")
            seq += 1
        world.tick(10)
    assert client.closed is None
    assert len([reason for _, reason in client.dropped() if reason == "rate_limited"]) > 100


def test_silent_client_loses_its_place_and_one_that_waits_does_not() -> None:
    world = World(max_clients=2, idle_s=30)
    (silent, first), (sender, second), (_, waiting) = (world.client() for _ in range(3))
    for seq in range(40):
        world.exchange.frame(sender, seq, b"x")
        world.tick(1)
    assert first.closed == (4432, "idle")
    assert "retry_after_ms" not in first.told("refused")[0]
    assert (second.closed, waiting.closed) == (None, None)
    world.exchange.disconnect(silent)
    assert waiting.told("ready")


def test_nobody_is_ended_where_nothing_is_set() -> None:
    world = World()
    _, client = world.client()
    world.tick(3600)
    assert client.closed is None
