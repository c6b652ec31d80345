"""The open door: who is refused, over every door, each with its code; and who is not."""

import asyncio
import contextlib
import ipaddress
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import jwt
import msgpack
import pytest
from door_clients import Plain, Raw
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.uri import parse_uri

from framelane.preprocess.packets import JSON
from framelane.server.doors.gate import ADDRESS, Gate, address_of, group_of
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.passes import Passes
from framelane.server.lanes.tokens import Tokens, key_set, new_key_set, secret_key
from framelane.server.sdk.client import Client
from framelane.server.sdk.states import State

KEY = secret_key("of-a-campaign-and-32-bytes-long!")
PUBLIC = key_set(new_key_set("public", "EdDSA"))[0]
OWN = "https://campaign.example"
DOORS = ["websocket", "socketio", "socketio_msgpack", "http"]


def token(key: Any = KEY.material, algorithm: str = "HS256", kid: str = "", **claims: Any) -> str:
    now = time.time()
    good = {"aud": "here", "iat": now, "exp": now + 60, "jti": str(now)}
    kept = {name: value for name, value in {**good, **claims}.items() if value is not None}
    return jwt.encode(kept, key, algorithm, {"kid": kid} if kid else None)


def confused() -> str:
    """HS256, and the bytes of the public key as the secret."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return token(PUBLIC.material.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), kid="public")


@contextlib.asynccontextmanager
async def guarded(**limits: Any) -> AsyncIterator[Gateway]:
    passes = Passes(None, Tokens([KEY, PUBLIC], "here"), time.time)
    values = {"allowed_origins": (OWN,), "without_origin": False, "allowed_hosts": ("127.0.0.1",), **limits}
    async with run_gateway(EchoPool(), passes=passes, **values) as gateway:
        yield gateway


class Caller:
    """A websocket whose request can say anything, its Host included."""

    def __init__(self, gateway: Gateway, door: str) -> None:
        path = "/ws" if door == "websocket" else "/socket.io/?EIO=4&transport=websocket"
        address = parse_uri(f"ws://127.0.0.1:{gateway.port}{path}")
        self._protocol = ClientProtocol(address, subprotocols=["framelane.v1"] if door == "websocket" else None)
        self._events: list[Any] = []

    async def open(self, port: int, headers: dict[str, str]) -> int:
        """The status of the answer."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        request = self._protocol.connect()
        for name, value in headers.items():
            if name.lower() in request.headers:
                del request.headers[name]
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()
        return (await self._event()).status_code

    def say(self, message: str | bytes) -> None:
        with contextlib.suppress(InvalidState):  # refused before it said a word
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
            self._flush()

    async def hear(self) -> str | bytes:
        frame: Frame = await self._event()
        return frame.data.decode() if frame.opcode == 1 else bytes(frame.data)

    def close(self) -> None:
        self._writer.transport.abort()

    async def _event(self) -> Any:
        async with asyncio.timeout(5):
            while not self._events:
                self._protocol.receive_data(await self._reader.read(65536))
                self._events += self._protocol.events_received()
        return self._events.pop(0)

    def _flush(self) -> None:
        self._writer.write(b"".join(self._protocol.data_to_send()))


async def enter(gateway: Gateway, door: str, shown: str | None, headers: dict[str, str]) -> tuple[str, Any]:
    """Come in by a door: "in", or the code of the refusal; and its message."""
    if door == "http":
        asked = headers if not shown else {**headers, "authorization": f"Bearer {shown}"}
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(f"{gateway.http}/v1/infer", content=b"picture", headers=asked)
        body = answer.json()
        statuses = {"unauthorized": 401, "origin": 403, "rate_limited": 429}
        assert answer.status_code == (200 if "seq" in body else statuses[body["code"]])
        return ("in", "") if "seq" in body else (body["code"], body["message"])
    caller = Caller(gateway, door)
    try:
        status = await caller.open(gateway.port, headers)
        if status != 101:
            return str(status), ""
        return await _HANDSHAKES[door](caller, {} if shown is None else {"token": shown})
    finally:
        caller.close()


async def _websocket(caller: Caller, hello: dict[str, Any]) -> tuple[str, Any]:
    caller.say(msgpack.packb(["hello", hello]))
    name, told = msgpack.unpackb(await caller.hear())
    return ("in", "") if name == "ready" else (told["code"], told["message"])


