"""One fate for every message: frames, results, deaths and departures, one by one; without sockets or sleep."""

from typing import Any

import pytest
from lane_world import World

from framelane.preprocess.messages import Fate
from framelane.server.errors import BadMessage, Refused
from framelane.server.lanes.lane import Lane


def test_frame_goes_to_a_worker_and_its_result_back() -> None:
    world = World()
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"picture")
    job = world.pool.finish()
    assert (job.owner, job.data, job.deadline) == (lane, b"picture", 0.5)
    assert client.got[0][0] == "ready"
    assert client.results() == [0]
    assert world.exchange.accounts.inside == 0


def test_state_travels_with_the_frames_of_a_lane() -> None:
    world = World()
    lane, _client = world.client()
    other, _other = world.client()
    states = []
    for seq, state in enumerate([b"a", b"b"]):
        world.exchange.frame(lane, seq, b"x")
        states.append(world.pool.finish(state=state).state)
    world.exchange.frame(lane, 2, b"x")
    states.append(world.pool.finish(fate=Fate.FAILED).state)
    world.exchange.frame(lane, 3, b"x")
    states.append(world.pool.finish().state)
    world.exchange.frame(other, 0, b"x")
    states.append(world.pool.finish().state)
    assert states == [b"", b"a", b"b", b"b", b""]


def test_pipeline_without_state_keeps_none() -> None:
    world = World(stateful=False)
    lane, _client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.pool.finish(state=b"a")
    assert lane.state == b""


@pytest.mark.parametrize(
    ("fate", "reason"),
    [(Fate.INVALID, "invalid"), (Fate.FAILED, "failed"), (Fate.EXPIRED, "expired"), (Fate.LEFT, "failed")],
)
def test_frame_that_the_workers_drop_is_dropped_by_name(fate: Fate, reason: str) -> None:
    world = World()
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.pool.finish(fate=fate, message="why")
    assert client.got[-1] == ["dropped", {"seq": 0, "reason": reason, "message": "why"}]
    assert world.dropped == {reason: 1}


def test_frame_that_could_not_be_done_in_time_is_not_begun() -> None:
    world = World(credits=1)
    first, _client = world.client()
    lane, client = world.client()
    world.exchange.frame(first, 0, b"x")
    world.exchange.frame(lane, 0, b"x")
    world.exchange.frame(first, 1, b"x")
    world.pool.estimate_s = 0.3
    world.now = 0.3
    world.pool.credits = 2
    world.pool.on_credit()
    assert client.dropped() == [(0, "expired")]
    assert len(world.pool.submitted) == 1


def test_wrong_estimate_does_not_keep_the_server_from_working() -> None:
    world = World()
    lane, client = world.client()
    world.pool.estimate_s = 60.0
    world.exchange.frame(lane, 0, b"x")
    world.pool.finish()
    assert client.results() == [0]


def test_result_that_comes_too_late_is_expired_though_the_state_is_kept() -> None:
    world = World()
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.now = 0.51
    world.pool.finish(state=b"s")
    assert client.dropped() == [(0, "expired")]
    assert lane.state == b"s"


def test_result_of_a_client_that_left_reaches_nobody_and_is_cancelled() -> None:
    world = World()
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.exchange.frame(lane, 1, b"x")
    world.exchange.disconnect(lane)
    world.exchange.disconnect(lane)
    assert world.pool.cancelled == [1]
    _again, second = world.client()
    world.pool.finish()
    assert (client.results(), second.results()) == ([], [])
    assert world.exchange.accounts.left == 2
    assert world.exchange.accounts.inside == 0


def test_failed_submission_costs_only_that_frame() -> None:
    world = World()
    lane, client = world.client()

    def broken(_job: Any) -> int:
        raise OSError("no memory")

    good, world.pool.submit = world.pool.submit, broken  # type: ignore[method-assign]
    world.exchange.frame(lane, 0, b"x")
    world.pool.submit = good  # type: ignore[method-assign]
    world.exchange.frame(lane, 1, b"x")
    world.pool.finish()
    assert (client.dropped(), client.results()) == ([(0, "failed")], [1])


