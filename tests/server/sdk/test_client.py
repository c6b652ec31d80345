"""The asyncio client against a server whose every word is in the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve

from framelane.server.errors import Refused
from framelane.server.protocol import SUBPROTOCOL
from framelane.server.sdk.client import Client, Result, Unanswered
from framelane.server.sdk.states import State

PATIENCE_S = 10
TERMS = {
    "protocol": 1,
    "lane": "a",
    "pipeline": "echo",
    "window": 2,
    "max_frame_bytes": 1000,
    "interval_ms": 0,
    "deadline_ms": 500,
}
TIMING = {"queue_ms": 1.0, "preprocess_ms": 2.0, "inference_ms": 3.0, "total_ms": 6.0}


class Server:
    """One client's connection, as the server sees it."""

    def __init__(self, websocket: ServerConnection) -> None:
        self.websocket = websocket

    async def say(self, name: str, **body: Any) -> None:
        await self.websocket.send(msgspec.msgpack.encode([name, body]))

    async def hear(self) -> list[Any]:
        return msgspec.msgpack.decode(await self.websocket.recv())

    async def greet(self, **terms: Any) -> dict[str, Any]:
        name, hello = await self.hear()
        assert name == "hello"
        await self.say("ready", **TERMS | terms)
        return hello

    async def answer(self, **fields: Any) -> list[Any]:
        """Answer the next frame; returns it."""
        frame = await self.hear()
        await self.say("result", seq=frame[1], timing=TIMING, **fields)
        return frame

    async def until_left(self) -> None:
        await self.websocket.wait_closed()


