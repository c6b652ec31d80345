"""One fate for every message, in any order of frames, results, deaths and departures; without sockets or sleep."""

import random
from typing import Any

import msgpack
import pytest
from fake_pool import FakePool

from framelane.preprocess.messages import Fate
from framelane.preprocess.packets import WEBSOCKET
from framelane.server.errors import BadMessage, Refused
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.limits import Limits
from framelane.server.protocol import Hello


class Client:
    """A writer that remembers what its client got."""

    def __init__(self) -> None:
        self.got: list[list[Any]] = []
        self.reads = True
        self.stuck: bytes | None = None
        self.aborted = False

    def write(self, packet: bytes) -> bool:
        assert self.stuck is None
        if self.reads:
            self.got.append(msgpack.unpackb(packet))
        else:
            self.stuck = packet
        return self.reads

    def abort(self) -> None:
        self.aborted = True

    def results(self) -> list[int]:
        return [event[1]["seq"] for event in self.got if event[0] == "result"]

    def dropped(self) -> list[tuple[int, str]]:
        return [(event[1]["seq"], event[1]["reason"]) for event in self.got if event[0] == "dropped"]


class World:
    def __init__(self, credits: int = 4, **limits: Any) -> None:
        self.now = 0.0
        self.pool = FakePool(credits)
        self.exchange = Exchange(self.pool, Limits(**{"pipeline": "echo", **limits}), lambda: self.now)

    def client(self, **hello: Any) -> tuple[Lane, Client]:
        client = Client()
        lane = self.exchange.admit(Hello(**hello), WEBSOCKET, client)
        self.exchange.greet(lane)
        return lane, client

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.exchange.accounts.dropped)


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


def test_any_order_of_events_gives_every_message_one_fate_and_no_answer_to_another() -> None:
    for seed in range(120):
        Chaos(seed).run()


class Chaos:
    """Random frames, results, kills, departures, stalls and time, against a model of what may happen."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World(
            credits=3, deadline_ms=100, mailbox_bytes=60, outbox_messages=3, stall_s=0.3, stateful=bool(seed % 2),
        )  # fmt: skip
        self.lanes: list[tuple[Lane, Client]] = []
        self.all: list[tuple[Lane, Client, set[int]]] = []
        self.received = 0

    def run(self) -> None:
        for _ in range(400):
            getattr(self, self.dice.choice(["connect", "frame", "frame", "frame", "finish", "finish", "leave", "stall",
                                            "unstall", "time", "fault", "kill"]))()  # fmt: skip
            assert self.world.exchange.accounts.inside >= 0
        self.end()

    def connect(self) -> None:
        if len(self.lanes) < 4:
            lane, client = self.world.client(policy=self.dice.choice(["latest", "queue"]))
            self.lanes.append((lane, client))
            self.all.append((lane, client, set()))

    def frame(self) -> None:
        if self.lanes:
            lane, _client = self.dice.choice(self.lanes)
            seq = lane.last_seq + self.dice.choice([1, 1, 1, 2, 0])
            sent = next(sent for each, _client, sent in self.all if each is lane)
            if seq > lane.last_seq:
                sent.add(seq)
            self.received += 1
            self.world.exchange.frame(lane, seq, bytes(self.dice.choice([1, 5, 30, 0])))

    def fault(self) -> None:
        if self.lanes:
            self.received += 1
            self.world.exchange.fault(self.dice.choice(self.lanes)[0], BadMessage("x"))

    def finish(self) -> None:
        if self.world.pool.jobs:
            request = self.dice.choice(list(self.world.pool.jobs))
            self.world.pool.finish(request, self.dice.choice([Fate.OK, Fate.OK, Fate.OK, *Fate]), state=b"s")

    def kill(self) -> None:
        """A worker dies with all it holds, and comes back."""
        pool = self.world.pool
        held = list(pool.jobs)[:2]
        pool.credits -= len(held)
        for request in held:
            pool.credits += 1
            pool.finish(request, Fate.FAILED)
        pool.on_credit()

    def leave(self) -> None:
        if self.lanes and self.dice.random() < 0.3:
            lane, client = self.lanes.pop(self.dice.randrange(len(self.lanes)))
            client.stuck = None
            self.world.exchange.disconnect(lane)

    def stall(self) -> None:
        if self.lanes:
            self.dice.choice(self.lanes)[1].reads = False

    def unstall(self) -> None:
        for lane, client in self.lanes:
            client.reads = True
            if client.stuck is not None:
                client.got.append(msgpack.unpackb(client.stuck))
                client.stuck = None
                self.world.exchange.delivery.written(lane)

    def time(self) -> None:
        self.world.now += self.dice.choice([0.0, 0.01, 0.05, 0.2])
        self.world.pool.estimate_s = self.dice.choice([0.0, 0.01, 0.09])
        self.world.exchange.tick()
        for lane, client in list(self.lanes):
            if client.aborted:
                self.lanes.remove((lane, client))
                client.stuck = None
                self.world.exchange.disconnect(lane)

    def end(self) -> None:
        self.unstall()
        while self.world.pool.jobs:
            self.world.pool.finish()
        self.world.now += 10
        self.world.exchange.tick()
        self.unstall()
        accounts = self.world.exchange.accounts
        assert accounts.received == self.received
        assert accounts.inside == 0
        assert self.world.exchange.waiting_bytes == 0
        assert sum(len(client.results()) for _lane, client, _sent in self.all) == accounts.delivered
        for lane, client, sent in self.all:
            answered = client.results() + [seq for seq, _reason in client.dropped()]
            assert len(answered) == len(set(answered)), "a frame was answered twice"
            assert set(answered) <= sent, "an answer to a frame of somebody else"
            assert client.results() == sorted(client.results()), "results out of order"
            assert lane.in_work == 0
            assert not lane.requests
