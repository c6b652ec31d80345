"""Frames and pipelines that do harm: one client among honest ones, whose frames raise, loop, eat memory or kill."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import NamedTuple

from framelane.loadtests.figures import Figure

from .lab import Lab, Target, until
from .load import RESULT, SUPERSEDED, UNANSWERED, Load
from .pictures import plain, told_apart
from .report import Report, at_least, at_most


class Hostility(NamedTuple):
    """What happens on a frame of this width, and the words in the log that tell whose fault it is.

    ``fatal``: it ends a process; the client is held back, and cut after a few.
    """

    what: str
    width: int
    log: str
    fatal: bool = False


_ALL = 1_000_000
_BAD_FPS = 25.0
_OF_THE_FATAL = {"expired", "rate_limited", UNANSWERED}
CUT = "is cut (fatal_frames)"
HELD = "is held back for"
_MODULE = "pipeline_under_test"
# The width of a picture says what its frame does: 320 is honest.
_SOURCE = """
import os, signal

from framelane.models.pipeline import Pipeline


class Commanded(Pipeline):
    stateful = False

    async def run(self, frame, lane):
        width, height, _ = frame.size
        if width == 101:
            raise ValueError("a fault of this pipeline")
        if width == 102:
            while True:
                pass
        if width == 103:
            return {"hoard": len(bytes(8 << 30))}
        if width == 104:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"width": width}
"""
_FAULTS = (
    Hostility("the pipeline raises", 101, "a fault of this pipeline"),
    Hostility("the pipeline loops", 102, HELD, fatal=True),
    Hostility("the pipeline eats memory", 103, "MemoryError"),
    Hostility("the pipeline kills its worker", 104, CUT, fatal=True),
)


async def hostile_frames(lab: Lab) -> Report:
    """Frames on which the pipeline raises, loops for ever, eats memory or kills its process: only they fail."""
    (lab.folder / f"{_MODULE}.py").write_text(_SOURCE)
    options = ("--pipeline", f"{_MODULE}:Commanded", "--device", "sim:1", "--workers", "2", "--hang-limit", "1")
    async with lab.serving(*options, search=lab.folder) as target:
        figures: list[Figure] = []
        for hostility in _FAULTS:
            figures += await attack(lab, target, hostility, Load(target.port, told_apart(20), clients=20, fps=5.0))
            await until(lambda: len(target.pids_of("workers", "active")) == 2, "both workers serve again", 60)
        left = await asyncio.to_thread(target.end)
    return Report(fault="hostile-frames", figures=tuple(figures), leftovers=left)


async def attack(lab: Lab, target: Target, hostility: Hostility, honest: Load) -> list[Figure]:
    """One client among honest ones sends a thousand frames that do harm; it comes back whenever it is cut."""
    lab.say(f"a client on whose frames {hostility.what}")
    count = 100 if lab.quick else 1000
    before = target.tail(_ALL).count(hostility.log)
    async with honest:
        pictures, address = [plain(128, hostility.width, 100)], f"127.0.1.{hostility.width}"
        async with Load(target.port, pictures, 1, _BAD_FPS, address=address, returns=True) as hostile:
            end = time.monotonic() + count / _BAD_FPS
            while (hostility.fatal or len(hostile.fates) < count) and time.monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await asyncio.sleep(2)
    results = sum(fate.outcome == RESULT for fate in honest.fates)
    outcomes = Counter(fate.outcome for fate in hostile.fates)
    lab.say(f"{dict(outcomes)}; {hostile.lost_connections} connections were cut")
    unnamed = set(outcomes) - {"failed", SUPERSEDED} - (_OF_THE_FATAL if hostility.fatal else set())
    figures = [
        at_least(f"delivery to the honest, {hostility.what}", results / len(honest.fates), 0.95),
        at_most("results of others, or wrong ones", honest.wrong, 0),
        at_least("bad frames that are called failed", outcomes["failed"], 1 if hostility.fatal else count / 2),
        at_most("bad frames with another fate", sum(outcomes[fate] for fate in unnamed), 0),
        at_least("lines of the log that name it", target.tail(_ALL).count(hostility.log) - before, 1),
    ]
    if hostility.fatal:
        held = hostile.lost_connections + outcomes["rate_limited"]
        figures.append(at_least("the client is held back, or cut", held, 1))
    return figures


async def bad_pictures(lab: Lab) -> Report:
    """A thousand pictures that are none, from one client among honest ones."""
    bad = [b"no picture at all", b"\xff\xd8\xff" + bytes(2000), b"", plain(1, 64, 64)[:300]]
    count = 100 if lab.quick else 1000
    options = ("--pipeline", "echo", "--device", "sim:1", "--workers", "2")
    async with (
        lab.serving(*options) as target,
        Load(target.port, told_apart(20), clients=20, fps=5.0) as honest,
        Load(target.port, bad, clients=4, fps=25.0) as hostile,
    ):
        deadline = time.monotonic() + 120
        while len(hostile.fates) < count and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await hostile.stop()
        await honest.stop()
        results = sum(fate.outcome == RESULT for fate in honest.fates)
        named = sum(fate.outcome == "invalid" for fate in hostile.fates)
        return Report(
            fault="bad-pictures",
            lost={"of the honest": len(honest.fates) - results},
            connections=honest.lost_connections,
            figures=(
                at_least("delivery to the honest", results / len(honest.fates), 0.95),
                at_least("bad frames that were named as such", named / len(hostile.fates), 0.7),
            ),
            note=f"{len(hostile.fates)} bad frames; a quarter of them, cut JPEGs, the echo pipeline does not look into",
        )
