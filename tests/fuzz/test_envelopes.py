"""Envelopes that are nearly right, by the thousand (`make prove`: a million): a fault by name, or nothing at all."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import psutil
import pytest
import websockets
from door_clients import Plain
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool
from fuzz.mutations import mutated, stream

from framelane.server.doors.explain import explain_json, explain_msgpack
from framelane.server.doors.parsers import auth_of, explain, open_binary, open_text
from framelane.server.errors import BadMessage, Refused
from framelane.server.lanes.tokens import Tokens, mint, secret_key
from framelane.server.protocol import (
    UNREADABLE,
    Fault,
    decode_socketio_header,
    decode_socketio_msgpack,
    decode_websocket_frame,
    decode_websocket_hello,
    hello_from,
    renewal_in,
)

PICTURE = bytes(range(64))
KEY = secret_key("x" * 32)
TOKEN = mint(KEY, "here", 1000.0, campaign="spring")
BINARY = [
    msgpack.packb(["frame", 5, PICTURE]),
    msgpack.packb(["frame", 2**53 - 1, b""]),
    msgpack.packb(["hello", {"token": TOKEN, "pipeline": "echo", "policy": "queue", "resume": "x" * 24}]),
    msgpack.packb(["renew", {"token": TOKEN}]),
    msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", 7, PICTURE], "id": 3}),
    msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", 7, msgpack.ExtType(0, PICTURE)]}),
    msgpack.packb({"type": 0, "nsp": "/", "data": {"token": TOKEN}}),
    msgpack.packb({"type": 3, "nsp": "/admin", "data": [1, {"a": [None, 1.5]}], "id": 1}),
]
TEXT = [
    b'451-["frame",5,{"_placeholder":true,"num":0}]',
    b'451-17["frame",6,{"_placeholder":true,"num":0}]',
    b'40{"token":"' + TOKEN.encode() + b'","policy":"latest"}',
    b"40/admin,",
    b'42["renew",{"token":"' + TOKEN.encode() + b'"}]',
    b'4312[{"a":null}]',
    b"41",
    b"2",
    b"3",
    b'453-["frame",1,{"_placeholder":true,"num":2}]',
]
VOLUME = [pytest.param(20_000, id="short"), pytest.param(1_000_000, id="long", marks=pytest.mark.prove)]


def read_as_binary(data: bytes) -> None:
    for decode in (decode_websocket_frame, decode_socketio_msgpack):
        with contextlib.suppress(*UNREADABLE):
            decode(data)
    with contextlib.suppress(BadMessage):
        decode_websocket_hello(data)
    renewal_in(data)
    assert explain_msgpack(data).code in set(Fault)
    with contextlib.suppress(BadMessage):
        envelope = open_binary(data)
        assert explain(envelope).code in set(Fault)
        renewal_in(envelope.payload)
        hello_from(auth_of(envelope))


def read_as_text(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(*UNREADABLE):
        decode_socketio_header(text[4:])
    assert explain_json(text).code in set(Fault)
    with contextlib.suppress(BadMessage):
        envelope = open_text(text[1:])
        assert explain(envelope).code in set(Fault)
        renewal_in(envelope.payload)
        hello_from(auth_of(envelope))


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("count", VOLUME)
def test_every_envelope_is_read_or_refused_by_name_and_leaves_nothing_behind(count: int) -> None:
    process, readings = psutil.Process(), []
    for part in range(4):
        for data in stream(part, BINARY, count // 8):
            read_as_binary(data)
        for data in stream(10 + part, TEXT, count // 8):
            read_as_text(data)
        readings.append(process.memory_info().rss)
    assert readings[-1] - readings[0] < 8 * 2**20, readings


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [3000, pytest.param(100_000, id="long", marks=pytest.mark.prove)])
def test_token_that_was_changed_is_refused_by_name(count: int) -> None:
    """What is let in all the same (base64 can write one signature in several ways) says what a good one said."""
    tokens = Tokens([KEY], "here")
    given = [TOKEN, mint(KEY, "here", 1000.0)]
    good = [tokens.check(token, 1001.0) for token in given]
    refusals = 0
    for data in stream(1, [token.encode() for token in given], count):
        try:
            assert tokens.check(data.decode("latin-1"), 1001.0) in good
        except Refused as refused:
            assert refused.code == "unauthorized"  # noqa: PT017
            refusals += 1
    assert refusals > 0.9 * count


HELLO = {
    "websocket": msgpack.packb(["hello", {}]),
    "socketio": "40",
    "socketio_msgpack": msgpack.packb({"type": 0, "nsp": "/"}),
}


async def speak(gateway: Gateway, door: str, chance: random.Random, count: int) -> int:
    """Say so much to a door, on as many connections as it takes. How many those were."""
    said = connections = 0
    while said < count:
        connections += 1
        with contextlib.suppress(websockets.WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(10), connected(gateway, door) as socket:
                reading = asyncio.create_task(read_all(socket))
                for _ in range(min(20 if door == "socketio" else 200, count - said)):
                    said += 1
                    await socket.send(a_message(chance, door))
                reading.cancel()
    return connections


def a_message(chance: random.Random, door: str) -> str | bytes:
    """Text of Engine.IO's other types ends a connection at once, so most of it begins as a Socket.IO packet does."""
    if door != "socketio":
        return mutated(chance, BINARY)
    text = mutated(chance, TEXT).decode("utf-8", "replace")
    return "4" + text[1:] if chance.random() < 0.98 else text.encode()


