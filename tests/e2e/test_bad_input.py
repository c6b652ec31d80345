"""Bytes from a client cannot kill, hang or bloat the server (invariant 8): each gets its answer, and all goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import simplejpeg
from e2e.clients import FLAVOURS, Client, all_of, bystander
from e2e.frames import bad_pictures, blank_jpeg, noisy_jpeg
from e2e.servers import PATIENCE_S, Serve

MB = 1 << 20
MOST_LOG = 20_000  # bytes that one attack may write


@contextlib.asynccontextmanager
async def unharmed(server: Serve, picture: bytes) -> AsyncIterator[None]:
    """Meanwhile somebody else is served; afterwards all processes are the same, and have not written a lot."""

    def state() -> tuple[Any, ...]:
        return server.active("workers"), server.active("slots"), server.status()["restarts"]

    before, log = await asyncio.to_thread(state), len(server.log())
    async with bystander(server.port, picture):
        yield
    assert await asyncio.to_thread(state) == before
    assert server.popen.poll() is None
    assert (await asyncio.to_thread(server.json, "/readyz"))["ready"]
    assert len(server.log()) - log < MOST_LOG, server.log()[log:][:4000]


# -- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_each_bad_picture_gets_its_answer(face_server: Serve, astronaut: bytes, flavour: str) -> None:
    async with unharmed(face_server, astronaut), Client(face_server.port, flavour) as client:
        for seq, (name, (data, word)) in enumerate(bad_pictures(astronaut).items()):
            answer = await client.ask(seq, data)
            assert answer.reason == "invalid", f"{name}: {answer}"
            assert word in answer.fields["message"], f"{name}: {answer}"
        assert (await client.ask(100, astronaut)).fields["faces"]
        assert not client.complaints


async def test_each_bad_picture_gets_its_answer_over_http(face_server: Serve, astronaut: bytes) -> None:
    async with unharmed(face_server, astronaut):
        for name, (data, word) in bad_pictures(astronaut).items():
            status, body = await asyncio.to_thread(face_server.request, "POST", "/v1/infer", data)
            answer = json.loads(body)
            expected = (413, "too_large") if len(data) > MB else (422, "invalid")
            assert (status, answer["code"]) == expected, f"{name}: {answer}"
            assert word in answer["message"] or status == 413, f"{name}: {answer}"


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_truncated_jpeg_never_shows_another_picture(face_server: Serve, astronaut: bytes, flavour: str) -> None:
    """Somebody's face has just been decoded, perhaps into the same memory; it must not come back as this one's."""
    blank = blank_jpeg(astronaut)
    scan = blank.index(b"\xff\xda")
    async with Client(face_server.port) as somebody, Client(face_server.port, flavour) as client:
        for seq, cut in enumerate((scan + 14, scan + 40, len(blank) // 2, len(blank) - 100, len(blank) - 2)):
            assert (await somebody.ask(seq, astronaut)).fields["faces"]
            answer = await client.ask(seq, blank[:cut])
            assert answer.reason == "invalid" or answer.fields["faces"] == [], answer


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_message_far_over_the_limit_ends_its_connection(
    face_server: Serve, astronaut: bytes, flavour: str
) -> None:
    async with unharmed(face_server, astronaut), Client(face_server.port, flavour) as client:
        await client.send_frame(0, bytes(8 * MB))
        await asyncio.wait_for(client.closed.wait(), PATIENCE_S)
        assert client.close_code == 1009  # message too big
        assert client.unanswered == 1


def test_http_bodies_are_bounded(face_server: Serve) -> None:
    assert face_server.request("POST", "/v1/infer", bytes(MB + 1))[0] == 413
    for _ in range(20):  # whatever is faster, the client's writing or the server's answer
        assert face_server.request("POST", "/v1/infer", bytes(5 * MB))[0] == 413
    assert face_server.request("GET", "/v1/infer")[0] == 405
    assert face_server.request("POST", "/v1/infer", b"")[0] == 422


# -- messages --------------------------------------------------------------------------------------------------------

GOOD = b"\xff\xd8"
EVENTS: dict[str, tuple[list[Any], str]] = {
    "no arguments": (["frame"], "bad_frame"),
    "no data": (["frame", 7], "bad_frame"),
    "an argument too many": (["frame", 7, GOOD, 1], "bad_frame"),
    "seq is text": (["frame", "7", GOOD], "bad_frame"),
    "seq is a fraction": (["frame", 7.5, GOOD], "bad_frame"),
    "seq is null": (["frame", None, GOOD], "bad_frame"),
    "seq is true": (["frame", True, GOOD], "bad_frame"),
    "seq is an array": (["frame", [7], GOOD], "bad_frame"),
    "seq is negative": (["frame", -1, GOOD], "bad_frame"),
    "seq is 2^53": (["frame", 2**53, GOOD], "bad_frame"),
    "seq is 2^64 - 1": (["frame", 2**64 - 1, GOOD], "bad_frame"),
    "data are text": (["frame", 7, "/9j/4AAQSkZJRg=="], "bad_frame"),
    "data are null": (["frame", 7, None], "bad_frame"),
    "data are a number": (["frame", 7, 1234], "bad_frame"),
    "data are an array": (["frame", 7, [255, 216]], "bad_frame"),
    "data are an object": (["frame", 7, {"image": "x"}], "bad_frame"),
    "arguments in the wrong order": (["frame", GOOD, 7], "bad_frame"),
    "an unknown event": (["message", 7, GOOD], "unknown_event"),
    "an event of the server": (["result", {"seq": 7}], "unknown_event"),
    "an event without a name": (["", 7, GOOD], "unknown_event"),
    "a very long name": (["x" * 10_000, 7], "unknown_event"),
    "a name that is a number": ([7, 7, GOOD], "bad_message"),
    "a name that is null": ([None, 7, GOOD], "bad_message"),
}


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_each_event_that_is_no_frame_gets_an_error(face_server: Serve, astronaut: bytes, flavour: str) -> None:
    before = face_server.quiet_books()
    async with Client(face_server.port, flavour) as client:
        for count, (case, (event, code)) in enumerate(EVENTS.items(), start=1):
            await client.send_event(*event)
            complaint = await client.complaint(count)
            assert complaint["code"] == code, f"{case}: {complaint}"
            assert complaint["message"], case
        assert (await client.ask(7, astronaut)).name == "result"
        for count, seq in enumerate((7, 6, 0), start=len(EVENTS) + 1):
            await client.send_event("frame", seq, astronaut)
            assert (await client.complaint(count))["code"] == "bad_seq"
        assert (await client.ask(2**53 - 1, astronaut)).name == "result"
        books = (await asyncio.to_thread(face_server.quiet_books)).since(before)
    assert books.refused == client.errors
    assert books.received == len(EVENTS) + 3 + 2 == books.ended


RAW: dict[str, dict[str, list[str | bytes]]] = {
    "websocket": {
        "nothing": [b""],
        "no msgpack": [b"\xc1\xff\x00"],
        "a truncated array": [b"\x93\xa5frame"],
        "a frame cut in its data": [msgspec.msgpack.encode(["frame", 1, bytes(100)])[:-50]],
        "a length that lies": [b"\x93\xa5frame\x01\xc6\xff\xff\xff\xff12345"],
        "an object": [b"\x81\xa5frame\x01"],
        "a number": [b"\x01"],
        "something behind it": [msgspec.msgpack.encode(["frame", 1, b"x"]) + b"\x00"],
        "nested arrays": [b"\x91" * 100_000],
        "nested objects": [b"\x81\xa1x" * 50_000],
        "nested in an argument": [b"\x93\xa5frame\x01" + b"\x91" * 100_000 + b"\xc0"],
        "a huge count": [b"\xdd\xff\xff\xff\xff"],
        "text": ["frame"],
    },
    "socketio": {
        "an empty packet": ["4"],
        "no type": ["4x"],
        "an event without data": ["42"],
        "no JSON": ["42[frame"],
        "an object": ['42{"frame": 1}'],
        "nested arrays": ["42" + "[" * 8000],
        "nested in an argument": ['42["frame",1,' + "[" * 8000 + "]" * 8000 + "]"],
        "a very long text": ['42["frame",1,"' + "x" * 500_000 + '"]'],
        "another namespace": ['42/admin,["frame",1]'],
        "an ack of nothing": ["43/,7[]"],
        "a huge ack id": ['42999999999999999["message"]'],
        "an attachment that nobody announced": [b"\xff\xd8"],
        "a text in place of the attachment": ['451-["frame",1,{"_placeholder":true,"num":0}]', '42["message"]'],
        "two attachments": ['452-["frame",1,{"_placeholder":true,"num":0}]', b"\xff\xd8", b"\xff\xd8"],
        "ten billion attachments": ['459999999999-["frame",1,{"_placeholder":true,"num":0}]'],
        "a placeholder of another attachment": ['451-["frame",1,{"_placeholder":true,"num":9}]', b"\xff\xd8"],
    },
    "msgpack": {
        "nothing": [b""],
        "no msgpack": [b"\xc1\xff\x00"],
        "an array": [b"\x93\xa5frame\x01\x02"],
        "no type": [msgspec.msgpack.encode({"nsp": "/", "data": ["frame", 1, b"x"]})],
        "an unknown type": [msgspec.msgpack.encode({"type": 99, "nsp": "/", "data": ["frame", 1, b"x"]})],
        "another namespace": [msgspec.msgpack.encode({"type": 2, "nsp": "/admin", "data": ["frame", 1, b"x"]})],
        "no data": [msgspec.msgpack.encode({"type": 2, "nsp": "/"})],
        "data that are an object": [msgspec.msgpack.encode({"type": 2, "nsp": "/", "data": {"frame": 1}})],
        "nested arrays": [b"\x83\xa4type\x02\xa3nsp\xa1/\xa4data" + b"\x91" * 100_000],
        "text": ['42["frame",1]'],
    },
}


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_each_malformed_message_gets_an_error_and_the_connection_lives(
    face_server: Serve, astronaut: bytes, flavour: str
) -> None:
    async with unharmed(face_server, astronaut):
        for case, messages in RAW[flavour].items():
            async with Client(face_server.port, flavour) as client:
                await client.send(*messages)
                complaint = await client.complaint()
                assert complaint["code"] in ("bad_message", "bad_frame", "unknown_event"), f"{case}: {complaint}"
                assert len(complaint["message"]) < 300, case
                assert (await client.ask(1, astronaut)).name == "result", case


@pytest.mark.parametrize("text", ["", "9", "5upgrade", "b4AAEC", "x" * 1000, "41"], ids=repr)
async def test_malformed_engine_io_ends_the_connection_at_once(face_server: Serve, text: str) -> None:
    async with Client(face_server.port, "socketio") as client:
        await client.send(text)
        await asyncio.wait_for(client.closed.wait(), PATIENCE_S)


async def test_an_attachment_that_never_comes_blocks_nobody(face_server: Serve, astronaut: bytes) -> None:
    header = '451-["frame",1,{"_placeholder":true,"num":0}]'
    async with unharmed(face_server, astronaut), Client(face_server.port, "socketio") as client:
        for _ in range(20):  # each takes the place of the one before, which is refused
            await client.send(header)
        await client.complaint(19)
        await client.send(astronaut)  # the attachment of the last one
        await client.until(lambda: client.strays, "the last one's result")
        assert client.strays[0].fields["seq"] == 1


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_hello_that_makes_no_sense_is_refused_by_name(face_server: Serve, flavour: str) -> None:
    for hello in ({"pipeline": 7}, {"pipeline": "another"}, {"policy": "all"}, {"token": ["x"]}, {"token": "x" * 9000}):
        client = Client(face_server.port, flavour, hello)
        await client.open()
        if flavour == "websocket":
            refused = await client.notice("refused")
            assert refused["code"] == "bad_request"
            await asyncio.wait_for(client.closed.wait(), PATIENCE_S)
            assert client.close_code == 4400
        else:
            refused = await client.notice("connect_error")
            assert refused["data"]["code"] == "bad_request"
        assert refused["message"]
        await client.abort()


# -- masses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_ten_thousand_bad_events_get_their_client_cut(face_server: Serve, astronaut: bytes, flavour: str) -> None:
    before = face_server.quiet_books()
    async with unharmed(face_server, astronaut), Client(face_server.port, flavour) as client:
        for number in range(10_000):
            await client.send_event("no such event", number)
            if client.closed.is_set():
                break
        await asyncio.wait_for(client.closed.wait(), PATIENCE_S)
        if flavour == "websocket":
            assert client.close_code == 4430
    books = (await asyncio.to_thread(face_server.quiet_books)).since(before)
    assert books.cut == {"flood": 1}
    assert books.received == books.ended
    assert 100 <= client.errors.total() <= books.refused["unknown_event"] < 10_000


async def test_ten_thousand_frames_at_once_are_answered_one_by_one(face_server: Serve, astronaut: bytes) -> None:
    """Frames, however many, are no offence: all but the newest are superseded, and nothing piles up."""
    tiny = simplejpeg.encode_jpeg(simplejpeg.decode_jpeg(astronaut)[::8, ::8].copy(), quality=50)
    before = face_server.quiet_books()
    async with unharmed(face_server, astronaut), Client(face_server.port) as client:
        futures = [await client.send_frame(seq, tiny) for seq in range(10_000)]
        await asyncio.wait(futures, timeout=PATIENCE_S)
        assert client.unanswered == 0
        assert futures[-1].result().name == "result"
    books = (await asyncio.to_thread(face_server.quiet_books)).since(before)
    assert books.received >= 10_000
    assert books.received == books.ended
    assert set(client.dropped) == {"superseded"}


async def test_memory_returns(face_server: Serve, astronaut: bytes) -> None:
    """The same attacks again and again: after the first round nothing more is kept."""

    async def attack(flavour: str) -> None:
        async with Client(face_server.port, flavour) as client:
            for seq, (data, _) in enumerate(bad_pictures(astronaut).values()):
                await client.ask(seq, data)
            for messages in RAW[flavour].values():
                await client.send(*messages)
            await client.ask(2**40, astronaut)
            await client.send_frame(2**50, noisy_jpeg(2 * MB))
        async with Client(face_server.port, flavour) as client:
            await client.send_frame(0, bytes(3 * MB))
            await asyncio.wait_for(client.closed.wait(), PATIENCE_S)

    sizes = []
    for _ in range(5):
        await all_of(*(attack(flavour) for flavour in FLAVOURS))
        await asyncio.to_thread(face_server.quiet_books)
        sizes.append(await asyncio.to_thread(face_server.pss))
    assert min(sizes[2:]) - sizes[0] < 16 * MB, [f"{size / MB:.0f} MB" for size in sizes]
