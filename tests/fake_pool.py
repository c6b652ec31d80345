"""A pool without processes, for tests of what stands in front of it."""

import asyncio
from collections.abc import Callable
from typing import Any

from framelane.preprocess.messages import Blame, Fate
from framelane.preprocess.packets import encode_event
from framelane.preprocess.pool import Done, Job


class FakePool:
    """Holds what is submitted until a test ends it; ``free`` and ``estimate_s`` are the test's to set."""

    def __init__(self, credits: int = 4) -> None:
        self.credits = credits
        self.estimate_s = 0.0
        self.on_done: Callable[[Done], None] = lambda done: None
        self.on_credit: Callable[[], None] = lambda: None
        self.jobs: dict[int, Job] = {}
        self.cancelled: list[int] = []
        self.submitted: list[Job] = []

    @property
    def free(self) -> int:
        return self.credits - len(self.jobs)

    def submit(self, job: Job) -> int:
        assert self.free > 0
        self.submitted.append(job)
        self.jobs[len(self.submitted)] = job
        return len(self.submitted)

    def cancel(self, request: int) -> None:
        assert request in self.jobs
        self.cancelled.append(request)

    def finish(
        self,
        request: int | None = None,
        fate: Fate = Fate.OK,
        *,
        state: bytes = b"",
        message: str = "",
        inference_s: float = 0.003,
        fatal: bool = False,
        suspected: bool = False,
        **fields: Any,
    ) -> Job:
        """End a request (the oldest one) with a result that has `seq`, the frame's size, and `fields`."""
        request = min(self.jobs) if request is None else request
        job = self.jobs.pop(request)
        packet = b""
        if fate is Fate.OK:
            packet = encode_event(job.flavour, "result", {"seq": job.seq, "size": len(job.data), **fields})
        blame = (Blame.SUSPECTED if suspected else Blame.CERTAIN) if fatal else Blame.NONE
        self.on_done(Done(request, job, fate, packet, state, message, 0.0, inference_s, blame))
        return job


class EchoPool(FakePool):
    """Ends each request in the next turn of the event loop; the result carries the frame's first bytes."""

    def submit(self, job: Job) -> int:
        request = super().submit(job)
        self.submitted[-1] = None  # type: ignore[call-overload]  # the frame's bytes are not kept
        head = bytes(job.data[:64])
        asyncio.get_running_loop().call_soon(lambda: self.finish(request, head=head, state=job.state + b"."))
        return request
