"""The plain websocket, with real sockets: `websockets` as the client, msgpack by hand."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest
import websockets
from door_clients import Plain
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool, FakePool


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Plain]:
    opened = await Plain.ready(gateway)
    yield opened
    await opened.socket.close()


async def test_ready_says_what_the_client_must_know(gateway: Gateway, client: Plain) -> None:
    lane, ticket = client.greeting.pop("lane"), client.greeting["ticket"]
    assert len(ticket) == 24
    assert ticket != lane
    assert list(gateway.exchange.delivery.lanes) == [lane]
    assert client.greeting == {
        "protocol": 1, "pipeline": "echo", "window": 2, "max_frame_bytes": 1048576, "interval_ms": 33,
        "deadline_ms": 500, "ticket": ticket,
    }  # fmt: skip
    assert client.socket.subprotocol == "framelane.v1"


async def test_frames_are_answered_in_order(gateway: Gateway, client: Plain) -> None:
    for seq in range(20):
        await client.say("frame", seq, b"picture %d" % seq)
        assert await client.hear() == [
            "result",
            {"seq": seq, "size": len(b"picture %d" % seq), "head": b"picture %d" % seq},
        ]
    assert gateway.books() == {
        "received": 20, "delivered": 20, "left": 0, "dropped": 0, "refused": 0, "slow_reader": 0, "inside": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        (["frame", 1], "bad_frame", "two arguments"),
        (["frame", 1, b"x", 2], "bad_frame", "two arguments"),
        (["frame", "1", b"x"], "bad_frame", "seq must be an unsigned integer, not text"),
        (["frame", -1, b"x"], "bad_frame", "between 0 and"),
        (["frame", 1.5, b"x"], "bad_frame", "not a fraction"),
        (["frame", True, b"x"], "bad_frame", "not a boolean"),
        (["frame", 2**63, b"x"], "bad_frame", "between 0 and"),
        (["frame", 1, "text"], "bad_frame", "data must be bytes, not text"),
        (["frame", 1, [1, 2]], "bad_frame", "data must be bytes, not an array"),
        (["frame", {}, b"x"], "bad_frame", "not an object"),
        (["shout", 1], "unknown_event", "'shout'"),
        (["hello", {}], "unknown_event", "'hello'"),
        ([7, 1, b"x"], "bad_message", "not an integer"),
        ([[["x"]], 1, b"x"], "bad_message", "not an array"),
        ([], "bad_message", "array"),
        ({"frame": 1}, "bad_message", "array"),
        (None, "bad_message", "array"),
        (["frame", msgpack.ExtType(1, b"x"), b"x"], "bad_frame", "an extension type"),
    ],
)
async def test_bad_message_is_answered_by_name_and_the_connection_lives(
    gateway: Gateway, client: Plain, message: Any, code: str, says: str
) -> None:
    await client.socket.send(msgpack.packb(message))
    name, error = await client.hear()
    assert (name, error["code"]) == ("error", code)
    assert says in error["message"]
    await client.say("frame", 5, b"still here")
    assert (await client.hear())[1]["seq"] == 5
    assert gateway.exchange.accounts.refused == {code: 1}
    assert gateway.exchange.accounts.inside == 0


@pytest.mark.parametrize(
    "message",
    [b"", b"\xc1", b"\x91" * 100_000, b"\x93\xa5frame\x01" + b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x93",
     b"\x93\xa5frame\x01\xc6\xff\xff\xff\xff", b"\x93\xa2\xff\xff\x01\xc4\x00", b"\xdc\xff\xff" + b"\x80" * 65535],
    ids=["empty", "invalid", "nested", "nested_data", "huge_array", "truncated", "huge_bytes", "bad_utf8", "wide"],
)  # fmt: skip
async def test_hostile_bytes_are_answered_by_name(gateway: Gateway, client: Plain, message: bytes) -> None:
    await client.socket.send(message)
    name, error = await client.hear()
    assert (name, error["code"]) == ("error", "bad_message")


async def test_text_message_is_answered_by_name(client: Plain) -> None:
    await client.socket.send("frame")
    assert (await client.hear())[1] == {"code": "bad_message", "message": "a text message: /ws takes binary ones"}


@pytest.mark.parametrize("again", [3, 2, 0])
async def test_seq_must_rise(gateway: Gateway, client: Plain, again: int) -> None:
    await client.say("frame", 3, b"x")
    await client.hear()
    await client.say("frame", again, b"x")
    name, error = await client.hear()
    assert (name, error["code"]) == ("error", "bad_seq")
    assert gateway.exchange.accounts.refused == {"bad_seq": 1}


@pytest.mark.parametrize(("size", "says"), [(0, "empty"), (1024 * 1024 + 1, "limit is 1048576")])
async def test_frame_of_impossible_size_is_invalid(client: Plain, size: int, says: str) -> None:
    await client.say("frame", 1, bytes(size))
    name, dropped = await client.hear()
    assert (name, dropped["seq"], dropped["reason"]) == ("dropped", 1, "invalid")
    assert says in dropped["message"]


async def test_message_far_beyond_the_limit_closes(gateway: Gateway, client: Plain) -> None:
    await client.say("frame", 1, bytes(3 * 1024 * 1024))
    assert await client.closed() == 1009
    await gateway.until_gone()


async def test_flood_of_bad_messages_is_cut(gateway: Gateway, client: Plain) -> None:
    async def flood() -> None:
        for _ in range(10_000):
            await client.say("nonsense")

    sending = asyncio.create_task(flood())
    assert await client.closed() == 4430
    await asyncio.gather(sending, return_exceptions=True)
    await gateway.until_gone()
    assert gateway.exchange.accounts.cut == {"flood": 1}
    assert gateway.exchange.accounts.inside == 0


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (msgpack.packb(["hello", {"token": "wrong"}]), 4401),
        (msgpack.packb(["hello", {"token": "secret", "pipeline": "other"}]), 4400),
        (msgpack.packb(["hello", {"token": 5}]), 4400),
        (msgpack.packb(["hello", {"token": "secret", "policy": "all"}]), 4400),
        (msgpack.packb(["frame", 0, b"x"]), 4400),
        (b"\x91" * 10_000, 4400),
        (msgpack.packb(["hello", {"token": "x" * 20_000}]), 4400),
        ("text", 4400),
    ],
)
async def test_bad_hello_is_refused_by_name(first: bytes | str, code: int) -> None:
    async with run_gateway(EchoPool(), token="secret") as gateway:
        client = await Plain.open(gateway)
        await client.socket.send(first)
        name, refused = await client.hear()
        assert name == "refused"
        assert refused["code"] == ("unauthorized" if code == 4401 else "bad_request")
        assert await client.closed() == code
        await gateway.until_gone()
        assert gateway.exchange.accounts.turned_away.total() == 1


async def test_right_token_comes_in() -> None:
    async with run_gateway(EchoPool(), token="secret") as gateway:
        await (await Plain.ready(gateway, {"token": "secret", "unknown": 1})).socket.close()


async def test_full_server_refuses_with_a_time_to_come_back() -> None:
    async with run_gateway(EchoPool(), max_clients=1, waiting_room=0) as gateway:
        first = await Plain.ready(gateway)
        client = await Plain.open(gateway)
        await client.say("hello", {})
        assert await client.hear() == [
            "refused", {"code": "full", "message": "all places are taken", "retry_after_ms": 2000}
        ]  # fmt: skip
        assert await client.closed() == 4503
        await first.socket.close()
        await gateway.until(lambda: not gateway.exchange.delivery.lanes)
        await (await Plain.ready(gateway)).socket.close()


async def test_no_hello_in_time_is_refused() -> None:
    async with run_gateway(EchoPool(), hello_timeout_s=0.1) as gateway:
        client = await Plain.open(gateway)
        assert (await client.hear())[0] == "refused"
        assert await client.closed() == 4408
        await gateway.until_gone()


@pytest.mark.parametrize(
    ("options", "code"),
    [({"subprotocols": None}, 4400), ({"origin": "https://evil.example"}, 4403), ({"origin": "null"}, 4403)],
)
async def test_wrong_subprotocol_or_foreign_page_is_refused(gateway: Gateway, options: Any, code: int) -> None:
    client = await Plain.open(gateway, **options)
    assert (await client.hear())[0] == "refused"
    assert await client.closed() == code


async def test_own_page_and_allowed_pages_may_connect() -> None:
    async with run_gateway(EchoPool(), allowed_origins=("https://campaign.example",)) as gateway:
        for origin in (gateway.http, "https://campaign.example"):
            client = await Plain.open(gateway, origin=origin)
            await client.say("hello", {})
            assert (await client.hear())[0] == "ready"
            await client.socket.close()


async def test_client_that_goes_before_its_hello_leaves_nothing(gateway: Gateway) -> None:
    client = await Plain.open(gateway)
    client.socket.transport.abort()
    await gateway.until_gone()


async def test_newer_frame_replaces_unstarted_one() -> None:
    pool = FakePool()
    async with run_gateway(pool) as gateway:
        client = await Plain.ready(gateway)
        for seq in range(3):
            await client.say("frame", seq, b"x")
        assert await client.hear() == ["dropped", {"seq": 1, "reason": "superseded"}]
        pool.finish()
        assert (await client.hear())[1]["seq"] == 0
        pool.finish()
        assert (await client.hear())[1]["seq"] == 2
        await client.socket.close()


async def test_result_of_a_client_that_left_reaches_nobody() -> None:
    pool = FakePool()
    async with run_gateway(pool) as gateway:
        client = await Plain.ready(gateway)
        await client.say("frame", 0, b"x")
        await gateway.until(lambda: bool(pool.jobs))
        await client.socket.close()
        await gateway.until_gone()
        assert pool.cancelled == [1]
        again = await Plain.ready(gateway)
        pool.finish()
        await again.say("frame", 0, b"mine")
        await gateway.until(lambda: bool(pool.jobs))
        pool.finish()
        assert (await again.hear())[1]["size"] == 4
        await again.socket.close()
        assert gateway.exchange.accounts.left == 1
        assert gateway.exchange.accounts.delivered == 1


async def test_waiting_frame_expires_though_no_worker_comes() -> None:
    async with run_gateway(FakePool(credits=0), deadline_ms=100) as gateway:
        client = await Plain.ready(gateway)
        await client.say("frame", 0, b"x")
        assert await client.hear() == ["dropped", {"seq": 0, "reason": "expired"}]
        await client.socket.close()


async def test_policy_queue_keeps_every_frame_in_order_and_slows_its_client_down() -> None:
    pool = FakePool()
    async with run_gateway(pool, queue_depth=3, deadline_ms=60_000) as gateway:
        client = await Plain.ready(gateway, {"policy": "queue"})
        assert client.greeting["window"] == 4
        sending = asyncio.create_task(flood_frames(client, 40))
        lane = next(iter(gateway.exchange.delivery.lanes.values()))
        await gateway.until(lambda: len(lane.jobs) == 3)
        await asyncio.sleep(0.1)
        assert len(lane.jobs) == 3
        assert gateway.exchange.accounts.received == 4
        for seq in range(40):
            await gateway.until(lambda: bool(pool.jobs))
            pool.finish()
            assert (await client.hear())[1]["seq"] == seq
        await sending
        assert gateway.books()["dropped"] == 0
        await client.socket.close()


async def flood_frames(client: Plain, count: int) -> None:
    for seq in range(count):
        await client.say("frame", seq, bytes(500_000))


async def test_full_queue_of_a_client_that_goes_is_left() -> None:
    pool = FakePool()
    async with run_gateway(pool, queue_depth=2, deadline_ms=300) as gateway:
        client = await Plain.ready(gateway, {"policy": "queue"})
        for seq in range(4):
            await client.say("frame", seq, b"x")
        await gateway.until(lambda: gateway.exchange.accounts.received == 3)
        client.socket.transport.abort()
        await gateway.until_gone()
        pool.finish()
        assert gateway.books()["inside"] == 0


async def test_pings_are_answered_while_a_queue_is_full() -> None:
    pool = FakePool()
    async with run_gateway(pool, queue_depth=1, deadline_ms=200) as gateway:
        client = await Plain.ready(gateway, {"policy": "queue"})
        for seq in range(3):
            await client.say("frame", seq, b"x")
        await asyncio.wait_for(await client.socket.ping(), 3)
        pool.finish()
        await client.socket.close()


async def test_client_that_stops_reading_is_shed_then_cut_and_leaves_nothing() -> None:
    pool = FakePool(credits=1)
    async with run_gateway(pool, stall_s=0.3, outbox_messages=4, deadline_ms=60_000) as gateway:
        client = await Plain.ready(gateway)
        other = await Plain.ready(gateway)
        client.socket.transport.pause_reading()
        lane = next(iter(gateway.exchange.delivery.lanes.values()))
        seq = 0
        while not gateway.exchange.accounts.slow_reader:
            await client.say("frame", seq, b"x")
            await gateway.until(lambda: bool(pool.jobs))
            pool.finish(blob=bytes(200_000))
            seq += 1
        assert len(lane.outbox) <= 4
        await other.say("frame", 0, b"x")
        await gateway.until(lambda: bool(pool.jobs))
        pool.finish()
        assert (await other.hear())[1]["seq"] == 0
        await gateway.until(lambda: len(gateway.exchange.delivery.lanes) == 1)
        assert gateway.exchange.accounts.cut == {"slow_reader": 1}
        assert gateway.exchange.accounts.inside == 0
        client.socket.transport.abort()
        await other.socket.close()
        await gateway.until_gone()


async def test_slow_reader_that_reads_again_gets_what_is_still_fresh() -> None:
    pool = FakePool(credits=1)
    async with run_gateway(pool, deadline_ms=60_000) as gateway:
        client = await Plain.ready(gateway)
        client.socket.transport.pause_reading()
        lane = next(iter(gateway.exchange.delivery.lanes.values()))
        seq = 0
        while len(lane.outbox) < 3:
            await client.say("frame", seq, b"x")
            await gateway.until(lambda: bool(pool.jobs))
            pool.finish(blob=bytes(200_000))
            seq += 1
        client.socket.transport.resume_reading()
        assert [(await client.hear())[1]["seq"] for _ in range(seq)] == list(range(seq))
        await gateway.until(lambda: not lane.outbox)
        assert gateway.exchange.accounts.delivered == seq
        assert lane.outbox_bytes == 0
        await client.socket.close()


async def test_unknown_websocket_path_is_closed(gateway: Gateway) -> None:
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(gateway.ws + "x", proxy=None)
