"""A result reaches the connection that sent the frame, or nobody (invariant 2), also while everything comes and goes.

Every connection has a number of its own, and every frame is a picture whose answer tells both numbers and a checksum.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import reference
from e2e.clients import FLAVOURS, Client, all_of
from e2e.crowd import Crowd
from e2e.frames import astronaut_at
from e2e.servers import Serve, serving


@pytest.fixture
def crowd_server(mirror_server: Serve) -> Serve:
    mirror_server.quiet_books()
    return mirror_server


async def test_hundred_clients_that_come_and_go_get_their_own_results_only(crowd_server: Serve) -> None:
    before = crowd_server.books()
    crowd = Crowd(crowd_server.port, seed=2)
    # Fewer results, and fewer that left in the middle of a frame, would prove nothing.
    await crowd.run(clients=100, seconds=6, enough=lambda: crowd.results >= 1000 and crowd.cut_off >= 20)
    assert not crowd.strangers
    crowd.assert_books((await asyncio.to_thread(crowd_server.quiet_books)).since(before))
    assert crowd.connections > 100
    assert crowd.results >= 1000
    assert crowd.cut_off >= 20


async def test_faces_stay_with_their_clients(face_server: Serve, astronaut: bytes) -> None:
    """Real decoding and real models: where the face is tells whose picture it was."""
    expected = reference.face_mesh(reference.load())
    assert expected is not None
    places = list(itertools.product((0, 64, 128, 192), (0, 96, 192)))

    async def client(number: int, place: tuple[int, int]) -> None:
        picture = astronaut_at(*place, astronaut)
        for connection in range(2):
            async with Client(face_server.port, FLAVOURS[(number + connection) % 3]) as client:
                for seq in range(4):
                    answer = await client.ask(seq, picture)
                    assert answer.name == "result", answer
                    (face,) = answer.fields["faces"]
                    nose = np.frombuffer(face["landmarks"], "<f4").reshape(468, 3)[1, :2]
                    assert np.abs(nose - expected.landmarks[1, :2] - place).max() < 8
                assert not client.strays

    await all_of(*(client(number, place) for number, place in enumerate(places)))


@dataclass
class Killer:
    """Ends a worker or a slot every few seconds, and waits for the next one to be ready."""

    server: Serve
    dice: random.Random = field(default_factory=lambda: random.Random(3))
    killed: int = 0

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(self.dice.uniform(2, 6))
            kind = self.dice.choice(("workers", "slots"))
            victims = await asyncio.to_thread(self.server.active, kind)
            if len(victims) == 2:  # a dead one needs some seconds to come back; the server's budget is not tested here
                os.kill(self.dice.choice(sorted(victims)), signal.SIGKILL)
                self.killed += 1


@pytest.fixture
def long_server(logs: Path) -> Iterator[Serve]:
    options = ["--pipeline", "pipelines:Mirror", "--device", "sim:5:batch=16", "--deadline-ms", "20000"]
    with serving(logs, *options, "--workers", "2", "--active-slots", "2") as server:
        yield server


@pytest.mark.prove
@pytest.mark.timeout(600)
async def test_two_hundred_clients_for_five_minutes_with_kills(long_server: Serve) -> None:
    """Over all flavours, with disconnects, reconnects, and SIGKILL for workers and slots."""
    crowd, killer = Crowd(long_server.port, seed=7, pause_s=0.1), Killer(long_server)
    await all_of(crowd.run(clients=200, seconds=300), killer.run(295))
    assert not crowd.strangers
    books = await asyncio.to_thread(long_server.quiet_books)
    crowd.assert_books(books)
    assert set(books.dropped) <= {"failed", "superseded"}
    assert crowd.results >= 50_000
    assert killer.killed >= 25
    status = long_server.status()
    assert status["restarts"]["workers"] + status["restarts"]["slots"] == killer.killed
    long_server.wait_active("workers", 2)
    long_server.wait_active("slots", 2)
