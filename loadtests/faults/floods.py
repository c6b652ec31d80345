"""Floods of connections, while clients stream and new ones come: they must not notice."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import psutil
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from framelane.server.protocol import SUBPROTOCOL, WEBSOCKET_PATH

from .lab import Lab, Target
from .load import Load
from .pictures import told_apart
from .report import Report, at_least, at_most

_COUNT = 10_000
_QUICK = 500
_PER_SECOND = 1000
_CONNECT_EVERY_S = 0.05
_CONNECT_LIMIT_MS = 500.0
_OPTIONS = ("--pipeline", "echo", "--device", "sim:1", "--workers", "1", "--max-clients", "100000")


async def handshakes(lab: Lab) -> Report:
    """10,000 websocket handshakes, each left at once."""
    return await _flooded(lab, "handshakes")


async def silent(lab: Lab) -> Report:
    """10,000 connections that say nothing."""
    return await _flooded(lab, "silent")


async def slow_heads(lab: Lab) -> Report:
    """10,000 requests whose head never ends (slowloris)."""
    return await _flooded(lab, "slow-heads")


async def half_open(lab: Lab) -> Report:
    """10,000 websockets that never say hello."""
    return await _flooded(lab, "half-open")


async def _flooded(lab: Lab, kind: str) -> Report:
    count = _QUICK if lab.quick else _COUNT
    async with lab.serving(*_OPTIONS) as target, Load(target.port, told_apart(8), clients=8, fps=8.0) as load:
        calm = await _connects_for(target.port, 0.5 if lab.quick else 2.0)
        memory = await asyncio.to_thread(_gateway_mib, target)
        began = time.monotonic()
        flooder = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "framelane.loadtests.faults.flooder", kind, str(target.port), str(count), str(_PER_SECOND)),
            stdout=asyncio.subprocess.PIPE,
        )
        during = asyncio.create_task(_connects_until(target.port, flooder))
        most = await _most_memory(target, flooder)
        times, failed = await during
        took = time.monotonic() - began
        assert flooder.stdout is not None
        made = json.loads(await flooder.stdout.read())
        await load.stop()
        lost = load.lost(began, time.monotonic() - 1, but=("superseded",))
        after = await _connects_for(target.port, 0.5 if lab.quick else 2.0)
        left = await asyncio.to_thread(target.end)
    p99 = _percentile(times, 99)
    return Report(
        fault=f"flood-{kind}",
        lost=lost,
        connections=load.lost_connections,
        leftovers=left,
        figures=(
            at_most("an honest client's connect, p99", p99, None if lab.quick else _CONNECT_LIMIT_MS, "ms"),
            at_most("honest clients that were not let in", failed, 0),
            at_most("connections of those who stream that were lost", load.lost_connections, 0),
            at_most("frames lost of those who stream", lost.total(), 0 if lab.quick else 5),
            at_least("connections of the flood", made["made"], count),
            at_most("memory that the gateway took for it", most - memory, 100.0, "MiB"),
            at_most("honest connect before, p99", _percentile(calm, 99), None, "ms"),
            at_most("honest connect afterwards, p99", _percentile(after, 99), None, "ms"),
        ),
        note=f"{made['made'] / took:.0f} connections a second for {took:.0f} s, {made['ended']} ended by the server; "
        f"{len(times)} honest connects meanwhile",
    )


async def _connects_for(port: int, seconds: float) -> list[float]:
    until, times = time.monotonic() + seconds, []
    while time.monotonic() < until:
        times.append(await _connect(port))
        await asyncio.sleep(_CONNECT_EVERY_S)
    return times


async def _connects_until(port: int, flooder: asyncio.subprocess.Process) -> tuple[list[float], int]:
    """Come in again and again, from when it was meant to be, until the flood is over: milliseconds, and failures."""
    times: list[float] = []
    failed = 0
    while flooder.returncode is None:
        try:
            times.append(await _connect(port))
        except (OSError, TimeoutError, WebSocketException):
            failed += 1
        await asyncio.sleep(_CONNECT_EVERY_S)
    return times, failed


async def _connect(port: int) -> float:
    """Milliseconds from nothing to `ready`."""
    started = time.monotonic()
    address = f"ws://127.0.0.1:{port}{WEBSOCKET_PATH}"
    options: dict[str, Any] = {"proxy": None, "compression": None, "open_timeout": 10}
    async with connect(address, subprotocols=[Subprotocol(SUBPROTOCOL)], **options) as socket, asyncio.timeout(10):
        await socket.send(msgspec.msgpack.encode(["hello", {}]))
        name = msgspec.msgpack.decode(await socket.recv(decode=False))[0]
        took = 1000 * (time.monotonic() - started)
    if name != "ready":
        raise OSError(f"an honest client was told {name}")
    return took


async def _most_memory(target: Target, flooder: asyncio.subprocess.Process) -> float:
    most = 0.0
    while flooder.returncode is None:
        most = max(most, await asyncio.to_thread(_gateway_mib, target))
        await asyncio.sleep(0.5)
    return most


def _gateway_mib(target: Target) -> float:
    return float(psutil.Process(target.pid).memory_full_info().uss) / 2**20


def _percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("inf")