async def _socketio(caller: Caller, hello: dict[str, Any]) -> tuple[str, Any]:
    await caller.hear()
    caller.say("40" + json.dumps(hello))
    answer = str(await caller.hear())
    refused = json.loads(answer[2:])
    return ("in", "") if answer.startswith("40") else (refused["data"]["code"], refused["message"])


async def _socketio_msgpack(caller: Caller, hello: dict[str, Any]) -> tuple[str, Any]:
    await caller.hear()
    caller.say(msgpack.packb({"type": 0, "nsp": "/", "data": hello}))
    packet = msgpack.unpackb(await caller.hear())
    return ("in", "") if packet["type"] == 0 else (packet["data"]["data"]["code"], packet["data"]["message"])


_HANDSHAKES: dict[str, Callable[..., Any]] = {
    "websocket": _websocket,
    "socketio": _socketio,
    "socketio_msgpack": _socketio_msgpack,
}

NOBODYS = {
    "none": (None, "token is needed"),
    "empty": ("", "token is needed"),
    "no token": ("a.b.c", "damaged"),
    "unsigned": (lambda: token(None, "none"), "not known here|algorithm"),
    "unsigned, of a key": (lambda: token(None, "none", "public"), "algorithm"),
    "another algorithm": (lambda: token(KEY.material * 2, "HS512", "public"), "algorithm"),
    "a public key as the secret": (confused, "algorithm"),
    "another secret": (lambda: token(b"y" * 32), "signature"),
    "another key": (lambda: token(kid="gone"), "not known"),
    "expired": (lambda: token(iat=time.time() - 60, exp=time.time() - 1), "expired"),
    "another audience": (lambda: token(aud="elsewhere"), "audience"),
    "not valid yet": (lambda: token(nbf=time.time() + 60), "not valid yet"),
    "lasts too long": (lambda: token(exp=time.time() + 3600), "longer than 300 s"),
    "lasts for ever": (lambda: token(exp=None), "exp"),
    "without an id": (lambda: token(jti=None), "jti"),
}


@pytest.mark.parametrize("door", DOORS)
async def test_token_that_is_none_is_refused_and_says_why(door: str) -> None:
    async with guarded() as gateway:
        for name, (made, why) in NOBODYS.items():
            shown = made() if callable(made) else made
            code, message = await enter(gateway, door, shown, {"origin": OWN})
            assert code == "unauthorized", name
            assert any(part in message for part in why.split("|")), (name, message)
            assert shown is None or len(shown) < 10 or shown not in message
        assert gateway.exchange.accounts.connected == 0
        assert gateway.exchange.accounts.turned_away == {"unauthorized": len(NOBODYS)}
        assert (await enter(gateway, door, token(), {"origin": OWN}))[0] == "in"
        signed = token(PUBLIC.material, "EdDSA", "public")
        assert (await enter(gateway, door, signed, {"origin": OWN}))[0] == "in"


@pytest.mark.parametrize("door", DOORS)
async def test_token_opens_one_door_once(door: str) -> None:
    async with guarded() as gateway:
        shown = token()
        assert (await enter(gateway, door, shown, {"origin": OWN}))[0] == "in"
        for other in DOORS:
            code, message = await enter(gateway, other, shown, {"origin": OWN})
            assert (code, "used before" in message) == ("unauthorized", True)


FOREIGN: list[dict[str, str]] = [
    {},
    {"origin": "null"},
    {"origin": "https://evil.example"},
    {"origin": "https://campaign.example.evil.example"},
    {"origin": "https://campaign.example:444"},
    {"origin": "http://campaign.example"},
    {"origin": "https://Campaign.example@evil.example"},
    {"origin": "https://evil.example", "host": "evil.example"},
    {"origin": OWN, "host": "campaign.example"},
    {"origin": OWN, "host": "127.0.0.1.evil.example"},
    {"origin": OWN, "host": "evil.example:127.0.0.1"},
    {"origin": OWN, "host": "[127.0.0.1]"},
]