@contextlib.asynccontextmanager
async def connected(gateway: Gateway, door: str) -> AsyncIterator[websockets.ClientConnection]:
    options: dict[str, Any] = {"proxy": None, "compression": None, "max_size": None, "max_queue": None}
    address = gateway.ws if door == "websocket" else f"{gateway.ws[:-3]}/socket.io/?EIO=4&transport=websocket"
    protocols = ["framelane.v1"] if door == "websocket" else None
    async with websockets.connect(address, subprotocols=protocols, close_timeout=1, **options) as socket:
        await socket.send(HELLO[door])
        yield socket


async def read_all(socket: websockets.ClientConnection) -> None:
    with contextlib.suppress(websockets.WebSocketException):
        while True:
            await socket.recv()


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("count", [600, pytest.param(60_000, id="long", marks=pytest.mark.prove)])
@pytest.mark.parametrize("door", ["websocket", "socketio", "socketio_msgpack"])
async def test_gateway_lives_on_serves_others_and_its_books_add_up(
    door: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_gateway(EchoPool(), fault_burst=1000) as gateway:
        honest = await Plain.ready(gateway)
        connections = await speak(gateway, door, random.Random(door), count)
        assert connections < count, "most of it was said to a lane"
        await honest.say("frame", 0, b"x")
        assert (await honest.hear())[0] == "result"
        await honest.socket.close()
        await gateway.until_gone()
        books = gateway.books()
        assert books["inside"] == 0
        assert books["received"] > count / 20
    assert not [record for record in caplog.records if record.exc_info], "no exception anywhere"


def test_json_is_what_the_seeds_hold() -> None:
    """The seeds are right: what is fuzzed is the neighbourhood of real messages."""
    assert decode_websocket_frame(BINARY[0])[1] == 5
    assert decode_socketio_msgpack(BINARY[4]).id == 3
    assert decode_websocket_hello(BINARY[2]).policy == "queue"
    assert renewal_in(BINARY[3]) == TOKEN
    assert renewal_in(TEXT[4][2:].decode()) == TOKEN
    assert decode_socketio_header(TEXT[0][4:].decode())[1] == 5
    assert json.loads(TEXT[2][2:])["token"] == TOKEN
    assert Tokens([KEY], "here").check(TOKEN, 1001.0).campaign == "spring"
