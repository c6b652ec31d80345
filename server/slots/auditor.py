"""Runs the long jobs of a replica, one at a time: clip reader → audit worker → audit slot → results.

A job's frames go through the same pipeline as a client's, one after another with the lane's state carried along, so
their results are the same. They have no deadline of a client's kind: when the slot is needed elsewhere, a frame waits
in the worker until there is one again. A frame whose worker died is tried once more; what fails then is a result with
an error, like a picture that cannot be decoded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from framelane.models.errors import FramelaneError
from framelane.preprocess.clip_reader import ClipFrame, ClipLimits, ClipReader
from framelane.preprocess.memory import Memory
from framelane.preprocess.messages import Fate
from framelane.preprocess.packets import JSON, json_result
from framelane.preprocess.pool import Done
from framelane.preprocess.pool import Job as Work

from .audit import AuditRefused, Job, JobState, Ledger, Step
from .spool import Spool
from .states import State
from .uploads import Upload

log = logging.getLogger("framelane.audit")

_LULL_S = 0.02
_LOOK_S = 0.001
_ERRORS = {Fate.INVALID: "invalid", Fate.EXPIRED: "expired"}


class Workers(Protocol):
    """What the auditor needs of the pool (``preprocess/pool.py``)."""

    on_audit: Callable[[Done], None]
    on_audit_credit: Callable[[], None]

    @property
    def serves(self) -> bool:
        """Whether frames of clients are in work now."""

    @property
    def audit_free(self) -> bool:
        """Whether a frame could be submitted now."""

    async def start_audit(self) -> None:
        """Start the worker for long jobs, unless it is there."""

    def submit_audit(self, job: Work) -> int:
        """Begin a frame; ``on_audit`` is called exactly once for it, later."""

    def cancel(self, request: int) -> None:
        """Nobody waits for it any more."""


class Slots(Protocol):
    """What the auditor needs of the supervisor (``supervisor.py``)."""

    on_audit: Callable[[], None]

    @property
    def can_audit(self) -> bool:
        """Whether there is, or will be, a slot for long jobs."""

    def want_audit(self, wanted: bool) -> None:
        """A long job begins, or the last one has ended."""

    def of(self, state: State) -> list[Any]:
        """The slots in a state."""


class AuditorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of long jobs. ``job_limit_s`` is the longest that one may take, pauses included."""

    clip: ClipLimits
    clip_bytes: int
    page: int
    stateful: bool = True
    waiting: int = 4
    kept: int = 8
    retention_s: float = 600.0
    result_bytes: int = 256 << 20
    job_limit_s: float = 6 * 3600.0


