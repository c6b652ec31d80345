"""Replicas that know each other, over a real Redis: the lanes are real, only sockets and workers are not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fake_pool import FakePool
from lane_world import Client

from framelane.preprocess.packets import WEBSOCKET
from framelane.server.config import ConfigError
from framelane.server.errors import Refused
from framelane.server.fleet.channel import _MOST_WAITING, Channel
from framelane.server.fleet.messages import Beat, Kick, Message, Target
from framelane.server.fleet.together import Together
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.limits import Limits
from framelane.server.lanes.passes import Passes
from framelane.server.lanes.tokens import Tokens, mint, secret_key
from framelane.server.protocol import Cut, Hello

RECOVERY_S = 5.0
KEY = secret_key("x" * 32)


class Replica:
    """One replica's lanes and its way to the others."""

    def __init__(self, name: str, url: str, most: int | None = None, **limits: Any) -> None:
        passes = Passes("word", Tokens([KEY], "here"), time.time)
        self.exchange = Exchange(FakePool(4), Limits(**{"pipeline": "echo", **limits}), time.monotonic, passes=passes)
        self.together = Together(self.exchange, name, 10.0, most)
        if url:
            self.together.join(url, "test")

    def client(self, resume: str = "", token: str = "", campaign: str = "", shows: str = "word") -> tuple[Lane, Client]:
        client = Client()
        lane = self.exchange.admit(Hello(resume=resume, token=shows), WEBSOCKET, client)
        if shows == "word":
            lane.token, lane.campaign = token, campaign
        self.exchange.greet(lane)
        return lane, client


@contextlib.asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[None]:
    """Their channels run, and all know each other."""
    tasks = [asyncio.create_task(replica.together.run()) for replica in replicas]
    try:
        for replica in replicas:
            await until(lambda r=replica: len(r.together.status().get("replicas", [])) == len(replicas))  # type: ignore[misc]
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Any], patience: float = 20.0) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < patience
        await asyncio.sleep(0.02)
    return time.monotonic() - started


async def test_words_and_kicks_reach_whom_they_mean_wherever_they_are(redis_server: Any) -> None:
    a, b = Replica("a", redis_server.url), Replica("b", redis_server.url)
    async with running(a, b):
        (_, spring_a), (_, autumn_a) = a.client(campaign="spring"), a.client(campaign="autumn")
        (lane_b, spring_b) = b.client(campaign="spring", token="7f")
        told = a.together.notice(Target(campaign="spring"), "Back in five minutes")
        assert told == {"clients_here": 1, "other_replicas_told": 1, "degraded": []}
        await until(lambda: spring_b.told("notice"))
        assert spring_a.told("notice") == spring_b.told("notice") == [{"text": "Back in five minutes"}]
        assert not autumn_a.told("notice")

        a.together.notice(Target(lane=lane_b.id), "You alone")
        await until(lambda: len(spring_b.told("notice")) == 2)
        assert len(spring_a.told("notice")) == 1, "once each, though its own message came back to it"

        a.together.kick(Target(token="7f"))
        await until(lambda: spring_b.closed)
        assert spring_b.closed == (4433, "kicked")
        assert spring_b.told("refused")[0]["code"] == "kicked"
        assert b.exchange.accounts.cut[Cut.KICKED] == 1
        assert spring_a.closed is None


async def test_a_ticket_names_its_client_at_another_replica(redis_server: Any) -> None:
    a, b = Replica("a", redis_server.url), Replica("b", redis_server.url)
    async with running(a, b):
        (lane, client), (_, other) = b.client(), b.client()
        a.together.kick(Target(ticket=lane.ticket))
        await until(lambda: client.closed)
        assert other.closed is None


async def test_client_comes_back_to_its_place_at_another_replica(redis_server: Any) -> None:
    a, b = Replica("a", redis_server.url, max_clients=1), Replica("b", redis_server.url, max_clients=1)
    async with running(a, b):
        (mine, _), (waits, _) = a.client(), a.client()
        (there, _), (_, waits_there) = b.client(), b.client()
        await a.together.leaving()
        a.exchange.drain(0, 0)
        await asyncio.sleep(0.2)
        _, back = b.client(resume=mine.ticket)
        _, waits_on = b.client(resume=waits.ticket)
        assert back.told("waiting")[0]["position"] == 1
        b.exchange.disconnect(there)
        assert back.told("ready"), "it had a place: it gets the next one"
        assert not waits_on.told("ready")
        assert not waits_there.told("ready")


async def test_a_token_that_was_used_at_one_replica_opens_nothing_at_another(redis_server: Any) -> None:
    a, b = Replica("a", redis_server.url), Replica("b", redis_server.url)
    async with running(a, b):
        token = mint(KEY, "here", time.time())
        _, client = a.client(shows=token)
        await asyncio.sleep(0.2)
        for resume in ("", "a-guess"):
            with pytest.raises(Refused, match="used before"):
                b.client(shows=token, resume=resume)
        _, back = b.client(shows=token, resume=client.told("ready")[0]["ticket"])
        assert back.told("ready"), "its own client goes where it likes"


