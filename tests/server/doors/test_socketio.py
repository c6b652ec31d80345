"""The Socket.IO door: python-socketio's client with both parsers, and raw websockets for what no stock client does."""

import asyncio
import contextlib
import json
from typing import Any

import msgpack
import pytest
import socketio
import websockets
from door_clients import Raw
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool, FakePool

PARSERS = ["default", "msgpack"]


class Stock:
    """python-socketio's client, and all that it heard."""

    def __init__(self, parser: str = "default") -> None:
        self.sio = socketio.AsyncClient(serializer=parser, reconnection=False)
        self.heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        for name in ("ready", "result", "dropped", "error", "drain", "connect_error", "disconnect"):
            self.sio.on(name, lambda data, name=name: self.heard.put_nowait((name, data)))

    async def connect(self, gateway: Gateway, **options: Any) -> None:
        await self.sio.connect(gateway.http, **{"transports": ["websocket"], "wait_timeout": 5, **options})

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(5):
            return await self.heard.get()

    async def frame(self, seq: Any, data: Any) -> None:
        await self.sio.emit("frame", (seq, data))


@contextlib.asynccontextmanager
async def stock(gateway: Gateway, parser: str = "default", **options: Any):
    client = Stock(parser)
    try:
        await client.connect(gateway, **options)
        assert (await client.next())[0] == "ready"
        yield client
    finally:
        await client.sio.shutdown()


@pytest.mark.parametrize("parser", PARSERS)
async def test_stock_client_gets_the_answers_to_its_frames(gateway: Gateway, parser: str) -> None:
    async with stock(gateway, parser) as client:
        for seq in range(10):
            await client.frame(seq, b"picture %d" % seq)
            assert await client.next() == ("result", {"seq": seq, "size": 9, "head": b"picture %d" % seq})
    await gateway.until_gone()
    assert gateway.books() == {
        "received": 10, "delivered": 10, "left": 0, "dropped": 0, "refused": 0, "slow_reader": 0, "inside": 0
    }  # fmt: skip


async def test_all_flavours_are_served_at_once(gateway: Gateway) -> None:
    async with stock(gateway) as first, stock(gateway, "msgpack") as second:
        for seq in range(5):
            await first.frame(seq, b"first")
            await second.frame(seq, b"second")
            assert (await first.next())[1]["head"] == b"first"
            assert (await second.next())[1]["seq"] == seq


@pytest.mark.parametrize("parser", PARSERS)
async def test_frame_with_an_ack_is_acknowledged(gateway: Gateway, parser: str) -> None:
    async with stock(gateway, parser) as client:
        assert await client.sio.call("frame", (0, b"x"), timeout=5) is None
        assert (await client.next())[0] == "result"


@pytest.mark.parametrize("parser", PARSERS)
async def test_stock_client_that_disconnects_leaves_nothing(gateway: Gateway, parser: str) -> None:
    async with stock(gateway, parser):
        assert len(gateway.exchange.delivery.lanes) == 1
    await gateway.until_gone()
    door = gateway.doors.socketio
    assert not door.connections
    assert not door.environ
    assert not door.manager.rooms.get("/", {}).get(None)
    assert not door.manager.pending_connect


@pytest.mark.parametrize("parser", PARSERS)
async def test_refusal_is_a_connect_error_with_code_and_time(parser: str) -> None:
    async with run_gateway(EchoPool(), max_clients=0, waiting_room=0) as gateway:
        client = Stock(parser)
        with pytest.raises(socketio.exceptions.ConnectionError):
            await client.connect(gateway)
        expected = {"message": "all places are taken", "data": {"code": "full", "retry_after_ms": 2000}}
        assert await client.next() == ("connect_error", expected)
        await client.sio.shutdown()
        await gateway.until_gone()
        assert gateway.exchange.accounts.turned_away == {"full": 1}


@pytest.mark.parametrize(
    ("auth", "code"),
    [({"token": "no"}, "unauthorized"), ({}, "unauthorized"), (None, "unauthorized"), ({"token": 1}, "bad_request"),
     ([1], "bad_request"), ({"token": "secret", "pipeline": "x"}, "bad_request")],
)  # fmt: skip
async def test_bad_auth_is_refused_by_name(auth: Any, code: str) -> None:
    async with run_gateway(EchoPool(), token="secret") as gateway:
        raw = await Raw.open(gateway)
        await raw.hear()
        await raw.socket.send("40" if auth is None else "40" + json.dumps(auth))
        text = await raw.hear()
        assert text.startswith("44")
        assert json.loads(text[2:])["data"]["code"] == code
        await raw.socket.close()