class Auditor:
    """Takes jobs and runs them.

    Args:
        pool: the workers; its callbacks for long jobs are set here.
        slots: the slots; likewise.
        config: see ``AuditorConfig``.
        pages: the memory of the progress pages.

    Attributes:
        ledger: all jobs.
    """

    def __init__(self, pool: Workers, slots: Slots, config: AuditorConfig, pages: Memory) -> None:
        self.ledger = Ledger(waiting=config.waiting, kept=config.kept, retention_s=config.retention_s)
        self.config = config
        self._pool = pool
        self._slots = slots
        self._pages = pages
        self._called = asyncio.Event()
        self._changed = asyncio.Event()
        self._current: Job | None = None
        self._task: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[Done]] = {}
        self._stopped = False
        pool.on_audit = self._done
        pool.on_audit_credit = self._changed.set
        slots.on_audit = self._slots_changed

    # -- what the door calls -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AuditRefused if a job would not be taken now."""
        if self._stopped:
            raise AuditRefused("this server is going away", code="draining", retryable=True)
        if not self._slots.can_audit:
            raise AuditRefused(
                "this server has no slot for long jobs: start it with --audit-slots 1 or --standby-slots 1",
                code="no_audit_slot",
            )
        self.ledger.check()

    def add(self, clip: Upload, steps: tuple[Step, ...]) -> Job:
        """Take a job over a clip.

        Raises:
            AuditRefused: as ``check``.
        """
        self.check()
        job = Job(clip, Spool(self.config.result_bytes), steps, time.monotonic())
        self.ledger.add(job)
        self._called.set()
        return job

    def cancel(self, job: Job) -> None:
        """End a job that has not ended yet; its results so far are kept."""
        if job is self._current and self._task is not None:
            self._cancel(self._task)
        elif job.ended is None:
            self.ledger.end(job, JobState.CANCELLED, time.monotonic())

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run jobs as they come, until cancelled."""
        while True:
            job = self.ledger.next()
            if job is None:
                self._called.clear()
                await self._called.wait()
                continue
            self._current = job
            self._task = asyncio.create_task(self._perform(job))
            try:
                await asyncio.wait([self._task])
            finally:
                if job.ended is None:  # it was cancelled before it could begin
                    self._end(job, JobState.CANCELLED)
                self._current = self._task = None
                if self.ledger.next() is None:
                    self._slots.want_audit(False)

    def check_time(self, now: float) -> None:
        """Forget jobs whose time is over. Call it now and then."""
        self.ledger.expire(now)

    async def stop(self) -> None:
        """The server goes away: end every job, and say so to whoever listens."""
        self._stopped = True
        task = self._task
        if task is not None:
            self._cancel(task)
            await asyncio.wait([task])
        for job in self.ledger.jobs.values():
            if job.ended is None:
                self._end(job, JobState.CANCELLED, _GOING_AWAY)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if not task.cancelling():  # a second time would interrupt its cleaning up
            task.cancel()

    def close(self) -> None:
        """Give all memory and files back."""
        self.ledger.clear()

    # -- one job -----------------------------------------------------------------------------------------------------

    async def _perform(self, job: Job) -> None:
        log.info("audit %.6s… begins: %d bytes, %d steps", job.id, job.clip.size, len(job.steps))
        try:
            async with asyncio.timeout(self.config.job_limit_s):
                self._slots.want_audit(True)
                await self._pool.start_audit()
                await self._slot_and_worker()
                for step in job.steps:
                    await self._pass(job, step)
        except asyncio.CancelledError:
            self._end(job, JobState.CANCELLED, _GOING_AWAY if self._stopped else None)
        except TimeoutError:
            self._fail(job, "timeout", f"the job took longer than {self.config.job_limit_s:g} s")
        except FramelaneError as error:
            self._fail(job, error.code, error.message)
        except Exception as error:
            log.exception("audit %.6s… failed", job.id)
            self._fail(job, "failed", f"{type(error).__name__}: {error}")
        else:
            if job.state is JobState.PAUSED:  # its slot was taken away after its last frame
                job.become(JobState.RUNNING, time.monotonic())
            self._end(job, JobState.DONE)

    def _fail(self, job: Job, code: str, message: str) -> None:
        self._end(job, JobState.FAILED, {"code": code, "message": message})

    def _end(self, job: Job, state: JobState, error: dict[str, str] | None = None) -> None:
        self.ledger.end(job, state, time.monotonic(), error)
        log.info(
            "audit %.6s… is %s after %.1f s: %d results, %d of them errors%s", job.id, state,
            time.monotonic() - job.created, len(job.results), job.invalid, f": {error['message']}" if error else "",
        )  # fmt: skip

    async def _pass(self, job: Job, step: Step) -> None:
        """One step: its frames in order, the next one being read while one is in work."""
        assert isinstance(job.clip, Upload)
        reader = ClipReader(job.clip.fd, self.config.clip, self._pages, self.config.page)
        reading: asyncio.Task[ClipFrame | None] | None = None
        try:
            about = await reader.open()
            job.format = about["format"]
            self._estimate(job, about["frames"])
            state, number = b"", step.first
            reading = asyncio.create_task(_read(reader, step, number))
            while (frame := await reading) is not None:
                reading = asyncio.create_task(_read(reader, step, number + step.every))
                state = await self._answer(job, step, number, frame, state)
                number += step.every
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await asyncio.shield(reader.close())

    async def _answer(self, job: Job, step: Step, number: int, frame: ClipFrame, state: bytes) -> bytes:
        """One frame: its result into the job's; returns the lane's state after it."""
        head: dict[str, Any] = {"frame": number}
        if step.name:
            head["step"] = step.name
        if frame.name:
            head["name"] = frame.name
        if frame.error:
            await self._keep(job, {**head, "error": {"code": "invalid", "message": frame.error}})
            return state
        done = await self._work(number, frame.data, state)
        if done.fate is Fate.OK:
            await self._keep(job, {**head, "result": msgspec.Raw(json_result(done.packet) or b"null")})
            return done.state if self.config.stateful else b""
        await self._keep(job, {**head, "error": {"code": _ERRORS.get(done.fate, "failed"), "message": done.message}})
        return state

    async def _keep(self, job: Job, line: dict[str, Any]) -> None:
        """Write a line down; a result in it is bytes, which are copied and not looked at."""
        await job.results.append(msgspec.json.encode(line))
        job.invalid += "error" in line
        job.changed()

    async def _work(self, number: int, data: bytes, state: bytes) -> Done:
        done = await self._submit(number, data, state)
        if done.lost:
            done = await self._submit(number, data, state)
        return done

    async def _submit(self, number: int, data: bytes, state: bytes) -> Done:
        await self._lull()
        await self._slot_and_worker()
        now = time.monotonic()
        work = Work(data, state, number, JSON, now, now + self.config.job_limit_s, self)
        request = self._pool.submit_audit(work)
        answer = self._answers[request] = asyncio.get_running_loop().create_future()
        try:
            done: Done = await answer
            return done
        except asyncio.CancelledError:
            self._pool.cancel(request)
            raise
        finally:
            del self._answers[request]

    async def _slot_and_worker(self) -> None:
        """Wait until a frame can be submitted."""
        while not (self._slots.of(State.AUDIT) and self._pool.audit_free):
            self._changed.clear()
            await self._changed.wait()
        self._show_pause()

    async def _lull(self) -> None:
        """Let clients' frames that are in work be finished first, for a moment: the lowest priority is not enough.

        A process that is woken where another one runs may have to wait for the scheduler's next tick (4 ms), however
        low the other's priority.
        """
        until = time.monotonic() + _LULL_S
        while self._pool.serves and time.monotonic() < until:  # noqa: ASYNC110 - an event would cost each of their frames
            await asyncio.sleep(_LOOK_S)

    def _estimate(self, job: Job, frames: int | None) -> None:
        """How many results the steps will give, if every frame is there."""
        job.total = None if frames is None else sum(_count(step, frames) for step in job.steps)

    # -- what happens meanwhile --------------------------------------------------------------------------------------

    def _done(self, done: Done) -> None:
        answer = self._answers.get(done.request)
        if answer is not None and not answer.done():
            answer.set_result(done)
        self._changed.set()  # a credit is free

    def _slots_changed(self) -> None:
        self._changed.set()
        self._show_pause()

    def _show_pause(self) -> None:
        job, has_slot = self._current, bool(self._slots.of(State.AUDIT))
        if job is None:
            return
        if job.state is JobState.RUNNING and not has_slot:
            log.info("audit %.6s… pauses: its slot serves clients", job.id)
            job.become(JobState.PAUSED, time.monotonic())
        elif job.state in (JobState.WAITING, JobState.PAUSED) and has_slot:
            job.become(JobState.RUNNING, time.monotonic())


def _read(reader: ClipReader, step: Step, number: int) -> Coroutine[Any, Any, ClipFrame | None]:
    if step.last is not None and number >= step.last:
        return _nothing()
    return reader.frame(number)


async def _nothing() -> None:
    return None


def _count(step: Step, frames: int) -> int:
    last = frames if step.last is None else min(frames, step.last)
    return len(range(step.first, last, step.every))


_GOING_AWAY = {"code": "draining", "message": "this server is going away"}