@pytest.mark.parametrize("again", [4, 3, 0])
def test_repeated_or_falling_seq_is_an_error_and_refused(again: int) -> None:
    world = World()
    lane, client = world.client()
    world.exchange.frame(lane, 4, b"x")
    assert world.exchange.frame(lane, again, b"x")
    assert client.got[-1][0] == "error"
    assert client.got[-1][1]["code"] == "bad_seq"
    assert len(world.pool.submitted) == 1
    assert world.exchange.accounts.refused == {"bad_seq": 1}


def test_faults_within_the_rate_are_answered_and_a_flood_is_cut() -> None:
    world = World(fault_burst=3, faults_per_s=1.0)
    lane, client = world.client()
    for second in range(10):
        world.now = float(second)
        assert world.exchange.fault(lane, BadMessage("x"))
    going_on = [world.exchange.fault(lane, BadMessage("x")) for _ in range(4)]
    assert going_on[-1] is False
    assert world.exchange.accounts.cut == {"flood": 1}
    assert world.exchange.accounts.inside == 0
    assert len(client.got) < 16


def test_full_mailboxes_drop_by_name() -> None:
    world = World(credits=0, mailbox_bytes=10)
    lane, _client = world.client()
    other, client = world.client()
    world.exchange.frame(lane, 0, bytes(8))
    world.exchange.frame(other, 0, bytes(8))
    assert client.dropped() == [(0, "rate_limited")]


def test_waiting_frame_expires_without_any_worker() -> None:
    world = World(credits=0)
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.now = 0.4
    world.exchange.tick()
    assert client.dropped() == []
    world.now = 0.6
    world.exchange.tick()
    assert client.dropped() == [(0, "expired")]


def test_worker_that_joins_gets_what_waits() -> None:
    world = World(credits=0)
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.pool.credits = 1
    world.pool.on_credit()
    world.pool.finish()
    assert client.results() == [0]


def test_draining_server_finishes_what_it_has_and_takes_nothing_new() -> None:
    world = World()
    lane, client = world.client()
    _other, second = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.exchange.drain(1000, 500)
    world.exchange.frame(lane, 1, b"x")
    world.pool.finish()
    assert client.got[1:] == [
        ["drain", {"reconnect_after_ms": 1000}],
        ["dropped", {"seq": 1, "reason": "draining"}],
        ["result", {"seq": 0, "size": 1}],
    ]
    assert second.got[-1] == ["drain", {"reconnect_after_ms": 1250}]
    with pytest.raises(Refused) as refused:
        world.client()
    assert (refused.value.code, refused.value.retryable) == ("draining", True)


def test_queue_takes_frames_in_order_and_says_when_there_is_room() -> None:
    world = World(credits=1, queue_depth=2)
    lane, client = world.client(policy="queue")
    for seq in range(3):
        world.exchange.frame(lane, seq, b"x")
    assert len(lane.jobs) == lane.depth
    room = []
    lane.on_room = lambda: room.append(len(lane.jobs))
    world.pool.finish()
    assert room == [1]
    for _ in range(2):
        world.pool.finish()
    assert client.results() == [0, 1, 2]
    assert room == [1]


def test_room_is_told_when_waiting_frames_expire() -> None:
    world = World(credits=0, queue_depth=1)
    lane, _client = world.client(policy="queue")
    world.exchange.frame(lane, 0, b"x")
    room = []
    lane.on_room = lambda: room.append(True)
    world.tick(0.7)
    assert room == [True]


def test_several_frames_of_a_stateless_lane_are_answered_in_order() -> None:
    world = World(stateful=False, parallel=3)
    lane, client = world.client(policy="queue")
    for seq in range(4):
        world.exchange.frame(lane, seq, b"x")
    assert [job.seq for job in world.pool.submitted] == [0, 1, 2]
    world.pool.finish(3)
    world.pool.finish(2, Fate.INVALID)
    assert client.got[1:] == []
    assert [job.seq for job in world.pool.submitted] == [0, 1, 2], "results that are held back count as in work"
    world.pool.finish(1)
    world.pool.finish(4)
    assert [event[1]["seq"] for event in client.got[1:]] == [0, 1, 2, 3]
    assert client.results() == [0, 2, 3]
    assert world.exchange.accounts.inside == 0


def test_result_that_was_held_back_too_long_is_expired() -> None:
    world = World(stateful=False, parallel=2)
    lane, client = world.client(policy="queue")
    world.exchange.frame(lane, 0, b"x")
    world.exchange.frame(lane, 1, b"x")
    world.pool.finish(2)
    world.now = 0.6
    world.pool.finish(1, Fate.FAILED)
    assert client.dropped() == [(0, "failed"), (1, "expired")]