async def test_a_place_that_falls_free_goes_to_the_longest_waiting_of_the_fleet(redis_server: Any) -> None:
    a, b = Replica("a", redis_server.url, most=2), Replica("b", redis_server.url, most=2)
    async with running(a, b):
        for replica in (a, b):
            replica.client()
        assert sum(replica.exchange.reception.admission.admitted for replica in (a, b)) == 2
        await asyncio.sleep(1.2)
        _, first = b.client()
        await asyncio.sleep(0.3)
        _, second = a.client()
        await asyncio.sleep(2.2)
        for replica in (a, b):
            replica.exchange.tick()
        assert second.told("waiting")[-1]["position"] == 2, "the other one waits elsewhere"
        a.exchange.disconnect(next(iter(a.exchange.delivery.lanes.values())))
        for _ in range(25):
            await asyncio.sleep(0.1)
            for replica in (a, b):
                replica.exchange.tick()
        assert first.told("ready")
        assert not second.told("ready")
        assert a.together.status()["admitted"] == 2


async def test_without_redis_the_clients_here_are_served(redis_server: Any) -> None:
    alone = Replica("a", "")
    _, client = alone.client(campaign="spring")
    assert alone.together.notice(Target(campaign="spring"), "hello")["clients_here"] == 1
    assert client.told("notice")
    assert alone.together.degraded() == []
    assert alone.together.status() == {}


@pytest.mark.prove
async def test_redis_away_degrades_and_its_return_mends(redis_server: Any) -> None:
    a, b = Replica("a", redis_server.url), Replica("b", redis_server.url)
    async with running(a, b):
        redis_server.stop()
        try:
            await until(a.together.degraded)
            _, client = a.client(campaign="spring")
            outcome = a.together.notice(Target(campaign="spring"), "hello")
            assert (outcome["clients_here"], outcome["other_replicas_told"]) == (1, 0)
            assert client.told("notice")
            assert a.together.status()["redis"] == "down"
        finally:
            redis_server.start()
        assert await until(lambda: not a.together.degraded() and not b.together.degraded()) <= RECOVERY_S
        assert a.together.status()["breaks"] == 1


async def test_a_listener_that_died_silently_is_replaced(wire: Any) -> None:
    a, b = Replica("a", wire.url), Replica("b", wire.url)
    async with running(a, b):
        connections = wire.connections
        wire.dead = True
        await until(a.together.degraded)
        wire.dead = False
        await until(lambda: not a.together.degraded() and not b.together.degraded())
        assert wire.connections >= connections + 4, "both connections of both were made anew"
        _, client = b.client(campaign="spring")
        a.together.notice(Target(campaign="spring"), "hello")
        await until(lambda: client.told("notice"))


async def test_replicas_drain_one_at_a_time(redis_server: Any) -> None:
    a, b = Replica("a", redis_server.url), Replica("b", redis_server.url)
    async with running(a, b):
        await a.together.my_turn(5.0)
        waiting = asyncio.create_task(b.together.my_turn(10.0))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await a.together.left()
        await asyncio.wait_for(waiting, 5.0)
        await a.together.left()  # it is not a's any more: nothing happens
        started = time.monotonic()
        await a.together.my_turn(0.5)
        assert time.monotonic() - started >= 0.4, "b drains now; who must go goes after its patience"
        await b.together.left()


async def test_what_it_does_not_understand_is_counted_and_ignored(redis_server: Any) -> None:
    import redis

    heard: list[Message] = []
    channel = Channel(redis_server.url, "other", "a", lambda: Beat(replica="a"), heard.append)
    running_ = asyncio.create_task(channel.run())
    await until(lambda: channel.works)
    with redis.Redis(port=redis_server.port) as client:
        client.publish("framelane:other:replicas", b"\xff\x00nonsense")
    await until(lambda: channel.unreadable)
    assert channel.works
    running_.cancel()


async def test_many_messages_at_once_go_in_order_over_one_connection_and_have_a_bound(redis_server: Any) -> None:
    import redis

    heard: list[str] = []

    def hear(message: Message) -> None:
        if isinstance(message, Kick):
            heard.append(message.to.token)

    channel = Channel(redis_server.url, "crowd", "a", lambda: Beat(replica="a"), hear)
    running_ = asyncio.create_task(channel.run())
    await until(lambda: channel.works)
    with redis.Redis(port=redis_server.port) as client:
        connections = client.info("clients")["connected_clients"]
        for number in range(_MOST_WAITING + 5):
            channel.publish(Kick(sender="a", to=Target(token=str(number))))
        await until(lambda: len(heard) == _MOST_WAITING)
        assert client.info("clients")["connected_clients"] <= connections + 1
    assert heard == [str(number) for number in range(_MOST_WAITING)]
    assert channel.unsent == 5
    running_.cancel()


def test_an_address_that_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError) as refused:
        Replica("a", "http://user:secret@host")
    assert "redis = " in refused.value.message
    assert "secret" not in refused.value.message
