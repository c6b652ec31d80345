"""What Redis is to a fleet: nothing for frames, and no loss when it is away."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from framelane.loadtests.faults.report import Report, at_least, at_most
from framelane.loadtests.fleet_lab import FleetServer
from framelane.loadtests.fleet_load import Crowd
from framelane.loadtests.processes import Process, StartFailed, clean_environment, free_port

_EXECUTE = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
_OURS = {"info", "subscribe", "psubscribe", "ping", "client", "hello", "config", "select"}
_DELIVERED = 0.999
_BACK_S = 5.0


class RedisServer:
    """redis-server that keeps nothing; it can be away for a while."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise StartFailed("redis-server is not installed (Debian: apt install redis-server)")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = ["-c", _EXECUTE, program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._log = folder / "redis.log"
        self._process: Process | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = Process(self._command, self._log, clean_environment())
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with contextlib.suppress(redis.RedisError), redis.Redis(port=self.port) as client:
                client.ping()
                return
            time.sleep(0.02)
        raise StartFailed(f"redis does not answer: {self._process.tail()}")

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def commands(self) -> Counter[str]:
        """Commands that clients other than this harness have given since the start, by name."""
        with redis.Redis(port=self.port) as client:
            stats: dict[str, Any] = client.info("commandstats")
        calls = Counter({name.removeprefix("cmdstat_"): int(found["calls"]) for name, found in stats.items()})
        return Counter({name: count for name, count in calls.items() if name.partition("|")[0] not in _OURS})


async def nothing_per_frame(fleet: FleetServer, server: RedisServer, crowd: Crowd, seconds: float) -> Report:
    """Everything that goes through Redis while clients are served: is any of it there because of a frame?"""
    started = time.monotonic()
    async with _listening(server) as heard:
        before = server.commands()
        began = len(heard)
        await asyncio.sleep(seconds)
        commands, messages = server.commands() - before, heard[began:]
    frames = crowd.outcomes(started, time.monotonic())["result"]
    others = [message for message in messages if b"\xa4beat" not in message]
    beats = len(messages) - len(others)
    unexplained = commands.total() - commands["publish"] + max(0, commands["publish"] - len(messages) - 3)
    return Report(
        fault="redis-bytes",
        figures=(
            at_least("results meanwhile", frames, 1),
            at_most("messages that were no beat", len(others), 0),
            at_most("commands that were no message", unexplained, 0),
            at_most("bytes per frame", sum(map(len, others)) / max(1, frames), 0),
            at_most("beats a second, of three replicas", beats / seconds, None),
            at_most("bytes of a beat", max(map(len, messages), default=0), None),
        ),
    )


async def away(fleet: FleetServer, server: RedisServer, crowd: Crowd, seconds: float) -> Report:
    """Redis is killed under load, and comes back."""
    await asyncio.to_thread(server.stop)
    gone = time.monotonic()
    try:
        await asyncio.sleep(seconds)
        ready = await asyncio.to_thread(_readiness, fleet)
        end = time.monotonic()
    finally:
        await asyncio.to_thread(server.start)
    back = await asyncio.to_thread(fleet.wait_for, lambda: _joined(fleet), "all replicas hear each other", 30.0)
    outcomes = crowd.outcomes(gone, end)
    ratio = outcomes["result"] / max(1, outcomes.total())
    return Report(
        fault="redis-away",
        lost={outcome: count for outcome, count in outcomes.items() if outcome != "result"},
        recover_s=back,
        connections=len(crowd.out(gone, end)),
        figures=(
            at_most("Redis was away", end - gone, None, "s"),
            at_least("delivered meanwhile", ratio, _DELIVERED),
            at_most("connections lost", len(crowd.out(gone, end)), 0),
            at_least("replicas ready, and degraded", ready, 3),
            at_most("all replicas hear each other again", back, _BACK_S, "s"),
        ),
    )


@contextlib.asynccontextmanager
async def _listening(server: RedisServer) -> AsyncIterator[list[bytes]]:
    """Every message of every channel."""
    heard: list[bytes] = []

    async def listen(listener: Any) -> None:
        async for message in listener.listen():
            if message["type"] == "pmessage":
                heard.append(message["data"])  # noqa: PERF401 - it never ends

    async with redis.asyncio.Redis(port=server.port) as client, client.pubsub() as listener:
        await listener.psubscribe("*")
        listening = asyncio.create_task(listen(listener))
        await asyncio.sleep(1.0)
        yield heard
        listening.cancel()
        await asyncio.wait([listening])


def _fleets(fleet: FleetServer) -> list[dict[str, Any]]:
    return [replica["status"]["fleet"] for replica in fleet.status()["replicas"] if replica["status"]]


def _joined(fleet: FleetServer) -> bool:
    found = _fleets(fleet)
    return len(found) == 3 and all(each["redis"] == "up" and len(each["replicas"]) == 3 for each in found)


def _readiness(fleet: FleetServer) -> int:
    """How many replicas say that they are ready, and that the others cannot be reached."""
    return sum(
        replica["state"] in ("active", "spare") and replica["status"]["fleet"]["redis"] == "down"
        for replica in fleet.status()["replicas"]
    )
