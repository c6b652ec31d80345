"""SIGKILL, under load: for a worker, a slot, the gateway alone and the whole tree (invariants 4 and 5)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.clients import Answer, Client, all_of, connected, outcomes
from e2e.frames import signed
from e2e.servers import Serve, serving, wait_until

PICTURE = signed(10, 10)
# A run takes this long and serves all that wait, so what a process holds at any time is known without luck.
OPTIONS = (
    *("--pipeline", "pipelines:Mirror", "--device", "sim:400:batch=16", "--deadline-ms", "30000"),
    *("--workers", "2", "--active-slots", "2", "--credits", "3"),
)
SIX = 6  # frames fill the credits of two workers


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Serve]:
    with serving(logs, *OPTIONS) as server:
        yield server


async def holding(server: Serve, clients: list[Client], seq: int) -> list[asyncio.Future[Answer]]:
    """A frame of every client, all in the workers' hands; their answers are still to come."""
    futures = [await client.send_frame(seq, PICTURE) for client in clients]

    def all_held() -> bool:
        return sum(worker["frames"] for worker in server.status()["workers"]) == len(clients)

    await asyncio.to_thread(wait_until, all_held, "the workers hold all the frames")
    return futures


async def active(server: Serve, kind: str) -> set[int]:
    return await asyncio.to_thread(server.wait_active, kind, 2)


async def test_a_killed_worker_loses_its_own_frames_only(server: Serve) -> None:
    async with connected(server.port, SIX) as clients:
        before = await active(server, "workers")
        futures = await holding(server, clients, seq=0)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        assert await outcomes(futures) == ["failed"] * 3 + ["result"] * 3
        after = await active(server, "workers")
        assert before - after == {victim}
        # Connections live on, and a new worker serves: six frames need two.
        assert await outcomes(await holding(server, clients, seq=1)) == ["result"] * SIX
    assert (await asyncio.to_thread(server.json, "/readyz"))["ready"]


async def test_a_killed_slot_loses_no_frame(server: Serve) -> None:
    async with connected(server.port, SIX) as clients:
        before = await active(server, "slots")
        futures = await holding(server, clients, seq=0)
        victim = max(before)
        os.kill(victim, signal.SIGKILL)
        assert await outcomes(futures) == ["result"] * SIX
        after = await active(server, "slots")
        assert before - after == {victim}
        assert await outcomes(await holding(server, clients, seq=1)) == ["result"] * SIX


async def test_killing_every_slot_only_delays(server: Serve) -> None:
    async with connected(server.port, SIX) as clients:
        before = await active(server, "slots")
        futures = await holding(server, clients, seq=0)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        status, body = await asyncio.to_thread(server.request, "GET", "/readyz")
        if status == 503:  # unless others are active already
            assert b"no slot is active" in body
        assert await outcomes(futures) == ["result"] * SIX
        assert not before & await active(server, "slots")


async def test_killing_every_worker_fails_their_frames_and_serves_the_next(server: Serve) -> None:
    async with connected(server.port, SIX) as clients:
        before = await active(server, "workers")
        futures = await holding(server, clients, seq=0)
        later = [await client.send_frame(1, PICTURE) for client in clients]  # these wait in the mailboxes
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert await outcomes(futures) == ["failed"] * SIX
        assert await outcomes(later) == ["result"] * SIX
        assert not before & await active(server, "workers")


@pytest.mark.parametrize("whole_tree", [False, True], ids=["gateway alone", "whole tree"])
async def test_a_killed_replica_leaves_nothing(logs: Path, whole_tree: bool) -> None:
    server = Serve(logs, *OPTIONS)
    try:
        await asyncio.to_thread(server.wait_ready)
        async with connected(server.port, 9) as clients:
            for seq in range(2):
                for client in clients:
                    await client.send_frame(seq, PICTURE)
            pids = server.pids()
            assert len(pids) >= 5
            for pid in pids if whole_tree else [server.pid]:
                os.kill(pid, signal.SIGKILL)
            assert await asyncio.to_thread(server.wait) == -signal.SIGKILL
            await all_of(*(client.closed.wait() for client in clients))
        await asyncio.to_thread(server.assert_nothing_left)
    finally:
        server.kill()
