"""SIGTERM with many clients, some of whom have stopped reading: nothing admitted is lost, and it ends in time."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from e2e.clients import FLAVOURS, Client, all_of
from e2e.frames import signed
from e2e.servers import Serve

HONEST, STALLED = 180, 20
LIMIT_S = 30
PICTURE = signed(10, 10)
OPTIONS = (
    *("--pipeline", "heavy_pipelines:Heavy", "--device", "sim:20:batch=16", "--workers", "1", "--active-slots", "1"),
    *("--deadline-ms", "30000", "--drain-limit", str(LIMIT_S), "--client-fps", "0.1"),
)


async def stop_reading(client: Client) -> None:
    """Like a phone whose page is in the background: it takes nothing, while its frames are answered."""
    client._socket.transport.pause_reading()
    for seq in range(30):
        await client.send_frame(seq, PICTURE)
        await asyncio.sleep(0.05)


@pytest.fixture
def server(logs: Path):
    server = Serve(logs, *OPTIONS)
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()


async def test_admitted_frames_are_answered_and_stalled_clients_do_not_hold_it(server: Serve) -> None:
    honest = [Client(server.port, FLAVOURS[number % 3]) for number in range(HONEST)]
    stalled = [Client(server.port, FLAVOURS[number % 3]) for number in range(STALLED)]
    await all_of(*(client.__aenter__() for client in honest + stalled))
    await all_of(*(stop_reading(client) for client in stalled))
    futures = [await client.send_frame(0, PICTURE) for client in honest]
    # Their transport has them, so the server reads them before the signal's drain, or answers that it drains.
    server.signal(signal.SIGTERM)
    started = time.monotonic()
    await asyncio.wait(futures)
    lost = [future for future in futures if future.cancelled()]
    reasons = {future.result().reason for future in futures if not future.cancelled()}
    assert not lost
    assert reasons <= {"", "draining"}
    assert any(not future.result().reason for future in futures)
    await all_of(*(client.notice("drain") for client in honest[:6] if not client.closed.is_set()))
    assert await asyncio.to_thread(server.wait) == 0
    took = time.monotonic() - started
    await all_of(*(client.closed.wait() for client in honest))
    for client in stalled:
        await client.abort()
    await asyncio.to_thread(server.assert_nothing_left)
    assert "Traceback" not in server.log()
    assert took < LIMIT_S + 10, "stalled clients do not hold it beyond its limit"
