"""Places, positions and paces end to end: the asyncio client against a gateway on real sockets."""

import asyncio
from typing import Any

import pytest
from door_clients import Plain, Raw
from fake_gateway import run_gateway
from fake_pool import EchoPool

from framelane.server.sdk.client import Client
from framelane.server.sdk.states import State


class SlowPool(EchoPool):
    """Serves one frame every 10 ms, whatever is asked of it."""

    def submit(self, job: Any) -> int:
        request = super(EchoPool, self).submit(job)
        asyncio.get_running_loop().call_later(0.01, self.finish, request)
        return request


async def test_client_waits_for_a_place_hears_its_position_and_gets_it() -> None:
    async with run_gateway(EchoPool(), max_clients=1) as gateway:
        positions: list[int | None] = []
        first = Client(gateway.http)
        clients = [Client(gateway.http, on_situation=lambda now: positions.append(now.position)) for _ in range(2)]
        first.connect()
        await first.ready()
        for client in clients:
            client.connect()
            await gateway.until(lambda client=client: client.situation.state is State.WAITING)
        assert positions[-1] == 2
        first.close()
        await clients[0].ready()
        assert (await clients[0].infer(b"mine")).fields["head"] == b"mine"
        assert clients[1].situation.state is State.WAITING
        clients[0].close()
        await clients[1].ready()
        clients[1].close()
        for client in (first, *clients):
            await client.wait_closed()
        await gateway.until_gone()
        assert gateway.exchange.reception.admission.admitted == 0


async def test_lost_client_comes_back_to_its_place_and_to_its_position() -> None:
    async with run_gateway(EchoPool(), max_clients=1, grace_s=5.0) as gateway:
        first, second = Client(gateway.http), Client(gateway.http)
        first.connect()
        await first.ready()
        second.connect()
        await gateway.until(lambda: second.situation.state is State.WAITING)
        for client in (first, second):
            lane = next(
                lane for lane in gateway.exchange.delivery.lanes.values() if lane.ticket == client._session.ticket
            )
            lane.writer.abort()
            await gateway.until(lambda lane=lane: lane.left)
            assert gateway.exchange.reception.admission.places(float("inf")) == 0
            await gateway.until(lambda client=client: client.situation.state in (State.LIVE, State.WAITING))
        assert (first.situation.state, second.situation.position) == (State.LIVE, 1)
        for client in (first, second):
            client.close()
            await client.wait_closed()
        await gateway.until_gone()


@pytest.mark.parametrize("door", ["socketio", "socketio_msgpack"])
async def test_socketio_clients_wait_too(door: str) -> None:
    async with run_gateway(EchoPool(), max_clients=1) as gateway:
        first = await Plain.ready(gateway)
        raw = await Raw.open(gateway)
        await raw.hear()
        await raw.socket.send("40" if door == "socketio" else b"\x82\xa4type\x00\xa3nsp\xa1/")
        await raw.hear()

        async def event() -> list[Any]:
            return await raw.event() if door == "socketio" else (await raw.packed())["data"]

        name, place = await event()
        assert (name, place["position"], len(place["ticket"])) == ("waiting", 1, 24)
        await first.socket.close()
        name, terms = await event()
        assert (name, terms["ticket"]) == ("ready", place["ticket"])
        await raw.socket.close()
        await gateway.until_gone()


async def test_clients_follow_the_pace_and_hardly_a_frame_is_lost() -> None:
    async with run_gateway(SlowPool(credits=1), max_clients=20, interval_ms=10, deadline_ms=1000) as gateway:
        gateway.exchange.capacity.expect(100.0)
        clients = [Client(gateway.http) for _ in range(6)]
        for client in clients:
            client.connect()
            await client.ready()
        stop = asyncio.get_running_loop().time() + 6
        await asyncio.gather(*(stream(client, stop) for client in clients))
        results = [client.counts.results for client in clients]
        assert min(client.interval_ms for client in clients) > 40, "six share what one could send every 10 ms"
        assert min(results) > 0.7 * max(results)
        assert gateway.books()["dropped"] < 0.25 * gateway.books()["received"]
        for client in clients:
            client.close()
            await client.wait_closed()


async def stream(client: Client, until: float) -> None:
    while asyncio.get_running_loop().time() < until:
        await client.room()
        client.send(b"picture")
