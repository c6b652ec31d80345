"""Every message has one fate, whatever happens in whatever order; places, positions and order hold all the while."""

import random

import msgpack
import pytest
from lane_world import Client, World

from framelane.preprocess.messages import Fate
from framelane.server.errors import BadMessage, Refused
from framelane.server.lanes.lane import Lane


def test_any_order_of_events_gives_every_message_one_fate_and_no_answer_to_another() -> None:
    for seed in range(120):
        Chaos(seed).run()


class Chaos:
    """Random frames, results, kills, departures, stalls and time, against a model of what may happen."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World(
            credits=3, deadline_ms=100, mailbox_bytes=60, outbox_messages=3, stall_s=0.3, stateful=bool(seed % 2),
            parallel=1 + seed % 3, queue_depth=3, max_clients=[None, 3][seed // 2 % 2], waiting_room=3, grace_s=1.0,
            interval_ms=10, fatal_pause_s=0.1, fatal_s=1.0, fairness=["frames", "cost"][seed // 4 % 2],
        )  # fmt: skip
        self.world.exchange.capacity.expect(self.dice.choice([40.0, 200.0, float("inf")]))
        self.lanes: list[tuple[Lane, Client]] = []
        self.all: list[tuple[Lane, Client, set[int]]] = []
        self.received = self.refused = 0

    def run(self) -> None:
        for _ in range(400):
            getattr(self, self.dice.choice(["connect", "frame", "frame", "frame", "finish", "finish", "leave", "stall",
                                            "unstall", "time", "fault", "kill", "limit"]))()  # fmt: skip
            self.check()
        self.end()

    def check(self) -> None:
        """What must hold after every step."""
        exchange = self.world.exchange
        reception = exchange.reception
        here = list(exchange.delivery.lanes.values())
        assert exchange.accounts.inside >= 0
        assert sum(lane.admitted for lane in here) == reception.admission.admitted
        assert reception.admission.reserved_fps == pytest.approx(
            sum(lane.reserved_fps for lane in here if lane.admitted)
        )
        assert sum(not lane.admitted and bool(lane.ticket) for lane in here) == reception.room.present
        assert len(reception.room) <= 3
        if self.dice.random() < 0.1:
            exchange.tick()
            assert not (reception.room.present and reception.admission.places(exchange.capacity.sure))
        for lane in here:
            assert len(lane.jobs) <= lane.depth
            assert len(lane.requests) + len(lane.early) == lane.in_work <= lane.parallel
            assert lane.admitted or not lane.in_work or lane.cut

    def connect(self) -> None:
        if len(self.lanes) >= 6:
            return
        resume = self.dice.choice([None, None, "", "", "no such ticket"])
        if self.all and self.dice.random() < 0.3:
            resume = self.dice.choice(self.all)[0].ticket
        try:
            policy, address = self.dice.choice(["latest", "queue"]), self.dice.choice(["", "192.0.2.1", "192.0.2.2"])
            lane, client = self.world.client(policy=policy, resume=resume, address=address)
        except Refused:
            self.refused += 1
            return
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
            fate = self.dice.choice([Fate.OK, Fate.OK, Fate.OK, *Fate])
            fatal = fate is Fate.FAILED and self.dice.random() < 0.3
            self.world.pool.finish(request, fate, state=b"s", fatal=fatal, suspected=self.dice.random() < 0.3)

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
            self.world.exchange.disconnect(lane, lost=self.dice.random() < 0.5)

    def limit(self) -> None:
        """The limit on frames in work, and what is known of the capacity, change."""
        self.world.exchange.inflight.limit = self.dice.choice([1, 2, float("inf")])
        if self.dice.random() < 0.2:
            self.world.exchange.capacity.expect(self.dice.choice([0.0, 20.0, 100.0, float("inf")]))

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
            if client.aborted or client.closed:
                self.lanes.remove((lane, client))
                client.stuck = None
                self.world.exchange.disconnect(lane)

    def end(self) -> None:
        self.unstall()
        while self.world.pool.jobs:
            self.world.pool.finish()
        self.world.tick(10)
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
            assert all(place["position"] >= 1 and place["ticket"] for place in client.told("waiting"))
            assert len(client.told("ready")) <= 1
            assert lane.in_work == 0
            assert not lane.requests
