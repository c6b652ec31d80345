"""What is bounded before anybody knows who is calling: heads of requests, and messages that never end."""

import asyncio

import pytest
from door_clients import Plain
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool


async def status_of(gateway: Gateway, *pieces: bytes) -> bytes:
    """Send raw bytes; the status line of what comes back, empty if nothing does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            return (await reader.readline()).strip()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET / HTTP/1.1\r\nx: ", *[b"a" * 10_000] * 8],
        [b"GET / HTTP/1.1\r\n", *[b"x: y\r\n" * 2000] * 8],
        [b"GET /", *[b"a" * 10_000] * 8],
        [b"GET /ws HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nx: ", *[b"a" * 10_000] * 8],
    ],
    ids=["one header", "many headers", "path", "websocket"],
)
async def test_endless_head_is_cut_off(gateway: Gateway, pieces: list[bytes]) -> None:
    assert await status_of(gateway, *pieces) in (b"HTTP/1.1 431 Request Header Fields Too Large", b"")
    await gateway.until_gone()


async def test_head_of_a_usual_size_is_read_and_so_is_the_next_one_on_the_same_connection(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    for _ in range(20):
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 8000 + b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        while await reader.readline() != b"\r\n":
            pass
        assert await reader.readexactly(3) == b"ok\n"
    writer.close()


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET / HT"])
async def test_head_that_does_not_come_in_time_is_given_up(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr("framelane.server.doors.bounded_http.HEAD_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(said)
    async with asyncio.timeout(5):
        everything = await reader.read()
    assert everything.startswith(b"HTTP/1.1 200" if b"livez" in said else b"HTTP/1.1 408")
    assert b"408" in everything
    writer.close()
    await gateway.until_gone()


async def test_bodies_and_websockets_may_take_their_time(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framelane.server.doors.bounded_http.HEAD_TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"POST /v1/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n")
    client = await Plain.ready(gateway)
    await asyncio.sleep(0.3)
    writer.write(b"abc")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await client.say("frame", 0, b"x")
    assert (await client.hear())[0] == "result"
    writer.close()
    await client.socket.close()


@pytest.mark.parametrize(
    "head", [b"\x82\xff\x00\x00\x00\x00\x00\x0f\x00\x00", b"\x02\xff\x00\x00\x00\x00\x00\x0f\x00\x00"]
)
async def test_messages_that_never_end_have_a_budget_over_all_connections(head: bytes) -> None:
    async with run_gateway(EchoPool(), mailbox_bytes=4 * 2**20) as gateway:
        honest = await Plain.ready(gateway)
        hostile = [await Plain.ready(gateway) for _ in range(12)]
        for client in hostile:  # 0.9 MiB of a frame that has 0.94 MiB
            client.socket.transport.write(head + b"mask" + bytes(900_000))
        await gateway.until(lambda: gateway.exchange.accounts.cut["unfinished"] >= 8)
        await gateway.until(
            lambda: len(gateway.exchange.delivery.lanes) == 13 - gateway.exchange.accounts.cut["unfinished"]
        )
        assert gateway.exchange.accounts.cut["unfinished"] < 12, "no more than it takes"
        await honest.say("frame", 0, b"x")
        assert (await honest.hear())[0] == "result"
        for client in (honest, *hostile):
            client.socket.transport.abort()
        await gateway.until_gone()
