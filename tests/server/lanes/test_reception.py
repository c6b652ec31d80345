"""Places, positions, tickets and paces, as clients see them; without sockets or sleep."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lane_world import Client, World

from framelane.preprocess.packets import WEBSOCKET
from framelane.server.errors import Refused
from framelane.server.lanes.abroad import Abroad
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.waiting import WaitingRoom
from framelane.server.protocol import Hello


def names(client: Client) -> list[str]:
    return [event[0] for event in client.got]


def places(client: Client) -> list[int]:
    return [place["position"] for place in client.told("waiting")]


def crowd(world: World, count: int, **hello: str) -> list[tuple[Lane, Client]]:
    return [world.client(**hello) for _ in range(count)]


def test_client_beyond_the_places_waits_and_gets_the_next_that_is_free() -> None:
    world = World(max_clients=1)
    (first, _), (second, client), (_third, last) = crowd(world, 3)
    assert (names(client), places(client), places(last)) == (["waiting"], [1], [2])
    world.exchange.frame(second, 0, b"x")
    assert client.dropped() == [(0, "not_admitted")]
    world.exchange.disconnect(first)
    assert names(client) == ["waiting", "dropped", "ready"]
    world.tick(3)
    assert places(last) == [2, 1]
    world.exchange.frame(second, 1, b"x")
    world.pool.finish()
    assert client.results() == [1]


def test_full_waiting_room_refuses_with_a_time_to_come_back() -> None:
    world = World(max_clients=1, waiting_room=1)
    crowd(world, 2)
    with pytest.raises(Refused) as refused:
        world.client()
    assert refused.value.code == "full"
    assert refused.value.retry_after_ms >= 2000
    assert len(world.exchange.delivery.lanes) == 2


def test_wait_is_told_from_how_fast_places_fall_free() -> None:
    world = World(max_clients=4)
    lanes = crowd(world, 14)
    for lane, _client in lanes[:4]:
        world.tick(10)
        world.exchange.disconnect(lane)
    world.tick(3)
    last = lanes[-1][1].told("waiting")[-1]
    assert last["position"] == 6
    assert 20_000 < last["retry_after_ms"] < 60_000


def test_client_that_was_lost_while_it_waited_comes_back_to_its_position() -> None:
    world = World(max_clients=1, grace_s=5.0)
    (first, _), (second, client), (_third, _last) = crowd(world, 3)
    ticket = client.told("waiting")[0]["ticket"]
    world.exchange.disconnect(second, lost=True)
    world.now = 4.0
    _lane, again = world.client(resume=ticket)
    assert again.told("waiting")[0] == {**client.told("waiting")[0]}
    world.exchange.disconnect(first)
    assert names(again) == ["waiting", "ready"]
    assert again.told("ready")[0]["ticket"] == ticket


@pytest.mark.parametrize(
    ("hello", "lost", "after_s", "kept"),
    [
        ({"resume": ""}, True, 4.0, True),
        ({"resume": ""}, True, 6.0, False),
        ({"resume": ""}, False, 1.0, False),
        ({}, True, 1.0, False),
    ],
    ids=["kept", "too late", "goodbye", "does not use tickets"],
)
def test_place_is_held_for_a_lost_client_that_will_show_its_ticket(
    hello: dict[str, str], lost: bool, after_s: float, kept: bool
) -> None:
    world = World(max_clients=1, grace_s=5.0)
    (first, client), (_second, other) = world.client(**hello), world.client()
    ticket = client.told("ready")[0]["ticket"]
    world.exchange.disconnect(first, lost=lost)
    world.tick(after_s)
    _lane, again = world.client(resume=ticket)
    assert names(again) == (["ready"] if kept else ["waiting"])
    assert names(other)[-1] == ("waiting" if kept else "ready")


def test_lost_client_comes_back_to_its_place_though_it_had_reserved_less_than_a_new_one_would() -> None:
    world = World(client_fps=10.0, interval_ms=33)
    world.exchange.capacity.expect(50.0)
    clients = crowd(world, 6, resume="")
    for step in range(100):  # everybody sends five times a second
        for lane, _client in clients if step % 2 == 0 else ():
            world.exchange.frame(lane, step, b"x")
            while world.pool.jobs:
                world.pool.finish()
        world.tick(0.1)
    newcomers = crowd(world, 6, resume="")
    (lane, client), (_last, waits) = clients[0], newcomers[-1]
    assert names(waits) == ["waiting"]
    world.exchange.disconnect(lane, lost=True)
    _lane, again = world.client(resume=client.told("ready")[0]["ticket"])
    assert names(again) == ["ready"]


def test_connection_that_a_client_left_behind_gives_way_to_its_new_one() -> None:
    world = World(max_clients=1)
    old, client = world.client(resume="")
    world.exchange.frame(old, 0, b"x")
    new, again = world.client(resume=client.told("ready")[0]["ticket"])
    assert (client.aborted, names(again)) == (True, ["ready"])
    world.exchange.disconnect(old, lost=True)
    assert world.pool.cancelled == [1]
    world.pool.finish()
    world.exchange.frame(new, 0, b"x")
    world.pool.finish()
    assert (client.results(), again.results()) == ([], [0])
    assert world.exchange.accounts.cut == {"resumed": 1}
    assert world.exchange.reception.admission.admitted == 1


@pytest.mark.parametrize("ticket", ["", "x" * 24, "nobody's"])
def test_made_up_ticket_is_worth_nothing(ticket: str) -> None:
    world = World(max_clients=1)
    _first, client = world.client(resume="")
    _lane, other = world.client(resume=ticket)
    assert names(other) == ["waiting"]
    assert other.told("waiting")[0]["ticket"] not in (ticket, client.told("ready")[0]["ticket"])


def test_client_that_may_not_wait_is_refused_and_does_not_go_before_those_who_do() -> None:
    world = World(max_clients=1)
    crowd(world, 2)
    with pytest.raises(Refused) as refused:
        world.exchange.admit(Hello(), WEBSOCKET, Client(), may_wait=False)
    assert refused.value.code == "full"


def test_nobody_has_a_place_until_the_capacity_is_known() -> None:
    world = World(client_fps=10.0)
    world.exchange.capacity.expect(0.0)
    clients = crowd(world, 3)
    assert [names(client) for _lane, client in clients] == [["waiting"]] * 3
    world.exchange.expect(200.0, 0.01)
    world.tick(0.2)
    assert [names(client) for _lane, client in clients] == [["waiting", "ready"]] * 3


def test_frames_of_clients_that_have_a_place_wait_for_the_proof_as_well() -> None:
    world = World(capacity=0.0, max_clients=5)
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.tick(0.3)
    assert world.pool.submitted == []
    world.exchange.expect(100.0, 0.01)
    world.pool.finish()
    assert client.results() == [0]


def test_places_are_the_measured_capacity_by_what_a_client_is_promised() -> None:
    world = World(client_fps=10.0)
    world.exchange.capacity.expect(125.0)
    clients = crowd(world, 20)
    assert sum(names(client) == ["ready"] for _lane, client in clients) == 11
    assert places(clients[-1][1]) == [9]


def test_slower_server_than_any_client_serves_one() -> None:
    world = World(client_fps=10.0)
    world.exchange.capacity.expect(3.0)
    assert [names(client) for _lane, client in crowd(world, 2)] == [["ready"], ["waiting"]]


def test_clients_that_send_little_leave_places_to_others() -> None:
    world = World(client_fps=10.0, interval_ms=33)
    world.exchange.capacity.expect(125.0)
    clients = crowd(world, 100)
    for step in range(400):  # everybody sends twice a second
        for index, (lane, _client) in enumerate(clients):
            if (step + index) % 5 == 0:
                world.exchange.frame(lane, step, b"x")
                while world.pool.jobs:
                    world.pool.finish()
        world.tick(0.1)
    admitted = world.exchange.reception.admission.admitted
    assert 40 <= admitted <= 56
    assert sum(len(client.results()) for _lane, client in clients) == world.exchange.accounts.delivered


def test_pace_shares_the_capacity_over_those_who_send_and_follows_it() -> None:
    world = World(max_clients=100, interval_ms=33)
    world.exchange.capacity.expect(100.0)
    clients, seqs = crowd(world, 10), itertools.count()
    idle = crowd(world, 20)

    def send(seconds: float, senders: list[tuple[Lane, Client]]) -> None:
        for _ in range(round(seconds * 10)):
            for lane, _client in senders:
                for _ in range(3):
                    world.exchange.frame(lane, next(seqs), b"x")
                    world.pool.finish()
            world.now += 0.1
            world.exchange.reception.turn(world.now)

    send(5, clients)
    assert all(95 <= lane.paced_ms <= 116 for lane, _client in clients)
    assert clients[0][1].told("pace") == [{"interval_ms": 105}]
    assert all(not client.told("pace") for _lane, client in idle)
    assert world.exchange.reception.held_back
    send(5, clients[:2])
    assert [pace["interval_ms"] for pace in clients[0][1].told("pace")] == [105, 33]
    assert not world.exchange.reception.held_back


def test_newcomers_are_told_what_there_will_be_for_them_too() -> None:
    world = World(max_clients=100, interval_ms=10)
    world.exchange.capacity.expect(100.0)
    assert [client.told("ready")[0]["interval_ms"] for _lane, client in crowd(world, 4)] == [11, 21, 32, 42]
    world.tick(2)
    assert world.client()[1].told("ready")[0]["interval_ms"] == 11


def test_answers_over_http_get_no_pace_no_position_and_no_drain() -> None:
    world = World(max_clients=100)
    world.exchange.capacity.expect(1.0)
    client = Client()
    lane = world.exchange.admit(Hello(), WEBSOCKET, client, may_wait=False)
    for seq in range(60):
        world.exchange.frame(lane, seq, b"x")
        world.pool.finish()
        world.tick(0.05)
    world.exchange.drain(100, 100)
    assert set(names(client)) == {"result"}


class Elsewhere(Abroad):
    """Other replicas, as a test says they are."""

    limited = True

    def __init__(self, free: int = 0, ahead: int = 0, known: dict[str, float] | None = None) -> None:
        self.free, self.before, self.known = free, ahead, known or {}
        self.told: list[tuple[str, float | None]] = []

    def places(self, admitted: int, line: Sequence[float], now: float) -> int:
        return self.free

    def ahead(self, _since: float, _now: float) -> int:
        return self.before

    def arrived(self, ticket: str, _now: float) -> float | None:
        return self.known.pop(ticket, None)

    def lost(self, ticket: str, since: float | None, _now: float) -> None:
        self.told.append((ticket, since))


def with_others(world: World, **others: Any) -> Elsewhere:
    world.exchange.reception.abroad = found = Elsewhere(**others)
    return found


def test_places_of_the_whole_fleet_bound_those_here() -> None:
    world = World(max_clients=5)
    others = with_others(world, free=0, ahead=7)
    _lane, client = world.client()
    assert places(client) == [8], "seven wait elsewhere for longer"
    others.free = 1
    world.tick(0.1)
    assert names(client) == ["waiting", "ready"]


def test_client_that_had_a_place_at_another_replica_goes_before_those_who_wait() -> None:
    world = World(max_clients=1)
    others = with_others(world, free=9, known={"moved": -math.inf})
    (_, _), (_, waits) = crowd(world, 2)
    lane, client = world.client(resume="moved")
    assert (lane.ticket, places(client)) == ("moved", [1])
    assert not others.known, "it is known no more"
    world.exchange.disconnect(next(iter(world.exchange.delivery.lanes.values())))
    assert (names(client)[-1], names(waits)[-1]) == ("ready", "waiting")


def test_client_that_waited_at_another_replica_waits_on_where_its_time_belongs() -> None:
    world = World(max_clients=1)
    world.client()
    world.tick(5)
    _, early = world.client()
    world.tick(10)
    _, late = world.client()
    with_others(world, free=9, known={"moved": 10.0})
    _, moved = world.client(resume="moved")
    assert [places(client)[-1] for client in (early, moved)] == [1, 2]
    world.tick(3)
    assert places(late)[-1] == 3


def test_other_replicas_are_told_of_those_who_may_come_back_there() -> None:
    world = World(max_clients=1)
    others = with_others(world, free=9)
    world.tick(1)
    (first, _), (second, _) = crowd(world, 2, resume="")
    third, _ = world.client()
    for lane in (second, first, third):
        world.exchange.disconnect(lane, lost=True)
    assert others.told == [(second.ticket, pytest.approx(1.0)), (first.ticket, None)]


@given(st.lists(st.tuples(st.sampled_from(["come", "moved", "leave", "take", "news"]), st.integers(0, 30))))
def test_line_stays_in_the_order_of_time_whatever_happens(steps: list[tuple[str, int]]) -> None:
    room, lanes, now = WaitingRoom(1000, 10.0), [], 100.0
    for number, (step, value) in enumerate(steps):
        now += 1
        if step in ("come", "moved"):
            lane = Lane(WEBSOCKET, Client())
            lane.ticket = str(number)
            lanes.append(lane)
            room.enter(lane, now, None if step == "come" else now - value)
        elif step == "leave" and lanes:
            room.leave(lanes.pop(value % len(lanes)), now, lost=False)
        elif step == "take":
            expected = room.oldest(1)
            taken = room.take()
            assert (taken is None) == (not expected)
            if taken is not None:
                lanes.remove(taken)
        else:
            room.news(now, value, 0.0)
        line = room.oldest(1000)
        assert line == sorted(line)
        assert len(line) == len(lanes) == room.present
    now += 100
    positions = {lane.ticket: position for _ in range(3) for lane, position in room.news(now, 1000, 0.0)}
    ordered = sorted(lanes, key=lambda lane: room.since(lane) or 0.0)
    assert all(positions.get(lane.ticket, index + 1) == index + 1 for index, lane in enumerate(ordered)) or len(
        set(room.oldest(1000))
    ) < len(lanes)