@pytest.mark.parametrize("door", DOORS)
async def test_foreign_page_program_and_forged_host_are_refused(door: str) -> None:
    async with guarded() as gateway:
        shown = token()
        for headers in FOREIGN:
            assert (await enter(gateway, door, shown, headers))[0] == "origin", headers
        assert gateway.exchange.accounts.turned_away == {"origin": len(FOREIGN)}
        for good in (OWN, gateway.http):
            assert (await enter(gateway, door, token(), {"origin": good}))[0] == "in"
        assert (await enter(gateway, door, shown, {"origin": OWN}))[0] == "in", "a refusal spends no token"


@pytest.mark.parametrize("door", DOORS)
async def test_programs_may_come_where_that_was_decided(door: str) -> None:
    async with guarded(without_origin=True) as gateway:
        assert (await enter(gateway, door, token(), {}))[0] == "in"
        assert (await enter(gateway, door, token(), {"origin": "null"}))[0] == "origin"


# -- addresses ---------------------------------------------------------------------------------------------------------


_callers: list[Caller] = []


def forwarded(*addresses: str) -> dict[str, str]:
    return {"x-forwarded-for": ", ".join(addresses)}


@contextlib.asynccontextmanager
async def limited(trusted: tuple[str, ...] = (), **options: Any) -> AsyncIterator[Gateway]:

    def gate(accounts: Any) -> Gate:
        return Gate(accounts, trusted=[ipaddress.ip_network(name) for name in trusted], **options)

    async with run_gateway(EchoPool(), gate=gate) as gateway:
        yield gateway
        while _callers:
            _callers.pop().close()


async def knock(gateway: Gateway, headers: dict[str, str]) -> tuple[int, Caller]:
    caller = Caller(gateway, "websocket")
    _callers.append(caller)
    return await caller.open(gateway.port, headers), caller


async def test_connections_of_one_address_are_counted_whatever_it_says_of_itself() -> None:
    async with limited(per_address=3) as gateway:
        inside = [await knock(gateway, forwarded(f"10.0.0.{index}")) for index in range(3)]
        assert [status for status, _ in inside] == [101] * 3
        status, _ = await knock(gateway, forwarded("10.9.9.9"))
        assert status == 429
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"{gateway.http}/livez", headers=forwarded("10.9.9.9"))
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "rate_limited", "5")
        inside[0][1].close()
        await gateway.until(lambda: gateway.doors.gate._counts["127.0.0.1"] < 3)
        assert (await knock(gateway, {}))[0] == 101
        assert gateway.exchange.accounts.turned_away["rate_limited"] == 2


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("trusted", "headers"), [((), {}), (("127.0.0.1",), forwarded("192.0.2.7"))])
async def test_address_whose_frame_has_ended_a_process_is_told_when_to_come_back(
    door: str, trusted: tuple[str, ...], headers: dict[str, str]
) -> None:
    async with limited(trusted) as gateway:
        assert (await enter(gateway, door, None, headers))[0] == "in"
        conduct, lane = gateway.exchange._conduct, Lane(JSON, None)  # type: ignore[arg-type]
        lane.address = "192.0.2.7" if headers else "127.0.0.1"
        assert conduct.fatal_frame(lane, time.monotonic())
        code, message = await enter(gateway, door, None, headers)
        assert (code, "ended a process" in message) == ("rate_limited", True)
        if headers:
            assert (await enter(gateway, door, None, forwarded("192.0.2.8")))[0] == "in"
            assert (await enter(gateway, door, None, {}))[0] == "in"


def test_request_of_which_a_proxy_tells_nothing_readable_has_no_address_to_be_held_back() -> None:
    assert address_of({ADDRESS: group_of("192.0.2.7")}) == "192.0.2.7"
    for scope in ({}, {ADDRESS: ""}, {ADDRESS: group_of("_hidden")}):
        assert address_of(scope) == ""


async def test_flood_of_one_address_is_cut_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framelane.server.doors.gate.MOST_LEAVING", 3)
    async with limited(per_address=0, rate=0.001) as gateway:
        assert (await knock(gateway, {}))[0] == 101
        waiting = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(6)]
        answers = []
        for reader, writer in waiting:
            with contextlib.suppress(ConnectionError):
                answers.append(await reader.read(12))
            writer.transport.abort()
        assert [answer for answer in answers if answer] == [b"HTTP/1.1 429"] * 3
        await gateway.until(lambda: not gateway.doors.gate._refused)


