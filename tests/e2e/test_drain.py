"""SIGTERM and Ctrl-C: tell the clients, finish what was admitted, end in time (invariant 7)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.clients import Answer, Client, all_of, connected, outcomes
from e2e.frames import signed
from e2e.servers import Serve, free_port, wait_until

PICTURE = signed(10, 10)
OPTIONS = (
    *("--pipeline", "pipelines:Mirror", "--deadline-ms", "30000"),
    *("--workers", "1", "--active-slots", "1", "--credits", "3"),
)
CLIENTS = 3  # each may have one frame in the worker and one waiting


@pytest.fixture
def start(logs: Path) -> Iterator[Callable[..., Serve]]:
    """Starts servers that are ended by the test, or in the end."""
    servers: list[Serve] = []

    def start(*options: str) -> Serve:
        servers.append(Serve(logs, *OPTIONS, *options))
        servers[-1].wait_ready()
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


async def admitted(server: Serve, clients: list[Client]) -> list[asyncio.Future[Answer]]:
    """Two frames of every client that have been admitted: one in the worker, one still waiting."""
    futures = [await client.send_frame(seq, PICTURE) for seq in range(2) for client in clients]
    await asyncio.to_thread(wait_until, lambda: server.books().inside == len(futures), "all frames are admitted")
    return futures


def ask_to_stop(server: Serve, how: str) -> None:
    if how == "SIGTERM":
        server.signal(signal.SIGTERM)
    else:
        server.signal_group(signal.SIGINT)


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
async def test_stopping_finishes_what_was_admitted(start: Callable[..., Serve], how: str) -> None:
    server = start("--device", "sim:400:batch=16")
    async with connected(server.port, CLIENTS) as clients:
        futures = await admitted(server, clients)
        ask_to_stop(server, how)
        drains = [await client.notice("drain") for client in clients]
        late = [await client.send_frame(2, PICTURE) for client in clients]
        assert await outcomes(futures) == ["result"] * 2 * CLIENTS
        # What comes after the drain is told so, or its connection has ended by then.
        assert set(await outcomes(late)) <= {"draining", "lost"}
        await all_of(*(client.closed.wait() for client in clients))
    times = [drain["reconnect_after_ms"] for drain in drains]
    assert len(set(times)) == len(times), "clients must not all come back at once"
    assert await asyncio.to_thread(server.wait) == 0
    server.assert_nothing_left()
    assert "Traceback" not in server.log()


async def test_a_draining_server_is_not_ready_and_takes_nobody(start: Callable[..., Serve]) -> None:
    server = start("--device", "sim:800:batch=16")
    async with connected(server.port, CLIENTS) as clients:
        futures = await admitted(server, clients)
        server.signal(signal.SIGTERM)
        await clients[0].notice("drain")
        status, body = await asyncio.to_thread(server.request, "GET", "/readyz")
        assert status == 503
        assert b"draining" in body
        plain, socketio = Client(server.port, "websocket"), Client(server.port, "socketio")
        await all_of(plain.open(), socketio.open())
        assert (await plain.notice("refused"))["code"] == "draining"
        assert (await socketio.notice("connect_error"))["data"]["code"] == "draining"
        assert await outcomes(futures) == ["result"] * 2 * CLIENTS
        await all_of(plain.abort(), socketio.abort())
    assert await asyncio.to_thread(server.wait) == 0


async def test_the_drain_limit_ends_it(start: Callable[..., Serve]) -> None:
    server = start("--device", "sim:1200", "--drain-limit", "0.3")
    async with connected(server.port, CLIENTS) as clients:
        futures = await admitted(server, clients)
        server.signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 0
        await all_of(*(client.closed.wait() for client in clients))
        assert "lost" in await outcomes(futures), "it has waited for frames of seven seconds"
    server.assert_nothing_left()


@pytest.mark.parametrize(("first", "second"), [("Ctrl-C", "Ctrl-C"), ("SIGTERM", "SIGTERM"), ("SIGTERM", "Ctrl-C")])
async def test_a_second_signal_ends_it_at_once(start: Callable[..., Serve], first: str, second: str) -> None:
    server = start("--device", "sim:1200", "--drain-limit", "60")
    async with connected(server.port, CLIENTS) as clients:
        futures = await admitted(server, clients)
        ask_to_stop(server, first)
        await clients[0].notice("drain")
        await asyncio.sleep(0.4)
        ask_to_stop(server, second)
        assert await asyncio.to_thread(server.wait) != 0
        await all_of(*(client.closed.wait() for client in clients))
        assert "lost" in await outcomes(futures), "it has waited for frames of seven seconds"
    server.assert_nothing_left()
    assert "ending at once" in server.log()


async def test_sigterm_twice_at_once_is_sigterm_once(start: Callable[..., Serve]) -> None:
    server = start("--device", "sim:400:batch=16")
    async with connected(server.port, CLIENTS) as clients:
        futures = await admitted(server, clients)
        ask_to_stop(server, "SIGTERM")
        ask_to_stop(server, "SIGTERM")
        assert await outcomes(futures) == ["result"] * 2 * CLIENTS
    assert await asyncio.to_thread(server.wait) == 0
    server.assert_nothing_left()


def test_stopping_while_it_starts(logs: Path) -> None:
    server = Serve(logs, port=free_port())
    try:
        wait_until(lambda: len(server.pids()) >= 2, "it has begun to start its children")
        server.signal(signal.SIGTERM)
        server.wait()
        server.assert_nothing_left()
        assert "Traceback" not in server.log()
    finally:
        server.kill()
