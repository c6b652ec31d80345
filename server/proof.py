"""Sample pictures through workers and slots before clients come: does it work, and how fast?

A few pictures one by one show that the pipeline works and what a frame takes when it is alone; then a short burst, with
as many at once as the pool takes, shows how many frames per second the replica can sustain. Admission starts with that.
Until then the lanes hold back what clients send already.
"""

from __future__ import annotations

import asyncio
import math
import time

import msgspec

from framelane.preprocess.children import StartFailed
from framelane.preprocess.messages import Fate
from framelane.preprocess.packets import Flavour
from framelane.preprocess.pool import Done, Job, Pool

_LIMIT_S = 30.0
_ALONE = 3
_BURST_S = 1.5
_BURST_FRAMES = 32


class Proven(msgspec.Struct, frozen=True):
    """What was found: seconds of a frame that is alone, and frames per second (infinity if it could not be told)."""

    alone_s: float
    rate: float


class Proof:
    """One run with one picture.

    Args:
        pool: the workers; while it runs, their results come here first.
        picture: an encoded image.
    """

    def __init__(self, pool: Pool, picture: bytes) -> None:
        self._pool = pool
        self._picture = picture
        self._jobs: set[Job] = set()
        self._ended: asyncio.Queue[Done] = asyncio.Queue()

    async def run(self) -> Proven:
        """Send the pictures.

        Raises:
            StartFailed: the pipeline or a model fails on one.
        """
        others = self._pool.on_done

        def on_done(done: Done) -> None:
            if done.job in self._jobs:
                self._jobs.discard(done.job)
                self._ended.put_nowait(done)
            else:
                others(done)

        self._pool.on_done = on_done
        fates, taken = await self._one_by_one()
        rate = await self._burst() if Fate.OK in fates else math.inf
        while self._jobs:
            await self._ended.get()
        self._pool.on_done = others  # not after a failure: then the pool is about to stop
        return Proven(min(taken), rate)

    async def _one_by_one(self) -> tuple[set[Fate], list[float]]:
        fates: set[Fate] = set()
        taken: list[float] = []
        for _ in range(_ALONE):
            started = time.monotonic()
            self._submit()
            done = await self._ended.get()
            if done.fate not in (Fate.OK, Fate.INVALID):
                raise StartFailed(f"fails on the sample picture: {done.message or done.fate.name}")
            fates.add(done.fate)
            taken.append(time.monotonic() - started)
        return fates, taken

    async def _burst(self) -> float:
        """Frames per second while the pool is full. The first round does not count: its frames move in step."""
        while self._pool.free:
            self._submit()
        full = len(self._jobs)
        until = time.monotonic() + _BURST_S
        await self._rounds(full, (time.monotonic() + until) / 2)
        started = time.monotonic()
        frames = await self._rounds(max(full, _BURST_FRAMES), until)
        return frames / (time.monotonic() - started) if frames else math.inf

    async def _rounds(self, most: int, until: float) -> int:
        """Keep the pool full for so many results; how many came in time."""
        frames = 0
        while frames < most and time.monotonic() < until and self._jobs:
            await self._ended.get()
            frames += 1
            if self._pool.free:  # unless clients were quicker
                self._submit()
        return frames

    def _submit(self) -> None:
        now = time.monotonic()
        job = Job(self._picture, b"", 0, Flavour.WEBSOCKET, now, now + _LIMIT_S, None)
        self._jobs.add(job)
        self._pool.submit(job)
