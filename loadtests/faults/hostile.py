"""Frames and pipelines that do harm: one client among honest ones, whose frames raise, loop, eat memory or kill."""

from __future__ import annotations

import asyncio
import time

from .lab import Lab, until
from .load import RESULT, Load
from .pictures import plain, told_apart
from .report import Report, at_least, at_most

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
_KINDS = {"raises": 101, "loops": 102, "eats memory": 103, "kills its worker": 104}


async def hostile_frames(lab: Lab) -> Report:
    """Frames on which the pipeline raises, loops for ever, eats memory or kills its process: only they fail."""
    (lab.folder / f"{_MODULE}.py").write_text(_SOURCE)
    options = ("--pipeline", f"{_MODULE}:Commanded", "--device", "sim:1", "--workers", "2", "--hang-limit", "1")
    seconds = 6.0 if lab.quick else 20.0
    figures = []
    lost_of_honest = 0
    async with lab.serving(*options, search=lab.folder) as target:
        for kind, width in _KINDS.items():
            lab.say(f"frames on which the pipeline {kind}")
            async with Load(target.port, told_apart(20), clients=20, fps=5.0) as honest:
                async with Load(target.port, [plain(128, width, 100)], clients=1, fps=25.0) as hostile:
                    await asyncio.sleep(seconds)
                results = sum(fate.outcome == RESULT for fate in honest.fates)
                lost_of_honest += len(honest.fates) - results
                figures.append(at_least(f"delivery to the honest, {kind}", results / len(honest.fates), 0.95))
                figures.append(at_most(f"results of the hostile, {kind}", _results(hostile), 0))
            await until(lambda: len(target.pids_of("workers", "active")) == 2, "both workers serve again", 60)
        left = await asyncio.to_thread(target.end)
    return Report(
        fault="hostile-frames", lost={"of the honest": lost_of_honest}, figures=tuple(figures), leftovers=left
    )


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


def _results(load: Load) -> int:
    return sum(fate.outcome == RESULT for fate in load.fates)
