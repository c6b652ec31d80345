"""What happens to the service as a whole: draining, descriptors, full disks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time

from .lab import Lab, sharpness_options, until
from .load import Load
from .pictures import told_apart
from .report import Report, at_most

_ONE_EACH = ("--active-slots", "1", "--standby-slots", "1", "--workers", "1")


async def drain(lab: Lab) -> Report:
    """SIGTERM with 200 clients, of whom 20 do not read: what was admitted is answered, and it ends in time."""
    limit = 8.0
    options = (
        *sharpness_options(),
        "--device",
        "sim:8:batch=8",
        *_ONE_EACH,
        "--drain-limit",
        str(limit),
        "--deadline-ms",
        "5000",
    )
    async with lab.serving(*options) as target:
        stalled = [_stall(target.port) for _ in range(20)]
        async with Load(target.port, told_apart(180, 64, 48), clients=180, fps=0.5) as load:
            await asyncio.sleep(4)
            began = time.monotonic()
            target.popen.terminate()
            await asyncio.to_thread(target.popen.wait, limit + 30)
            took = time.monotonic() - began
        left = await asyncio.to_thread(target.leftovers)
        for sock in stalled:
            sock.close()
        lost = load.lost(began - 1, began, but=("draining", "superseded"))
        return Report(
            fault="drain",
            lost=lost,
            leftovers=left,
            figures=(
                at_most("admitted frames lost", lost.total(), 0),
                at_most("until its end", took, limit + 1, "s"),
            ),
        )


async def descriptors(lab: Lab) -> Report:
    """Descriptors run out: nobody new comes in, those who are there are served, and afterwards all is as before."""
    options = (*sharpness_options(), "--device", "sim:8", *_ONE_EACH)
    async with lab.serving(*options) as target, Load(target.port, told_apart(8), clients=8, fps=8.0) as load:
        await asyncio.sleep(1)
        used = target.descriptors()
        resource.prlimit(
            target.pid, resource.RLIMIT_NOFILE, (used + 8, resource.prlimit(target.pid, resource.RLIMIT_NOFILE)[1])
        )
        began = time.monotonic()
        idle = []
        for _ in range(60):
            with contextlib.suppress(OSError):
                idle.append(socket.create_connection(("127.0.0.1", target.port), timeout=0.2))
        await asyncio.sleep(4)
        during = load.lost(began, time.monotonic() - 1)
        for sock in idle:
            sock.close()
        recovered = await until(lambda: target.status()["pid"], "new connections are accepted again")
        await load.stop()
        left = await asyncio.to_thread(target.end)
        return Report(
            fault="descriptors",
            lost=during,
            recover_s=recovered,
            connections=load.lost_connections,
            leftovers=left,
            figures=(
                at_most("connections lost", load.lost_connections, 0),
                at_most("frames lost", during.total(), 0),
                at_most("until others can come in again", recovered, 5.0, "s"),
            ),
        )


async def full_disk(lab: Lab) -> Report:
    """Nothing can be written to the log: lines are lost, serving goes on."""
    options = (*sharpness_options(), "--device", "sim:8", *_ONE_EACH)
    async with lab.serving(*options, full_disk=True) as target:
        async with Load(target.port, told_apart(8), clients=8, fps=8.0) as load:
            await asyncio.sleep(3)
            (victim,) = await asyncio.to_thread(target.pids_of, "slots", "active")
            os.kill(victim, signal.SIGKILL)  # an occasion for the log
            await asyncio.sleep(3)
        lost = load.lost(0, time.monotonic(), but=("superseded",))
        left = await asyncio.to_thread(target.end)
        figures = (at_most("frames lost", lost.total(), 0), at_most("connections lost", load.lost_connections, 0))
        return Report(fault="full-disk", lost=lost, connections=load.lost_connections, leftovers=left, figures=figures)


def _stall(port: int) -> socket.socket:
    """A client that asks for pages and never reads them."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 200)
    return sock
