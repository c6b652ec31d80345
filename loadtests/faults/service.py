"""What happens to the service as a whole: long jobs, draining, descriptors, full disks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any

from framelane.loadtests.clips import moving_face

from .lab import Lab, sharpness_options, until
from .load import Load
from .pictures import told_apart
from .report import Report, at_least, at_most

_ONE_EACH = ("--active-slots", "1", "--standby-slots", "1", "--workers", "1")


async def audit(lab: Lab) -> Report:
    """A long job beside clients, real models, in paired rounds: clients hardly notice, and the job is done."""
    frames = moving_face(frames=30).frames
    count, rounds = (60, 2) if lab.quick else (500, 4)
    clip = b"".join(frames[number % len(frames)] for number in range(count))
    ratios, rates = [], []
    async with (
        lab.serving("--device", "cpu", *_ONE_EACH, "--deadline-ms", "2000") as target,
        Load(target.port, list(frames), clients=8, fps=4.0) as load,
    ):
        await asyncio.sleep(2)
        await _audit(lab, target.port, frames[0])  # starts the worker for long jobs, once for all
        for number in range(rounds):
            lab.say(f"round {number + 1} of {rounds}")
            began = time.monotonic()
            end, _ = await _audit(lab, target.port, clip)
            ended = time.monotonic()
            assert (end["state"], end["results"], end["errors"]) == ("done", count, 0), end
            await asyncio.sleep(max(3.0, ended - began))
            quiet = load.percentile(0.99, ended + 0.2, time.monotonic())
            ratios.append(load.percentile(0.99, began, ended) / quiet)
            rates.append(count / (ended - began))
        await load.stop()
        ratios.sort()
        lost = load.lost(0, time.monotonic() - 1)
        return Report(
            fault="audit",
            lost=lost,
            connections=load.lost_connections,
            figures=(
                at_most("clients' p99 during a job", ratios[len(ratios) // 2], 1.25, "×"),
                at_least("pictures of the job per second", max(rates), None, "/s"),
            ),
        )


async def audit_gives_way(lab: Lab) -> Report:
    """The active slot dies while its standby is lent to a long job: the standby comes back, and the job goes on."""
    pictures = told_apart(12)
    clip = b"".join(pictures[number % 12] for number in range(300))
    options = (*sharpness_options(), "--device", "sim:8", *_ONE_EACH)
    async with lab.serving(*options) as target, Load(target.port, pictures, clients=6, fps=8.0) as load:
        job = asyncio.create_task(_audit(lab, target.port, clip))
        await until(lambda: target.pids_of("slots", "audit"), "a standby is lent")
        await asyncio.sleep(1)
        (victim,) = await asyncio.to_thread(target.pids_of, "slots", "active")
        fault = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        _, answered = await job
        await load.stop()
        lost = load.lost(fault - 1, fault + 3)
        return Report(
            fault="audit-gives-way",
            lost=lost,
            recover_s=load.recovered(fault, fault + 3),
            connections=load.lost_connections,
            figures=(
                at_most("frames lost", lost.total(), 0),
                at_least("results of the job", answered, 300),
            ),
        )


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


async def _audit(lab: Lab, port: int, clip: bytes) -> tuple[dict[str, Any], int]:
    """Run a job over a clip, from a process of its own, since its results are large: its end, and how many it answered.

    That process is of low priority: a client of long jobs would run on another machine.
    """
    path = lab.folder / "clip"
    path.write_bytes(clip)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _AUDIT_CLIENT, str(port), str(path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    end, answered = json.loads(output)
    return end, answered


_AUDIT_CLIENT = """
import http.client, json, os, sys
os.nice(19)
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=600)
connection.request("POST", "/v1/audit", open(sys.argv[2], "rb"))
response, answered, line = connection.getresponse(), 0, b""
for line in response:
    answered += line.startswith(b'{"result":') and b'"result":{"' in line[10:]
print(json.dumps([json.loads(line)["end"], answered]))
"""


def _stall(port: int) -> socket.socket:
    """A client that asks for pages and never reads them."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 200)
    return sock
