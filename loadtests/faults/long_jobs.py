"""Long jobs beside clients: what they cost them, whether they are right, and who gives way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framelane.loadtests.clips import moving_face
from framelane.loadtests.figures import Figure
from framelane.server.sdk.client import Client

from .lab import Lab, sharpness_options, until
from .load import Load
from .pictures import told_apart
from .report import Report, at_least, at_most

_ANSWERS = "answers"
_END_BYTES = 1000
_ONE_EACH = ("--active-slots", "1", "--standby-slots", "1", "--workers", "1")


async def audit(lab: Lab) -> Report:
    """A long job beside clients, real models, in paired rounds: they hardly notice it, and it is right."""
    frames = moving_face(frames=30).frames
    count, rounds, round_s = (60, 2, 2.0) if lab.quick else (500, 5, 8.0)
    short, clip = lab.folder / "short", lab.folder / "clip"
    short.write_bytes(b"".join(frames))
    clip.write_bytes(b"".join(frames[number % len(frames)] for number in range(count)))
    ratios, rates = [], []
    async with lab.serving("--device", "cpu", *_ONE_EACH, "--deadline-ms", "2000") as target:
        await _audit(lab, target.port, short)  # it starts the worker for long jobs, too
        different = _different(await _live(target.port, frames), _answers(lab))
        async with Load(target.port, list(frames), clients=8, fps=4.0) as load:
            await asyncio.sleep(2)
            for number in range(rounds):
                began, jobs = time.monotonic(), 0
                while time.monotonic() < began + round_s:
                    end = await _audit(lab, target.port, clip)
                    assert (end["state"], end["results"], end["errors"]) == ("done", count, 0), end
                    jobs += 1
                ended = time.monotonic()
                await asyncio.sleep(ended - began)
                quiet = load.percentile(0.99, ended + 0.2, time.monotonic())
                busy = load.percentile(0.99, began, ended)
                lab.say(f"round {number + 1} of {rounds}: p99 {quiet:.1f} ms, {busy:.1f} ms with the job")
                ratios.append(busy / quiet)
                rates.append(jobs * count / (ended - began))
            await load.stop()
        lost = load.lost(0, time.monotonic() - 1)
        return Report(
            fault="audit",
            lost=lost,
            connections=load.lost_connections,
            figures=(
                Figure(name="clients' p99 during a job", unit="×", rounds=tuple(ratios), bar=1.25),
                at_most("results of the job that are not the live ones", different, 0),
                at_least("pictures of the job per second", max(rates), None, "/s"),
            ),
        )


async def audit_gives_way(lab: Lab) -> Report:
    """The active slot dies while its standby is lent to a long job: the standby comes back, and the job goes on."""
    pictures = told_apart(12)
    clip = lab.folder / "clip"
    clip.write_bytes(b"".join(pictures[number % 12] for number in range(300)))
    options = (*sharpness_options(), "--device", "sim:8", *_ONE_EACH)
    async with lab.serving(*options) as target, Load(target.port, pictures, clients=6, fps=8.0) as load:
        job = asyncio.create_task(_audit(lab, target.port, clip))
        await until(lambda: target.pids_of("slots", "audit"), "a standby is lent")
        await asyncio.sleep(1)
        (victim,) = await asyncio.to_thread(target.pids_of, "slots", "active")
        fault = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        await job
        await load.stop()
        lost = load.lost(fault - 1, fault + 3)
        return Report(
            fault="audit-gives-way",
            lost=lost,
            recover_s=load.recovered(fault, fault + 3),
            connections=load.lost_connections,
            figures=(
                at_most("frames lost", lost.total(), 0),
                at_least("results of the job", len(_answers(lab)), 300),
            ),
        )


async def _live(port: int, frames: Sequence[bytes]) -> list[dict[str, Any]]:
    """What a client gets that sends these frames one after another, as a job does."""
    async with Client(f"http://127.0.0.1:{port}") as client:
        return [(await client.infer(frame)).fields for frame in frames]


def _different(live: list[dict[str, Any]], audited: list[dict[str, Any]]) -> int:
    """How many answers of a job are not the live ones, to the last bit."""
    return sum(not _same(one, other) for one, other in zip(live, audited, strict=True))


def _same(live: dict[str, Any], audited: dict[str, Any]) -> bool:
    faces, others = live["faces"], audited["faces"]
    return len(faces) == len(others) and all(
        (face["score"], face["box"]) == (other["score"], other["box"])
        and face["landmarks"] == np.asarray(other["landmarks"], "<f4").tobytes()
        for face, other in zip(faces, others, strict=True)
    )


async def _audit(lab: Lab, port: int, clip: Path) -> dict[str, Any]:
    """Run a job over a clip: its end; ``_answers`` are its results.

    Its client is a process that takes what others leave, and only keeps what it reads: it would run on another machine.
    """
    process = await asyncio.create_subprocess_exec(
        "chrt", "--idle", "0", sys.executable, "-c", _AUDIT_CLIENT, str(port), str(clip), str(lab.folder / _ANSWERS)
    )
    assert await process.wait() == 0
    with (lab.folder / _ANSWERS).open("rb") as answers:
        answers.seek(-_END_BYTES, os.SEEK_END)
        end: dict[str, Any] = json.loads(answers.read().splitlines()[-1])["end"]
        return end


def _answers(lab: Lab) -> list[dict[str, Any]]:
    """The results of the last job. They are large: not while anything is measured."""
    lines = [json.loads(line) for line in (lab.folder / _ANSWERS).read_bytes().splitlines()]
    return [line["result"]["result"] for line in lines if "result" in line.get("result", ())]


_AUDIT_CLIENT = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=600)
connection.request("POST", "/v1/audit", open(sys.argv[2], "rb"))
response = connection.getresponse()
with open(sys.argv[3], "wb") as answers:
    while piece := response.read1(1 << 16):
        answers.write(piece)
"""
