"""Half an hour of everything at once: clients of both doors that come and go, or vanish; bad frames; kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import socketio

from framelane.loadtests.processes import memory

from .lab import Lab, Target, sharpness_options, until
from .load import RESULT, Load
from .pictures import plain, told_apart
from .report import Report, at_least, at_most

_ROUND_S = 5.0
_KILL_EVERY = 24
_SETTLE_S = 120.0
_REST_S = 3.0
_MB = 2**20


class Reading(NamedTuple):
    """The memory of one process at one time: seconds, and PSS in MB."""

    when: float
    pss: float


async def soak(lab: Lab) -> Report:
    """Clients that come and go, bad frames and kills for half an hour: memory, tasks, descriptors stay as they are."""
    minutes = 1.0 if lab.quick else 30.0
    options = ("--device", "sim:8", "--active-slots", "2", "--standby-slots", "1", "--workers", "2")
    async with lab.serving(*sharpness_options(), *options) as target:
        readings: dict[int, list[Reading]] = {}
        results = await _churn(target, 4, readings)  # whatever is made once for all is there afterwards
        before = await _at_rest(target)
        began = time.monotonic()
        while time.monotonic() < began + 60 * minutes:
            results += await _churn(target, _KILL_EVERY if not lab.quick else 4, readings)
            await _kill_the_last(target, random.choice(("slots", "workers")))  # the first ones grow old
            lab.say(f"{(time.monotonic() - began) / 60:.0f} of {minutes:g} minutes, {results} results")
        after = await _at_rest(target)
        more = _descriptors(after) - _descriptors(before)
        pid, growth = _fastest(readings, began + (0 if lab.quick else _SETTLE_S), 30 if lab.quick else 600)
        left = await asyncio.to_thread(target.end)
    return Report(
        fault="soak",
        leftovers=left,
        figures=(
            at_most("growth of the process that grows fastest", growth, None if lab.quick else 1.0, "MB/min"),
            at_most("tasks of the gateway, more than at the start", after["tasks"] - before["tasks"], 0),
            at_most("descriptors of the gateway, more than at the start", more, 0),
            at_least("results", results, 1),
        ),
        note=f"{minutes:g} minutes; process {pid} grows fastest, the gateway is {target.pid}; more than at the start: "
        + (", ".join(f"{count} × {what}" for what, count in (after - before).items()) or "nothing"),
    )


async def _churn(target: Target, rounds: int, readings: dict[int, list[Reading]]) -> int:
    """Rounds of clients; returns how many results they had."""
    results = 0
    for _ in range(rounds):
        pictures = [*told_apart(5), b"no picture", plain(1, 64, 64)[:300]]
        async with Load(target.port, pictures, clients=7, fps=4.0) as load:
            await asyncio.gather(_visit(target.port), asyncio.to_thread(_vanish, target.port), asyncio.sleep(_ROUND_S))
        results += sum(fate.outcome == RESULT for fate in load.fates)
        await asyncio.to_thread(_read, target, readings)
    return results


async def _visit(port: int) -> None:
    """A stock Socket.IO client for a few frames; now and then it leaves without a word."""
    client = socketio.AsyncClient(reconnection=False)
    await client.connect(f"http://127.0.0.1:{port}", transports=["websocket"])
    for seq in range(5):
        await client.emit("frame", (seq, plain(99, 320, 240)))
        await asyncio.sleep(0.1)
    if random.random() < 0.5:
        client.eio.ws._response.connection.transport.abort()  # as when its network is gone
    with contextlib.suppress(Exception):
        await client.disconnect()


def _vanish(port: int) -> None:
    """Half a request, and the end."""
    for text in (b"GET / HT", b"POST /v1/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\nhalf of it"):
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(text)
            time.sleep(0.1)


def _read(target: Target, readings: dict[int, list[Reading]]) -> None:
    for pid in target.living():
        with contextlib.suppress(OSError):
            readings.setdefault(pid, []).append(Reading(time.monotonic(), sum(memory(pid)) / _MB))


async def _at_rest(target: Target) -> Counter[str]:
    """How many tasks, and descriptors of each kind, the gateway has when nobody is there and every process is."""
    await _whole(target)
    await asyncio.sleep(_REST_S)
    kinds = await asyncio.to_thread(_open_files, target.pid)  # before anything is asked of it
    status = await asyncio.to_thread(target.status)
    return kinds + Counter(tasks=status["tasks"])


def _open_files(pid: int) -> Counter[str]:
    return Counter(_linked(path).partition("[")[0] for path in Path(f"/proc/{pid}/fd").iterdir())


def _descriptors(counts: Counter[str]) -> int:
    return counts.total() - counts["tasks"]


def _linked(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return "closed"


async def _kill_the_last(target: Target, kind: str) -> None:
    (*_, victim) = await asyncio.to_thread(target.pids_of, kind, "active")
    os.kill(victim, signal.SIGKILL)
    await _whole(target)


async def _whole(target: Target) -> None:
    await until(lambda: len(target.pids_of("slots", "standby")) == 1, "a standby is there", 60, 0.1)
    await until(lambda: len(target.pids_of("workers", "parked")) == 1, "a parked worker is there", 60, 0.1)


def _fastest(readings: dict[int, list[Reading]], since: float, least_s: float) -> tuple[int, float]:
    """The process that grows fastest, and by how many MB per minute, of those that were seen for long enough."""
    slopes = {}
    for pid, all_readings in readings.items():
        late = [reading for reading in all_readings if reading.when >= since]
        if late and late[-1].when - late[0].when >= least_s:
            slopes[pid] = _slope(late)
    fastest = max(slopes, key=lambda pid: slopes[pid])
    return fastest, slopes[fastest]


def _slope(readings: Sequence[Reading]) -> float:
    """MB per minute, by least squares."""
    return 60 * statistics.linear_regression(*zip(*readings, strict=True)).slope