def test_results_held_back_for_a_lane_that_leaves_have_left() -> None:
    world = World(stateful=False, parallel=2)
    lane, _client = world.client(policy="queue")
    for seq in range(3):
        world.exchange.frame(lane, seq, b"x")
    world.pool.finish(2)
    world.exchange.disconnect(lane)
    world.pool.finish(1)
    assert (world.exchange.accounts.left, world.exchange.accounts.inside, lane.in_work) == (3, 0, 0)


@pytest.mark.parametrize(("stateful", "policy"), [(True, "queue"), (False, "latest")])
def test_lanes_with_state_or_latest_wins_have_one_frame_in_the_workers(stateful: bool, policy: str) -> None:
    world = World(stateful=stateful, parallel=3)
    lane, _client = world.client(policy=policy)
    world.exchange.frame(lane, 0, b"x")
    world.exchange.frame(lane, 1, b"x")
    assert len(world.pool.submitted) == 1


def fatal(world: World, lane: Lane, seq: int, *, suspected: bool = False) -> None:
    """The client sends a frame that ends a process."""
    assert world.exchange.frame(lane, seq, b"x")
    world.pool.finish(fate=Fate.FAILED, fatal=True, suspected=suspected)


def test_client_whose_frame_has_ended_a_process_is_not_listened_to_for_a_while() -> None:
    world = World(fatal_pause_s=10)
    lane, client = world.client()
    other, _client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.exchange.frame(lane, 1, b"the next one waits")
    world.pool.finish(fate=Fate.FAILED, fatal=True)
    assert client.dropped() == [(0, "failed"), (1, "rate_limited")]
    world.now = 9.9
    world.exchange.frame(lane, 2, b"x")
    assert client.dropped()[-1] == (2, "rate_limited")
    world.exchange.frame(other, 0, b"x")
    world.now = 10.0
    world.exchange.frame(lane, 3, b"x")
    assert [job.owner for job in world.pool.submitted] == [lane, other, lane]


def test_client_whose_frames_end_processes_again_and_again_waits_longer_and_is_cut() -> None:
    world = World(fatal_pause_s=10, fatal_frames=3, fatal_s=60)
    lane, client = world.client()
    pauses = []
    for seq in range(3):
        assert client.closed is None
        fatal(world, lane, seq)
        pauses.append(lane.paused_until - world.now)
        world.now = lane.paused_until
    assert pauses == [10, 20, 40]
    assert client.closed == (4431, "fatal_frames")
    assert world.exchange.accounts.cut == {"fatal_frames": 1}


def test_bad_luck_is_forgotten() -> None:
    world = World(fatal_pause_s=10, fatal_s=60)
    lane, client = world.client()
    for seq in range(5):
        fatal(world, lane, seq)
        assert lane.paused_until == world.now + 10
        world.now += 61
    assert client.closed is None


def test_frame_that_may_be_innocent_only_counts() -> None:
    """Its worker was killed, and nobody knows by whom."""
    world = World()
    lane, client = world.client()
    for seq, now in enumerate([0.0, 1.0, 100.0, 130.0]):
        world.now = now
        fatal(world, lane, seq, suspected=True)
        assert lane.paused_until == 0
    assert client.closed is None
    world.now = 155.0
    fatal(world, lane, 9, suspected=True)
    assert client.closed == (4431, "fatal_frames")


def test_address_whose_frame_has_ended_a_process_gets_no_new_connection_for_a_while() -> None:
    world = World(fatal_pause_s=10)
    lane, _client = world.client(address="192.0.2.1")
    neighbour, _client = world.client(address="192.0.2.1")
    fatal(world, lane, 0)
    world.exchange.disconnect(lane)
    world.now = 4.0
    with pytest.raises(Refused) as refused:
        world.client(address="192.0.2.1")
    assert (refused.value.code, refused.value.retry_after_ms) == ("rate_limited", 6000)
    world.exchange.frame(neighbour, 0, b"x")
    assert world.pool.submitted[-1].owner is neighbour
    world.client(address="192.0.2.2")
    world.client()
    world.now = 10.0
    again, _client = world.client(address="192.0.2.1")
    world.pool.finish()
    fatal(world, again, 0)
    assert again.paused_until == 10 + 20