async def test_right_token_comes_in_and_foreign_pages_do_not() -> None:
    async with run_gateway(EchoPool(), token="secret") as gateway:
        async with stock(gateway, auth={"token": "secret"}):
            pass
        raw = await Raw.open(gateway, origin="https://evil.example")
        await raw.hear()
        await raw.socket.send('40{"token":"secret"}')
        assert json.loads((await raw.hear())[2:])["data"]["code"] == "origin"
        await raw.socket.close()


@pytest.mark.parametrize("parser", PARSERS)
async def test_server_disconnect_is_seen_and_closes_the_websocket(gateway: Gateway, parser: str) -> None:
    async with stock(gateway, parser) as client:
        await gateway.doors.socketio.disconnect(client.sio.get_sid())
        assert await client.next() == ("disconnect", client.sio.reason.SERVER_DISCONNECT)
        await gateway.until_gone()


async def test_packets_of_the_msgpack_parser_have_no_null(gateway: Gateway) -> None:
    raw = await Raw.msgpack(gateway)
    await raw.socket.send(msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", 0, b"x"], "id": 7}))
    packets = [await raw.packed(), await raw.packed()]
    assert {"type": 3, "nsp": "/", "data": [], "id": 7} in packets
    sid = gateway.doors.socketio.manager.sid_from_eio_sid(next(iter(gateway.doors.socketio.connections)), "/")
    await gateway.doors.socketio.disconnect(sid)
    assert await raw.packed() == {"type": 1, "nsp": "/"}


async def test_what_javascript_makes_of_undefined_and_uint8array_is_understood(gateway: Gateway) -> None:
    raw = await Raw.open(gateway)
    await raw.hear()
    await raw.socket.send(msgpack.packb({"type": 0, "data": msgpack.ExtType(0, b"\0"), "nsp": "/"}))
    await raw.packed()
    assert (await raw.packed())["data"][0] == "ready"
    await raw.socket.send(msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", 0, msgpack.ExtType(0, b"abc")]}))
    assert (await raw.packed())["data"][1]["head"] == b"abc"
    await raw.socket.close()


async def test_handshake_tells_whole_seconds_and_the_largest_message(gateway: Gateway) -> None:
    raw = await Raw.open(gateway)
    opened = json.loads((await raw.hear())[1:])
    assert opened == {
        "sid": opened["sid"], "upgrades": [], "pingInterval": 25000, "pingTimeout": 20000, "maxPayload": 1114112
    }  # fmt: skip
    await raw.socket.close()


@pytest.mark.parametrize(
    ("query", "says"),
    [("EIO=4&transport=polling", "Transport unknown"), ("EIO=3&transport=websocket", "Unsupported protocol"),
     ("EIO=4&transport=websocket&sid=abc", "Session ID unknown"), ("", "Unsupported protocol")],
)  # fmt: skip
async def test_other_handshakes_are_refused_clearly(gateway: Gateway, query: str, says: str) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await Raw.open(gateway, query)
    assert refused.value.response.status_code == 400
    assert says in json.loads(refused.value.response.body)["message"]
    await gateway.until_gone()


async def test_long_polling_is_refused_with_the_cure(gateway: Gateway) -> None:
    client = Stock()
    with pytest.raises(socketio.exceptions.ConnectionError):
        await client.connect(gateway, transports=["polling"])
    await client.sio.shutdown()


async def test_other_namespaces_are_refused_and_the_connection_lives(gateway: Gateway) -> None:
    raw = await Raw.connected(gateway)
    await raw.socket.send("40/admin,")
    assert await raw.hear() == '44/admin,{"message":"Unable to connect"}'
    await raw.socket.send('42/admin,["frame",1]')
    assert "namespace '/admin'" in (await raw.event())[1]["message"]
    await raw.socket.send("40")  # a second time
    assert await raw.hear() == '44{"message":"Unable to connect"}'
    assert len(gateway.exchange.delivery.lanes) == 1
    await raw.socket.close()


async def test_websocket_without_connect_is_closed() -> None:
    async with run_gateway(EchoPool(), hello_timeout_s=0.1) as gateway:
        raw = await Raw.open(gateway)
        assert await raw.closed()
        await gateway.until_gone()
        assert not gateway.doors.socketio.connections


@pytest.mark.parametrize("text", ["", "9", "x", "2", "5", "1", "bAAAA", "hello", "0{}"])
async def test_malformed_engine_text_closes_at_once(gateway: Gateway, text: str) -> None:
    raw = await Raw.connected(gateway)
    await raw.socket.send(text)
    assert await raw.closed()
    await gateway.until_gone()


@pytest.mark.parametrize("text", ["3", "6"], ids=["pong", "noop"])
async def test_pong_and_noop_change_nothing(gateway: Gateway, text: str) -> None:
    raw = await Raw.connected(gateway)
    await raw.socket.send(text)
    await raw.socket.send('451-["frame",0,{"_placeholder":true,"num":0}]')
    await raw.socket.send(b"x")
    assert (await raw.hear()).startswith("451-")
    assert gateway.books()["received"] == 1
    await raw.socket.close()


@pytest.mark.parametrize("parser", PARSERS)
async def test_disconnect_packet_ends_the_connection_and_is_no_loss(gateway: Gateway, parser: str) -> None:
    raw = await (Raw.connected(gateway) if parser == "default" else Raw.msgpack(gateway))
    lane = next(iter(gateway.exchange.delivery.lanes.values()))
    lane.resumes = True
    await raw.socket.send("41" if parser == "default" else msgpack.packb({"type": 1, "nsp": "/"}))
    assert await raw.closed()
    await gateway.until_gone()
    assert not gateway.exchange.reception.admission.holds(lane.ticket)


@pytest.mark.parametrize("parser", PARSERS)
async def test_ack_has_the_id_that_was_asked_for_and_no_more(gateway: Gateway, parser: str) -> None:
    if parser == "default":
        raw = await Raw.connected(gateway)
        await raw.socket.send('451-77["frame",0,{"_placeholder":true,"num":0}]')
        await raw.socket.send(b"x")
        assert await raw.hear() == "4377[]"
    else:
        raw = await Raw.msgpack(gateway)
        await raw.socket.send(msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", 0, b"x"], "id": 77}))
        assert await raw.packed() == {"type": 3, "nsp": "/", "data": [], "id": 77}
    await raw.socket.close()


async def test_queue_slows_its_client_down_and_the_pong_behind_it_counts_late(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framelane.server.doors.engine.PING_INTERVAL_S", 0.2)
    monkeypatch.setattr("framelane.server.doors.engine.PING_TIMEOUT_S", 0.1)
    pool = FakePool(credits=1)
    async with run_gateway(pool, queue_depth=2, deadline_ms=60_000) as slow:
        raw = await Raw.connected(slow, json.dumps({"policy": "queue"}))
        for seq in range(5):
            await raw.socket.send(f'451-["frame",{seq},{{"_placeholder":true,"num":0}}]')
            await raw.socket.send(b"x")
        await raw.socket.send("3")
        await slow.until(lambda: slow.exchange.accounts.received == 3)
        for _ in range(5):
            await slow.until(lambda: bool(pool.jobs))
            pool.finish()
        results = []
        while len(results) < 5:
            text = await raw.hear()
            if text.startswith('42["result"'):
                results.append(json.loads(text[2:])[1]["seq"])
        assert results == list(range(5))
        assert slow.books()["dropped"] == 0
        await raw.socket.close()


@pytest.mark.parametrize(
    "message",
    ['42["frame",0]', "4", "41", '451-["frame",0,{"_placeholder":true,"num":0}]', b"\xc1", b"",
     msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", 0, b"x"]})],
)  # fmt: skip
async def test_anything_before_connect_closes(gateway: Gateway, message: str | bytes) -> None:
    raw = await Raw.open(gateway)
    await raw.hear()
    await raw.socket.send(message)
    assert await raw.closed()
    await gateway.until_gone()


@pytest.mark.parametrize(
    ("messages", "code", "says"),
    [
        (['42["frame",1,"text"]'], "bad_frame", "data must be bytes, not text"),
        (['42["frame",1]'], "bad_frame", "two arguments"),
        (['42["frame",1,[]]'], "bad_frame", "not an array"),
        (['42["shout"]'], "unknown_event", "'shout'"),
        (['42["shout",' + "[" * 5000], "bad_message", "JSON array"),
        (["42" + "[" * 5000], "bad_message", "JSON array"),
        (["42{}"], "bad_message", "JSON array"),
        (["42"], "bad_message", "JSON array"),
        (["4"], "bad_message", "no Socket.IO packet"),
        (["47"], "bad_message", "no Socket.IO packet"),
        (["4hello"], "bad_message", "no Socket.IO packet"),
        (["42" + "x" * 20_000], "bad_message", "frames are sent as bytes"),
        (["43[]"], "bad_message", "unexpected packet ACK"),
        (['44{"message":"x"}'], "bad_message", "unexpected packet CONNECT_ERROR"),
        (['451-["shout",{"_placeholder":true,"num":0}]', b"x"], "unknown_event", "'shout'"),
        (['451-["frame",-1,{"_placeholder":true,"num":0}]', b"x"], "bad_frame", "between 0 and"),
        (['451-["frame",1e400,{"_placeholder":true,"num":0}]', b"x"], "bad_message", "JSON"),
        (['451-["frame",' + "9" * 4000 + ',{"_placeholder":true,"num":0}]', b"x"], "bad_frame", "seq must"),
        (['451-["frame",1,{"_placeholder":true,"num":1}]', b"x"], "bad_frame", "one attachment"),
        (['451-["frame",{"_placeholder":true,"num":0},1]', b"x"], "bad_frame", "seq must be"),
        (['452-["frame",1,{"_placeholder":true,"num":0}]', b"x", b"y"], "bad_message", "2 attachments"),
        (['459999999999-["frame",1,{"_placeholder":true,"num":0}]'], "bad_message", "9999999999 attachments"),
        ([b"x"], "bad_message", "not announced"),
        (['461-7[{"_placeholder":true,"num":0}]', b"x"], "bad_message", "unexpected packet BINARY_ACK"),
        (['451-["frame",1,{"_placeholder":true,"num":0}]', "4"], "bad_message", "in place of the attachment"),
    ],
)  # fmt: skip
async def test_bad_message_is_answered_by_name_and_the_connection_lives(
    gateway: Gateway, messages: list[Any], code: str, says: str
) -> None:
    raw = await Raw.connected(gateway)
    for message in messages:
        await raw.socket.send(message)
    name, error = await raw.event()
    assert (name, error["code"]) == ("error", code)
    assert says in error["message"]
    await raw.socket.send('451-["frame",5,{"_placeholder":true,"num":0}]')
    await raw.socket.send(b"still here")
    while (text := await raw.hear()).startswith('42["error"'):
        assert messages[-1] == "4"  # the message itself was bad, too
    assert text.startswith('451-["result",{"seq":5')
    assert await raw.hear() == b"still here"
    assert gateway.exchange.accounts.inside == 0
    await raw.socket.close()


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        ({"type": 2, "nsp": "/", "data": ["frame", 1, "x"]}, "bad_frame", "not text"),
        ({"type": 2, "nsp": "/", "data": ["frame", -1, b"x"]}, "bad_frame", "between 0"),
        ({"type": 2, "nsp": "/", "data": ["frame", 1]}, "bad_frame", "two arguments"),
        ({"type": 2, "nsp": "/", "data": ["shout"]}, "unknown_event", "'shout'"),
        ({"type": 2, "nsp": "/", "data": ["frame", 1, {"0": 255}]}, "bad_frame", "send an ArrayBuffer"),
        ({"type": 2, "nsp": "/x", "data": ["frame", 1, b"x"]}, "bad_message", "namespace '/x'"),
        ({"type": 2, "nsp": "/"}, "bad_message", "msgpack array"),
        ({"type": 9, "nsp": "/"}, "bad_message", "no msgpack Socket.IO packet"),
        ({"type": 3, "nsp": "/", "data": [], "id": 4}, "bad_message", "unexpected packet ACK"),
        ([1], "bad_message", "no msgpack Socket.IO packet"),
        (None, "bad_message", "no msgpack Socket.IO packet"),
    ],
)
async def test_bad_msgpack_message_is_answered_by_name(gateway: Gateway, message: Any, code: str, says: str) -> None:
    raw = await Raw.msgpack(gateway)
    await raw.socket.send(msgpack.packb(message))
    name, error = (await raw.packed())["data"]
    assert (name, error["code"]) == ("error", code)
    assert says in error["message"]
    await raw.socket.send(msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", 5, b"x"]}))
    assert (await raw.packed())["data"][1]["seq"] == 5
    await raw.socket.close()


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"\x91" * 100_000, b"\x83\xa4data" + b"\x91" * 100_000, "4" + "[" * 9]
)
async def test_hostile_bytes_on_a_msgpack_connection_are_answered(gateway: Gateway, message: str | bytes) -> None:
    raw = await Raw.msgpack(gateway)
    await raw.socket.send(message)
    name, error = (await raw.packed())["data"]
    assert (name, error["code"]) == ("error", "bad_message")
    await raw.socket.close()


async def test_flood_of_unknown_events_is_cut(gateway: Gateway) -> None:
    raw = await Raw.connected(gateway)

    async def flood() -> None:
        for _ in range(10_000):
            await raw.socket.send('42["shout"]')

    sending = asyncio.create_task(flood())
    assert await raw.closed()
    await asyncio.gather(sending, return_exceptions=True)
    await gateway.until_gone()
    assert gateway.exchange.accounts.cut == {"flood": 1}


async def test_attachment_that_never_comes_leaves_nothing(gateway: Gateway) -> None:
    raw = await Raw.connected(gateway)
    await raw.socket.send('451-["frame",1,{"_placeholder":true,"num":0}]')
    raw.socket.transport.abort()
    await gateway.until_gone()
    assert gateway.exchange.accounts.received == 0


async def test_two_messages_of_one_result_are_never_torn_apart() -> None:
    pool = FakePool(credits=1)
    async with run_gateway(pool, deadline_ms=60_000) as gateway:
        raw = await Raw.connected(gateway)
        raw.socket.transport.pause_reading()
        lane = next(iter(gateway.exchange.delivery.lanes.values()))
        seq = 0
        while len(lane.outbox) < 4:
            await raw.socket.send(f'451-["frame",{seq},{{"_placeholder":true,"num":0}}]')
            await raw.socket.send(b"x")
            await gateway.until(lambda: bool(pool.jobs))
            pool.finish(a=bytes(150_000), b=bytes(10))
            await raw.socket.send('42["shout"]')
            seq += 1
        raw.socket.transport.resume_reading()
        expected = 0
        while expected < seq:
            text = await raw.hear()
            if text.startswith("452-"):
                assert json.loads(text[4:])[1]["seq"] == expected
                assert [len(await raw.hear()), len(await raw.hear())] == [150_000, 10]
                expected += 1
            else:
                assert text.startswith('42["error"')
        await raw.socket.close()


@pytest.mark.parametrize("parser", PARSERS)
async def test_client_that_stops_reading_is_shed_then_cut_and_leaves_nothing(parser: str) -> None:
    pool = FakePool(credits=1)
    async with run_gateway(pool, stall_s=0.3, outbox_messages=4, deadline_ms=60_000) as gateway:
        raw = await (Raw.connected(gateway) if parser == "default" else Raw.msgpack(gateway))
        raw.socket.transport.pause_reading()
        lane = next(iter(gateway.exchange.delivery.lanes.values()))
        lane.resumes = True
        seq = 0
        while not gateway.exchange.accounts.slow_reader:
            if parser == "default":
                await raw.socket.send(f'451-["frame",{seq},{{"_placeholder":true,"num":0}}]')
                await raw.socket.send(b"x")
            else:
                await raw.socket.send(msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", seq, b"x"]}))
            await gateway.until(lambda: bool(pool.jobs))
            pool.finish(blob=bytes(200_000))
            seq += 1
        assert len(lane.outbox) <= 4
        await gateway.until(lambda: not gateway.exchange.delivery.lanes)
        assert gateway.exchange.accounts.cut == {"slow_reader": 1}
        assert gateway.books()["inside"] == 0
        assert not gateway.exchange.reception.admission.holds(lane.ticket), "no place is held for one that was cut"
        await gateway.until_gone()
        assert not gateway.doors.socketio.connections
        raw.socket.transport.abort()


async def test_silent_client_is_cut_and_any_message_is_a_sign_of_life(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framelane.server.doors.engine.PING_INTERVAL_S", 0.2)
    monkeypatch.setattr("framelane.server.doors.engine.PING_TIMEOUT_S", 0.1)
    raw = await Raw.connected(gateway)
    for _ in range(3):
        assert await raw.hear() == "2"
        await raw.socket.send('42["shout"]')
        assert (await raw.event())[0] == "error"
    assert await raw.hear() == "2"
    assert await raw.closed()
    await gateway.until_gone()
    assert gateway.exchange.accounts.cut == {"silent": 1}


async def test_failing_connect_handler_leaks_nothing(gateway: Gateway) -> None:
    def explode(*_args: Any) -> None:
        raise RuntimeError("a bug")

    gateway.doors.socketio.on("connect", explode)
    raw = await Raw.open(gateway)
    await raw.hear()
    await raw.socket.send("40")
    assert await raw.closed()
    await gateway.until_gone()
    assert not gateway.doors.socketio.connections
    assert not gateway.doors.socketio.manager.pending_connect