async def test_client_of_the_kit_comes_back_when_there_is_room_again() -> None:
    async with limited(per_address=1) as gateway:
        first, second = Client(gateway.http), Client(gateway.http)
        first.connect()
        await first.ready()
        second.connect()
        await gateway.until(lambda: second.situation.state is State.BACKOFF)
        first.close()
        await second.ready()
        second.close()


async def test_trusted_proxy_brings_many_and_the_address_that_it_adds_counts() -> None:
    async with limited(("127.0.0.1",), per_address=1) as gateway:
        callers = [await knock(gateway, forwarded(f"10.0.0.{index}")) for index in range(4)]
        assert [status for status, _ in callers] == [101] * 4
        for lie in ("10.9.9.9", "127.0.0.1", "unknown"):  # before what the proxy itself has added
            assert (await knock(gateway, forwarded(lie, "10.0.0.1")))[0] == 429, lie
        assert (await enter(gateway, "http", None, forwarded("10.0.0.1")))[0] == "rate_limited"
        assert (await enter(gateway, "http", None, {}))[0] == "in", "the proxy itself, which looks whether we live"
        callers[1][1].close()
        await gateway.until(lambda: not gateway.doors.gate._counts["10.0.0.1"])
        assert (await enter(gateway, "http", None, forwarded("10.0.0.1")))[0] == "in"


async def test_neighbours_in_one_ipv6_network_are_one_address() -> None:
    async with limited(("127.0.0.1",), per_address=1) as gateway:
        assert (await knock(gateway, forwarded("2001:db8:1:1::1")))[0] == 101
        assert (await knock(gateway, forwarded("2001:db8:1:1:ffff::2")))[0] == 429
        assert (await knock(gateway, forwarded("2001:db8:1:2::1")))[0] == 101


async def test_connections_that_come_too_fast_are_refused_until_they_slow_down() -> None:
    now = [0.0]
    async with limited(rate=2.0, clock=lambda: now[0]) as gateway:
        for _ in range(10):  # five seconds' worth at once
            status, caller = await knock(gateway, {})
            assert status == 101
            caller.close()
        assert (await knock(gateway, {}))[0] == 429
        now[0] = 0.6
        assert (await knock(gateway, {}))[0] == 101
        assert (await knock(gateway, {}))[0] == 429


async def test_memory_of_addresses_is_bounded() -> None:
    gate = Gate(type("Accounts", (), {"turned_away": {"rate_limited": 0}})(), rate=0.1, clock=lambda: 0.0)
    for number in range(25_000):
        assert gate.enter(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(gate._moments) <= 20_000


@pytest.mark.parametrize("said", [b"", b"GET /ws HTTP/1.1\r\nx: y\r\n"])
async def test_stranger_displaces_the_oldest_stranger_and_nobody_who_is_inside(said: bytes) -> None:
    async with limited(strangers=5) as gateway:
        client = await Plain.ready(gateway)
        waiting = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(5)]
        for _, writer in waiting:
            writer.write(said)
        await gateway.until(lambda: len(gateway.doors.gate._strangers) == 5)
        silent = Caller(gateway, "websocket")  # opens, and never says hello: still a stranger
        assert await silent.open(gateway.port, {}) == 101
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                assert await waiting[0][0].read() == b""
        assert not waiting[1][0].at_eof()
        for _ in range(5):
            assert (await enter(gateway, "websocket", None, {}))[0] == "in"
        await client.say("frame", 0, b"x")
        assert (await client.hear())[0] == "result"
        for _, writer in waiting:
            writer.transport.abort()
        silent.close()
        await client.socket.close()
        await gateway.until_gone()
        assert not gateway.doors.gate._inside
        assert not gateway.doors.gate._strangers


# -- a token's time ----------------------------------------------------------------------------------------------------


async def test_client_of_the_kit_renews_for_as_long_as_it_streams() -> None:
    asked = 0

    async def source() -> str:
        nonlocal asked
        asked += 1
        return token(exp=time.time() + 1.2)

    async with guarded(without_origin=True) as gateway:
        client = Client(gateway.http, token=source)
        client.connect()
        await client.ready()
        (lane,) = gateway.exchange.delivery.lanes.values()
        until = time.monotonic() + 2.4
        while time.monotonic() < until:
            assert (await client.infer(b"x")).fields["head"] == b"x"
            await asyncio.sleep(0.05)
        assert asked >= 4
        assert list(gateway.exchange.delivery.lanes.values()) == [lane], "one connection all the time"
        client.close()
        await client.wait_closed()