def test_client_that_goes_before_its_frame_ends_a_process_is_no_better_for_it() -> None:
    world = World(fatal_pause_s=10)
    lane, client = world.client(address="192.0.2.1")
    world.exchange.frame(lane, 0, b"x")
    world.exchange.disconnect(lane)
    world.pool.finish(fate=Fate.FAILED, fatal=True)
    assert (world.exchange.accounts.left, client.dropped()) == (1, [])
    with pytest.raises(Refused) as refused:
        world.client(address="192.0.2.1")
    assert (refused.value.code, refused.value.retry_after_ms) == ("rate_limited", 10_000)


def test_fatal_frame_is_not_forgiven_until_its_turn_to_be_answered_has_come() -> None:
    world = World(fatal_pause_s=10, parallel=2, stateful=False, queue_depth=3)
    lane, client = world.client(policy="queue", address="192.0.2.1")
    for seq in range(3):
        world.exchange.frame(lane, seq, b"x")
    world.pool.finish(list(world.pool.jobs)[1], Fate.FAILED, fatal=True)
    assert client.dropped() == [(2, "rate_limited")]
    world.exchange.disconnect(lane)
    with pytest.raises(Refused):
        world.client(address="192.0.2.1")
    world.pool.finish()
    assert (world.exchange.accounts.left, world.exchange.accounts.inside) == (2, 0)


def test_however_many_fatal_frames_come_from_an_address_the_pause_has_an_end() -> None:
    world = World(fatal_pause_s=10)
    for _ in range(1100):
        lane, _client = world.client()
        lane.address = "192.0.2.1"  # an older connection from there
        fatal(world, lane, 0)
    assert lane.paused_until == 60


def test_only_so_many_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framelane.server.lanes.conduct._MOST_REMEMBERED", 2)
    world = World(fatal_pause_s=10)
    for number in range(3):
        lane, _client = world.client(address=f"192.0.2.{number}")
        fatal(world, lane, 0)
    world.client(address="192.0.2.0")
    for number in (1, 2):
        with pytest.raises(Refused):
            world.client(address=f"192.0.2.{number}")


def test_frames_in_work_are_limited_below_the_credits() -> None:
    world = World(credits=10)
    world.exchange.inflight.limit = 2
    for _ in range(4):
        lane, _client = world.client()
        world.exchange.frame(lane, 0, b"x")
    assert len(world.pool.jobs) == 2
    world.pool.finish()
    assert len(world.pool.jobs) == 2


def test_seldom_sender_is_served_though_turns_come_round_slower_than_frames_expire() -> None:
    world = World(credits=1, deadline_ms=500)
    eager = [world.client() for _ in range(20)]
    seldom, client = world.client()
    for step in range(200):  # one frame takes 0.1 s: a round takes two seconds
        for lane, _client in eager:
            world.exchange.frame(lane, step, b"x")
        if step % 10 == 0:
            world.exchange.frame(seldom, step, b"x")
        world.tick(0.1)
        world.pool.finish()
    served = [len(each.results()) for _lane, each in eager]
    assert min(served) >= 9
    assert len(client.results()) >= 7


def test_dear_frames_cost_their_lane_its_turns_if_the_share_is_by_cost() -> None:
    shares = {}
    for fairness in ("frames", "cost"):
        world = World(credits=1, fairness=fairness)
        (cheap, _), (dear, _) = world.client(), world.client()
        spent = {cheap: 0.0, dear: 0.0}
        for seq in range(400):
            world.exchange.frame(cheap, seq, b"x")
            world.exchange.frame(dear, seq, b"x")
            cost = 0.009 if next(iter(world.pool.jobs.values())).owner is dear else 0.001
            spent[world.pool.finish(inference_s=cost).owner] += cost
        shares[fairness] = spent[dear] / (spent[cheap] + spent[dear])
    assert shares["frames"] == pytest.approx(0.9, abs=0.01)
    assert shares["cost"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("capacity", [float("inf"), 0])
def test_no_more_frames_are_in_work_than_the_operator_allows(capacity: float) -> None:
    world = World(credits=8, capacity=capacity, in_work=3, max_clients=10)
    world.exchange.expect(100.0, 0.01)
    for _ in range(5):
        lane, _ = world.client()
        world.exchange.frame(lane, 1, b"x")
    assert world.exchange.work_limit == 3
    assert len(world.pool.jobs) == 3
