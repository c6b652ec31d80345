"""Every message has exactly one fate, and both sides count the same (invariant 1)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.clients import Client, all_of, connected, outcomes
from e2e.frames import signed
from e2e.servers import Books, Serve, serving, wait_until

PICTURE = signed(10, 10)

CREDITS = 4  # frames that one worker may hold, by default


@pytest.fixture(scope="module")
def slow_server(logs: Path) -> Iterator[Serve]:
    """Two workers, two slots, at most about 25 frames per second: overload is easy to make."""
    options = ["--pipeline", "pipelines:Mirror", "--device", "sim:80", "--deadline-ms", "20000"]
    with serving(logs, *options, "--workers", "2", "--active-slots", "2") as server:
        yield server


async def books_of(server: Serve, before: Books | None = None) -> Books:
    books = await asyncio.to_thread(server.quiet_books)
    return books if before is None else books.since(before)


def assert_same(clients: list[Client], books: Books) -> None:
    """Nobody has left in the middle of anything: both sides agree exactly."""
    assert all(client.unanswered == 0 and not client.strays for client in clients)
    dropped = sum((client.dropped for client in clients), Counter())
    errors = sum((client.errors for client in clients), Counter())
    assert books.received == sum(client.sent for client in clients) + errors.total()
    assert books.delivered == sum(client.results for client in clients)
    assert books.dropped == dropped
    assert books.refused == errors
    assert (books.left, books.shed, books.inside, books.mailbox_bytes) == (0, 0, 0, 0)
    assert books.received == books.ended


async def burst(client: Client, frames: range) -> None:
    """Send without waiting, then wait for all answers."""
    await outcomes([await client.send_frame(seq, PICTURE) for seq in frames])


async def test_normal_load(slow_server: Serve) -> None:
    before = await books_of(slow_server)

    async def stream(client: Client) -> None:
        for seq in range(5):
            assert (await client.ask(seq, PICTURE)).name == "result"
        await client.send_event("frame", 2, PICTURE)  # its number has been used
        await client.complaint()

    async with connected(slow_server.port, 6) as clients:
        await all_of(*map(stream, clients))
        books = await books_of(slow_server, before)
    assert_same(clients, books)
    assert (books.delivered, books.refused) == (30, Counter(bad_seq=6))


async def test_overload_is_told_by_name(slow_server: Serve) -> None:
    before = await books_of(slow_server)
    async with connected(slow_server.port, 12) as clients:
        await all_of(*(burst(client, range(40)) for client in clients))
        books = await books_of(slow_server, before)
    assert_same(clients, books)
    assert set(books.dropped) == {"superseded"}
    assert books.received == 12 * 40
    assert books.dropped["superseded"] > books.delivered > 0
    assert all(client.results >= 1 for client in clients), "the newest frame of each client is served"


async def test_frames_that_are_too_old_expire(logs: Path) -> None:
    options = ["--pipeline", "pipelines:Mirror", "--device", "sim:150", "--deadline-ms", "400", "--workers", "1"]
    with serving(logs, *options) as server:
        async with connected(server.port, 12) as clients:
            await all_of(*(burst(client, range(3)) for client in clients))
            books = await books_of(server)
    assert_same(clients, books)
    assert books.dropped["expired"] >= 1
    assert books.delivered >= 1


async def test_kills_of_a_worker_and_a_slot(slow_server: Serve) -> None:
    before = await books_of(slow_server)
    done = asyncio.Event()

    async def stream(client: Client) -> None:
        start = 0
        while not done.is_set():
            await burst(client, range(start, start + 3))
            start += 3

    async def killer() -> None:
        try:
            for kind in ("workers", "slots"):
                victims = await asyncio.to_thread(slow_server.wait_active, kind, 2)
                await asyncio.sleep(0.5)  # until all is in full swing
                os.kill(min(victims), signal.SIGKILL)
                await asyncio.to_thread(slow_server.wait_active, kind, 2)
        finally:
            done.set()

    async with connected(slow_server.port, 12) as clients:
        await all_of(killer(), *map(stream, clients))
        books = await books_of(slow_server, before)
    assert_same(clients, books)
    assert set(books.dropped) <= {"superseded", "failed"}
    assert 1 <= books.dropped["failed"] <= CREDITS, "what the killed worker held, and nothing of the killed slot"


async def test_clients_that_leave_in_the_middle(slow_server: Serve) -> None:
    before = await books_of(slow_server)
    async with connected(slow_server.port, 12) as clients:
        for client in clients:
            for seq in range(2):
                await client.send_frame(seq, PICTURE)
        await asyncio.to_thread(
            wait_until, lambda: slow_server.books().received >= before.received + 24, "all frames are received"
        )
    books = await books_of(slow_server, before)
    assert books.received == 24 == books.ended
    assert books.left + books.delivered + books.dropped.total() == 24
    assert books.left >= 12, "a worker holds three frames, so most were still waiting"
    assert books.lanes == 0
    assert books.mailbox_bytes == 0
