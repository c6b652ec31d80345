"""Pipelines whose frames are commands, so that a test can make anything happen in a real worker."""

import asyncio
import os
import signal
import time
from typing import ClassVar

import msgspec
import numpy as np

from framelane.models.errors import InvalidFrame
from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result


class Commands(Pipeline):
    """``VERB ARGUMENT``; answers with whatever shows that it was done."""

    double = Model("double", parallel=2)
    picky = Model("picky")

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        greeting: str = "hello"

    async def run(self, frame: Frame, lane: Lane) -> Result:
        verb, _, argument = bytes(frame.data).decode().partition(" ")
        return await getattr(self, f"do_{verb}")(argument, lane)

    async def do_echo(self, argument: str, lane: Lane) -> Result:
        return {"text": argument, "greeting": self.options.greeting}

    async def do_double(self, argument: str, lane: Lane) -> Result:
        tensor = self.double.input()
        tensor[:] = float(argument)
        (doubled,) = await self.double(tensor)
        return {"doubled": doubled.tolist()}

    async def do_chain(self, argument: str, lane: Lane) -> Result:
        """``START TIMES``: doubles again and again, one run after another."""
        start, times = map(int, argument.split())
        value = np.full(4, start, np.float32)
        for _ in range(times):
            (value,) = await self.double(value)
        return {"value": value.tolist()}

    async def do_map(self, argument: str, lane: Lane) -> Result:
        items = [np.full(4, number, np.float32) for number in range(int(argument))]
        return {"doubled": [int(outputs[0][0]) for outputs in await self.double.map(items)]}

    async def do_picky(self, argument: str, lane: Lane) -> Result:
        (value,) = await self.picky(np.array([int(argument)], np.uint8))
        return {"value": value.tolist()}

    async def do_caught(self, argument: str, lane: Lane) -> Result:
        try:
            await self.picky(np.array([int(argument)], np.uint8))
        except Exception as error:
            return {"caught": type(error).__name__}
        return {}

    async def do_shape(self, argument: str, lane: Lane) -> Result:
        await self.double(np.zeros(int(argument), np.float32))
        return {}

    async def do_count(self, argument: str, lane: Lane) -> Result:
        count = int(lane.state or b"0") + 1
        lane.state = str(count).encode()
        return {"count": count}

    async def do_state(self, argument: str, lane: Lane) -> Result:
        lane.state = bytes(int(argument))
        return {}

    async def do_big(self, argument: str, lane: Lane) -> Result:
        return {"text": "x" * int(argument)}

    async def do_raise(self, argument: str, lane: Lane) -> Result:
        raise ValueError(argument)

    async def do_refuse(self, argument: str, lane: Lane) -> Result:
        raise InvalidFrame(argument)

    async def do_unspeakable(self, argument: str, lane: Lane) -> Result:
        raise ValueError("a name of the file system: \udcff")

    async def do_sleep(self, argument: str, lane: Lane) -> Result:
        await asyncio.sleep(0)
        return {}

    async def do_stubborn(self, argument: str, lane: Lane) -> Result:
        """Awaits even when it is told to end."""
        try:
            await self.double(np.zeros(4, np.float32))
        finally:
            await self.double(np.zeros(4, np.float32))
        return {}

    async def do_seq(self, argument: str, lane: Lane) -> Result:
        return {"seq": int(argument)}

    async def do_list(self, argument: str, lane: Lane) -> Result:
        return ["not", "a", "dict"]

    async def do_object(self, argument: str, lane: Lane) -> Result:
        return {"object": object()}

    async def do_wait(self, argument: str, lane: Lane) -> Result:
        """Keep the worker busy while the file ARGUMENT exists."""
        while os.access(argument, os.F_OK):
            time.sleep(0.001)  # noqa: ASYNC251 - a worker that computes
        return {}

    async def do_fork(self, argument: str, lane: Lane) -> Result:
        """Leave a process behind that inherits everything."""
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        return {"pid": pid}

    async def do_crash(self, argument: str, lane: Lane) -> Result:
        os._exit(7)

    async def do_exit(self, argument: str, lane: Lane) -> Result:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


class Numbers(Pipeline):
    """A frame is one number; three runs, the last of two items at once."""

    stateful: ClassVar[bool] = False
    double = Model("double", parallel=2)

    async def run(self, frame: Frame, lane: Lane) -> Result:
        value = np.full(4, int(bytes(frame.data)), np.float32)
        (once,) = await self.double(value)
        (twice,) = await self.double(once)
        pair = await self.double.map([twice, value])
        return {"values": [int(array[0]) for (array,) in pair]}


class Wide(Pipeline):
    """As many items at once as the frame says."""

    double = Model("double", parallel=400)

    async def run(self, frame: Frame, lane: Lane) -> Result:
        items = [np.full(4, number, np.float32) for number in range(int(bytes(frame.data)))]
        return {"doubled": [int(outputs[0][0]) for outputs in await self.double.map(items)]}


class WantsUnknownModel(Pipeline):
    missing = Model("nobody_has_it")


class NotAsync(Pipeline):
    def run(self, frame: Frame, lane: Lane) -> Result:  # type: ignore[override]
        return {}


class NoPipeline:
    """Not derived from Pipeline."""