async def test_client_whose_source_fails_is_ended_and_comes_back_with_another_token() -> None:
    tokens = [lambda: token(exp=time.time() + 0.5), None, token]

    async def source() -> str:
        made = tokens.pop(0)
        if made is None:
            raise RuntimeError("the backend is down")
        return made()

    states: list[tuple[State, str | None]] = []
    async with guarded(without_origin=True) as gateway:
        client = Client(gateway.http, token=source, on_situation=lambda now: states.append((now.state, now.reason)))
        client.connect()
        await client.ready()
        await gateway.until(lambda: (State.BACKOFF, "unauthorized") in states)
        await client.ready()
        assert not tokens
        client.close()
        await client.wait_closed()


async def test_word_of_a_person_is_refused_when_its_time_is_over() -> None:
    async with guarded(without_origin=True) as gateway:
        client = Client(gateway.http, token=token(exp=time.time() + 0.5))
        client.connect()
        await client.ready()
        await gateway.until(lambda: client.situation.state is State.CLOSED, within_s=8)
        assert (client.situation.reason, "expired" in (client.situation.message or "")) == ("unauthorized", True)


@pytest.mark.parametrize("door", ["socketio", "socketio_msgpack", "websocket"])
async def test_every_door_renews_and_ends(door: str) -> None:
    async with guarded(without_origin=True) as gateway:
        short = token(exp=time.time() + 1.0)
        if door == "websocket":
            plain = await Plain.ready(gateway, {"token": short})
            say, hear, closed = plain.say, plain.hear, plain.closed
        else:
            raw = await Raw.open(gateway)
            await raw.hear()
            packed = door == "socketio_msgpack"
            connect = msgpack.packb({"type": 0, "nsp": "/", "data": {"token": short}})
            await raw.socket.send(connect if packed else "40" + json.dumps({"token": short}))
            await raw.hear()

            async def say(*event: Any) -> None:
                packet = msgpack.packb({"type": 2, "nsp": "/", "data": event})
                await raw.socket.send(packet if packed else "42" + json.dumps(event))

            async def hear() -> list[Any]:
                return (await raw.packed())["data"] if packed else await raw.event()

            closed = raw.closed
            assert (await hear())[0] == "ready"
        assert (await hear())[0] == "expires"
        await say("renew", {"token": "a.b.c"})
        name, error = await hear()
        assert (name, error["code"]) == ("error", "bad_token")
        await say("renew", {"token": token(exp=time.time() + 1.4)})
        name, told = await hear()
        assert (name, 1000 < told["expires_in_ms"] <= 1400) == ("expires", True)
        name, told = await hear()
        assert (name, told["code"], told["retry_after_ms"]) == ("refused", "unauthorized", 0)
        assert await closed() in (4401, True)


async def test_renew_that_is_none_is_a_bad_message_like_any_other() -> None:
    async with guarded(without_origin=True) as gateway:
        client = await Plain.ready(gateway, {"token": token()})
        await client.hear()
        for bad in (["renew"], ["renew", 5], ["renew", {}], ["renew", {"token": 5}], ["renew", {"token": "x" * 5000}]):
            await client.say(*bad)
            name, told = await client.hear()
            assert (name, told["code"]) == ("error", "unknown_event")
        await client.socket.close()


async def test_nothing_secret_is_logged_or_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(without_origin=True, fault_burst=3) as gateway:
        good, bad = token(), token(aud="elsewhere")
        client = await Plain.ready(gateway, {"token": good})
        for _ in range(6):
            await client.say("renew", {"token": bad})
        await client.closed()
        for door in DOORS:
            await enter(gateway, door, bad, {})
        async with httpx.AsyncClient(trust_env=False) as http:
            told = [(await http.get(gateway.http + path)).text for path in ("/v1/status", "/metrics")]
        (ticket,) = {client.greeting["ticket"]}
        said = "".join(record.getMessage() for record in caplog.records if record.name.startswith("framelane"))
        for secret in (good, bad, ticket, KEY.material.decode()):
            assert not any(secret in text for text in (*told, said))