@contextlib.asynccontextmanager
async def server(*connections: Callable[[Server], Awaitable[None]]) -> AsyncIterator[str]:
    """The address of a server that treats its first connection as the first function says, and so on.

    What fails in one of the functions fails the test.
    """
    left = list(connections)
    failed: list[BaseException] = []

    async def handle(websocket: ServerConnection) -> None:
        try:
            await left.pop(0)(Server(websocket))
        except BaseException as error:
            failed.append(error)
            raise

    async with serve(handle, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        async with asyncio.timeout(PATIENCE_S):
            yield f"http://127.0.0.1:{port}"
    assert failed == []
    assert left == [], "a connection was expected that nobody made"


async def test_result_comes_back_with_its_context():
    async def echo(there: Server) -> None:
        await there.greet()
        await there.answer(width=3)
        await there.until_left()

    async with server(echo) as url, Client(url) as client:
        client.send(b"jpeg", context="mine")
        result = await anext(client.results())
    assert isinstance(result, Result)
    assert (result.seq, result.fields, result.timing, result.context) == (0, {"width": 3}, TIMING, "mine")
    assert result.round_trip_ms > 0
    assert client.counts.results == 1


async def test_hello_says_what_the_client_was_given():
    heard = {}

    async def listen(there: Server) -> None:
        heard.update(await there.greet())

    async with server(listen) as url, Client(url, token="t", pipeline="echo", policy="queue"):
        pass
    assert heard == {"token": "t", "pipeline": "echo", "policy": "queue", "resume": ""}


async def test_client_that_comes_back_shows_its_ticket():
    hellos = []

    async def lose(there: Server) -> None:
        hellos.append(await there.greet(ticket="abc"))
        there.websocket.transport.abort()

    async def listen(there: Server) -> None:
        hellos.append(await there.greet())
        await there.until_left()

    async with server(lose, listen) as url, Client(url) as client:
        while len(hellos) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await client.ready()
    assert [hello["resume"] for hello in hellos] == ["", "abc"]


async def test_an_operators_words_are_passed_on_and_change_nothing():
    async def talk(server: Server) -> None:
        await server.greet()
        await server.say("notice", text="Back in five minutes")
        await server.answer(x=1)
        await server.until_left()

    heard: list[str] = []
    async with server(talk) as url, Client(url, on_notice=heard.append) as client:
        assert (await client.infer(b"1")).fields == {"x": 1}
    assert heard == ["Back in five minutes"]


async def test_infer_waits_for_its_own_answer():
    async def echo(there: Server) -> None:
        await there.greet()
        for _ in range(6):
            await there.answer()

    async with server(echo) as url, Client(url) as client:
        results = await asyncio.gather(*(client.infer(b"x") for _ in range(6)))
    assert sorted(result.seq for result in results) == list(range(6))


async def test_infer_raises_what_became_of_a_dropped_picture():
    async def drop(there: Server) -> None:
        await there.greet()
        _, seq, _ = await there.hear()
        await there.say("dropped", seq=seq, reason="invalid", message="a GIF")
        await there.until_left()

    async with server(drop) as url, Client(url) as client:
        with pytest.raises(Unanswered, match="a GIF") as raised:
            await client.infer(b"GIF89a")
    assert raised.value.code == "invalid"


async def test_infer_raises_when_the_connection_is_lost():
    async def leave(there: Server) -> None:
        await there.greet()
        await there.hear()

    async def stay(there: Server) -> None:
        await there.greet()
        await there.until_left()

    async with server(leave, stay) as url, Client(url) as client:
        with pytest.raises(Unanswered) as raised:
            await client.infer(b"x")
        await client.ready()
    assert raised.value.code == "lost"


async def test_only_the_newest_picture_waits_for_room():
    seen = []

    async def slow(there: Server) -> None:
        await there.greet()
        seen.extend([(await there.hear())[2] for _ in range(2)])
        await there.say("result", seq=0)
        seen.append((await there.hear())[2])
        await there.until_left()

    async with server(slow) as url, Client(url) as client:
        for picture in (b"1", b"2", b"3", b"4", b"5"):
            client.send(picture)
        await until(lambda: len(seen) == 3)
    assert seen == [b"1", b"2", b"5"]
    assert client.counts.replaced == 2


async def test_nothing_piles_up_while_offline():
    seen = []
    back = asyncio.Event()

    async def leave(there: Server) -> None:
        await there.greet()

    async def listen(there: Server) -> None:
        await back.wait()
        await there.greet()
        seen.append(await there.hear())
        await there.until_left()

    async with server(leave, listen) as url, Client(url) as client:
        await until(lambda: client.situation.state is not State.LIVE)
        for n in range(100):
            client.send(b"%d" % n)
        back.set()
        await until(lambda: seen)
    assert seen == [["frame", 0, b"99"]]


async def test_picture_that_is_too_large_raises():
    async def listen(there: Server) -> None:
        await there.greet()
        await there.until_left()

    async with server(listen) as url, Client(url) as client:
        with pytest.raises(ValueError, match="a frame of 1001 bytes; the limit is 1000"):
            client.send(bytes(1001))


async def test_refusal_for_good_is_raised():
    async def refuse(there: Server) -> None:
        await there.hear()
        await there.say("refused", code="unauthorized", message="a valid token is needed")
        await there.websocket.close(4401)

    async with server(refuse) as url:
        with pytest.raises(Refused, match="a valid token is needed") as raised:
            async with Client(url):
                pass
    assert raised.value.code == "unauthorized"


async def test_refusal_for_now_is_tried_again_after_the_time_it_names():
    async def refuse(there: Server) -> None:
        await there.hear()
        await there.say("refused", code="full", message="all places are taken", retry_after_ms=50)
        await there.websocket.close(4503)

    async def take(there: Server) -> None:
        await there.greet()
        await there.until_left()

    situations = []
    async with server(refuse, take) as url, Client(url, on_situation=situations.append):
        pass
    states = [situation.state for situation in situations]
    assert states == ["connecting", "greeting", "backoff", "connecting", "greeting", "live", "closed"]
    assert situations[2].reason == "full"
    assert situations[2].retry_in_ms >= 50


async def test_waiting_room_tells_the_position():
    async def wait(there: Server) -> None:
        await there.hear()
        for position in (2, 1):
            await there.say("waiting", position=position, retry_after_ms=10)
        await there.say("ready", **TERMS)
        await there.until_left()

    situations = []
    async with server(wait) as url, Client(url, on_situation=situations.append):
        pass
    assert [s.position for s in situations if s.state is State.WAITING] == [2, 1]


async def test_drain_lets_answers_come_and_then_reconnects():
    async def drain(there: Server) -> None:
        await there.greet()
        _, seq, _ = await there.hear()
        await there.say("drain", reconnect_after_ms=20)
        await asyncio.sleep(0.05)
        await there.say("result", seq=seq)
        await there.until_left()

    async def take(there: Server) -> None:
        await there.greet()
        await there.answer()
        await there.until_left()

    async with server(drain, take) as url, Client(url) as client:
        first = await client.infer(b"x")
        second = await client.infer(b"y")
    assert (first.seq, second.seq, client.counts.results, client.counts.lost) == (0, 0, 2, 0)


async def test_server_that_speaks_something_else_is_left():
    async def babble(there: Server) -> None:
        await there.hear()
        await there.websocket.send(b"\xc1")
        await there.until_left()

    async def take(there: Server) -> None:
        await there.greet()
        await there.until_left()

    async with server(babble, take) as url, Client(url):
        pass


async def test_message_in_pieces_is_put_together():
    async def piecemeal(there: Server) -> None:
        await there.greet()
        _, seq, _ = await there.hear()
        message = msgspec.msgpack.encode(["result", {"seq": seq, "text": "x" * 100}])
        await there.websocket.send([message[:10], message[10:50], message[50:]])
        await there.until_left()

    async with server(piecemeal) as url, Client(url) as client:
        assert (await client.infer(b"x")).fields == {"text": "x" * 100}


async def test_server_that_is_not_there_is_tried_until_it_is(unused_tcp_port):
    situations = []
    client = Client(f"ws://127.0.0.1:{unused_tcp_port}/ws", on_situation=situations.append)
    client.connect()
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: len(situations) >= 4)
    client.close()
    await client.wait_closed()
    assert [situation.state for situation in situations] == ["connecting", "backoff", "connecting", "backoff", "closed"]


async def test_reader_that_falls_behind_misses_the_oldest():
    async def echo(there: Server) -> None:
        await there.greet(window=50)
        for _ in range(30):
            await there.answer()
        await there.until_left()

    async with server(echo) as url, Client(url) as client:
        seen = []
        reading = asyncio.ensure_future(read_slowly(client, seen, last=29))
        await asyncio.sleep(0)
        for _ in range(30):
            client.send(b"x")
        await reading
    assert len(seen) < 30
    assert seen == sorted(seen)


async def read_slowly(client: Client, seen: list[int], last: int) -> None:
    async for result in client.results():
        seen.append(result.seq)
        if result.seq == last:
            return
        await until(lambda: client.counts.results == last + 1)


async def test_address_without_a_scheme_is_refused():
    with pytest.raises(ValueError, match="no address of a server"):
        Client("localhost:8000")


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 - what it looks at has no event of its own
        await asyncio.sleep(0.005)
