"""An auditor whose worker and slots are fake and whose clips are read by real processes."""

import asyncio
import contextlib
import io
import zipfile
from collections.abc import AsyncIterator, Callable
from typing import Any

import simplejpeg

from framelane.preprocess.clip_reader import ClipLimits
from framelane.preprocess.memory import Memory
from framelane.preprocess.messages import Fate
from framelane.preprocess.packets import encode_event
from framelane.preprocess.pool import Done, Job
from framelane.preprocess.progress import PAGE_BYTES
from framelane.server.slots.auditor import Auditor, AuditorConfig
from framelane.server.slots.states import State


def picture(number: int) -> bytes:
    import numpy as np

    return simplejpeg.encode_jpeg(np.full((16, 16, 3), number, np.uint8))


def zipped(count: int) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}.jpg", picture(number))
    return data.getvalue()


class FakeWorkers:
    """Answers each frame at once with its number, its size and the state it came with; or when a test says so."""

    def __init__(self) -> None:
        self.on_audit: Callable[[Done], None] = lambda done: None
        self.on_audit_credit: Callable[[], None] = lambda: None
        self.audit_free = True
        self.serves = False
        self.automatic = True
        self.jobs: dict[int, Job] = {}
        self.submitted: list[Job] = []
        self.cancelled: list[int] = []
        self.start_error: Exception | None = None

    async def start_audit(self) -> None:
        if self.start_error is not None:
            raise self.start_error

    def submit_audit(self, job: Job) -> int:
        assert self.audit_free
        self.submitted.append(job)
        request = len(self.submitted)
        self.jobs[request] = job
        if self.automatic:
            asyncio.get_running_loop().call_soon(self.finish, request)
        return request

    def finish(self, request: int, fate: Fate = Fate.OK, message: str = "", *, lost: bool = False) -> None:
        job = self.jobs.pop(request)
        packet, state = b"", b""
        if fate is Fate.OK:
            result = {"seq": job.seq, "size": len(job.data), "state": job.state.decode()}
            packet, state = encode_event(job.flavour, "result", result), job.state + b"."
        self.on_audit(Done(request, job, fate, packet, state, message, 0.0, 0.0, False, lost))

    def cancel(self, request: int) -> None:
        self.cancelled.append(request)


class FakeSlots:
    """One slot, which a test gives and takes."""

    def __init__(self) -> None:
        self.on_audit: Callable[[], None] = lambda: None
        self.can_audit = True
        self.available = True
        self.wanted = False

    def want_audit(self, wanted: bool) -> None:
        self.wanted = wanted
        self.on_audit()

    def of(self, state: State) -> list[Any]:
        return [object()] if state is State.AUDIT and self.available and self.wanted else []

    def give(self, available: bool) -> None:
        self.available = available
        self.on_audit()


class Auditing:
    """An auditor that runs, with its fakes."""

    def __init__(self, **config: Any) -> None:
        self.workers = FakeWorkers()
        self.slots = FakeSlots()
        self.pages = Memory.create("pages", PAGE_BYTES)
        clip = config.pop("clip", ClipLimits(frame_bytes=1 << 16, max_pixels=10**6))
        values = AuditorConfig(**{"clip": clip, "clip_bytes": 1 << 20, "page": 0, **config})
        self.auditor = Auditor(self.workers, self.slots, values, self.pages)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def auditing(**config: Any) -> AsyncIterator[Auditing]:
    running = Auditing(**config)
    task = asyncio.create_task(running.auditor.run())
    try:
        yield running
    finally:
        await running.auditor.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        running.auditor.close()
        running.pages.close()
