"""The gateway's side of the workers: credits, frames in, finished packets out, and a replacement for each that dies.

A worker has as many credits as it may hold frames; credit *k* of worker *w* is cell ``w * credits + k`` of the frame
memory. Credits are never counted: they are the cells that no frame in flight uses. Everything here runs on the event
loop's thread and returns at once; the only copies are the frame's bytes into its cell and the finished packet out.

A few more workers than serve are parked, ready: one of them takes a dead one's place at once. One more, which takes
what others leave of the machine, is started when the first long job (``/v1/audit``) asks for it; it serves no clients.

When a worker dies, end of file on its channel closes its books: what it had finished was read before, and is delivered;
what it still held is ``failed``. Its cells are used again only by its replacement, which is started when the old
process has certainly ended.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from .children import Child, StartFailed, ask
from .headers import Limits
from .health import Heartbeat, Pulse, waited_for_cpu
from .keeper import Keeper
from .memory import FrameCells, Memory, ModelCells, Slab
from .messages import Blame, Fate, Kind, Message, pack, pack_frame
from .trace import Trace

log = logging.getLogger("framelane.pool")

_MODULE = "framelane.preprocess.worker"
_FATES = tuple(Fate)
_MOST_RUNS = 200
"""Runs of one worker in flight at a slot: a stock socket holds about 270 messages that nobody has read."""
_ESTIMATE_WEIGHT = 0.1


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers serve, how many more are parked, and what they run.

    ``cores`` is how many cores workers share with slots on the CPU (0: they do not), see ``Pool.free``.
    ``hang_s`` is how long a worker may go without turning its loop; ``memory_limit`` bounds its data, in bytes (0: no
    bound). ``audit``: there may be a worker for long jobs; its progress page follows those of the others.
    """

    workers: int
    credits: int
    pipeline: str
    options: dict[str, Any]
    models: list[ModelCells]
    limits: Limits
    frame_bytes: int
    packet_bytes: int
    first_page: int
    spares: int = 0
    cores: int = 0
    hang_s: float = 3.0
    memory_limit: int = 0
    audit: bool = False
    search_path: str = ""
    trace: str = ""
    log_level: str = "INFO"


class Job:
    """One frame on its way through the workers. Times are ``time.monotonic()`` seconds."""

    __slots__ = ("data", "deadline", "flavour", "owner", "received", "seq", "state", "submitted")

    def __init__(
        self,
        data: bytes | memoryview,
        state: bytes,
        seq: int,
        flavour: int,
        received: float,
        deadline: float,
        owner: Any,
    ) -> None:
        self.data = data
        self.state = state
        self.seq = seq
        self.flavour = flavour
        self.received = received
        self.deadline = deadline
        self.owner = owner
        self.submitted = 0.0


class Done(NamedTuple):
    """How a frame ended: with a finished packet when ``fate`` is OK, else perhaps with a message for its sender."""

    request: int
    job: Job
    fate: Fate
    packet: bytes
    state: bytes
    message: str
    preprocess_s: float
    inference_s: float
    blame: Blame = Blame.NONE
    lost: bool = False
    """Its worker died while it held the frame."""
    report: Message | None = None
    """What its worker said of a result: when it began and finished, and where the time went (``messages.py``)."""

    @property
    def fatal(self) -> bool:
        """Whether the frame ended its worker or slots, as far as is known."""
        return self.blame is not Blame.NONE

    @property
    def suspected(self) -> bool:
        """Whether that is not certain."""
        return self.blame is Blame.SUSPECTED


class Worker:
    """One worker process, this incarnation of it."""

    __slots__ = ("audit", "born", "cells", "child", "generation", "heartbeat", "hung", "index", "jobs", "ready",
                 "serving", "slab")  # fmt: skip

    def __init__(
        self, index: int, generation: int, child: Child, slab: Memory, cells: range, hang_s: float = 3.0
    ) -> None:
        self.index = index
        self.generation = generation
        self.child = child
        self.slab = slab
        self.cells = list(cells)
        self.jobs: dict[int, tuple[Job, int]] = {}
        self.ready = False
        self.serving = False
        self.audit = False
        self.hung = False
        self.born = time.monotonic()
        self.heartbeat = Heartbeat(hang_s, self.born, functools.partial(waited_for_cpu, child.pid))

    @property
    def state(self) -> str:
        """For status and readiness: "starting", "parked", "audit" or "active"."""
        if self.audit and self.ready:
            return "audit"
        return "active" if self.serving else "parked" if self.ready else "starting"


class Watcher(Protocol):
    """Who introduces workers to slots (``server/slots/supervisor.py``)."""

    def worker_started(self, worker: Worker) -> None:
        """A process was started; it may be sent messages, though it is not ready yet."""

    def worker_ended(self, worker: Worker) -> None:
        """A process has certainly ended."""

    def worker_routed(self, worker: Worker, epoch: int) -> None:
        """The worker has nothing in flight any more on slots outside the routes of ``epoch``."""

    def busy_slots(self) -> int:
        """How many slots keep one of the workers' cores busy at this moment."""


async def describe_pipeline(name: str, options: dict[str, Any], search_path: str, pages: Memory) -> dict[str, Any]:
    """Ask a worker process what the pipeline is, without importing it here: ``{"models": [...], "stateful": bool}``.

    Raises:
        StartFailed: the pipeline cannot be imported or refuses its options; the message says why.
    """
    config = {"describe": name, "options": options, "search_path": search_path}
    return await ask(Child(_MODULE, f"pipeline {name}", config, pages, 0))


class Pool:
    """All workers of the replica.

    Args:
        config: see ``PoolConfig``.
        pages: the memory of the progress pages.
        watcher: introduces workers to slots.

    Attributes:
        on_done: called once for every frame that was submitted.
        on_credit: called when a worker has joined.
        on_audit: as ``on_done``, for the frames of long jobs.
        on_audit_credit: called when the worker for long jobs has become ready.
        estimate_s: moving average of the seconds from ``submit`` to the result.
        keeper: keeps a process in each place; ``workers`` are those that live.
        hangs: how often a worker was put down since it hung.
    """

    def __init__(self, config: PoolConfig, pages: Memory, watcher: Watcher) -> None:
        _check_parallel(config)
        self._config = config
        self._pages = pages
        self._watcher = watcher
        self._count = config.workers + config.spares
        places = self._count + config.audit
        self._memory = Memory.create(
            "frames", FrameCells.size(places * config.credits, config.frame_bytes, config.packet_bytes)
        )
        self._frames = FrameCells(self._memory, config.frame_bytes, config.packet_bytes)
        self._next = 0
        self._holders: dict[int, Worker] = {}
        self.keeper = Keeper(
            "worker", spawn=self._spawn, introduce=watcher.worker_started, hear=self._hear, bury=self._bury
        )
        self.workers = self.keeper.living
        self.trace: Trace | None = None
        self.hangs = 0
        self.estimate_s = 0.0
        self.on_done: Callable[[Done], None] = lambda _done: None
        self.on_credit: Callable[[], None] = lambda: None
        self.on_audit: Callable[[Done], None] = lambda _done: None
        self.on_audit_credit: Callable[[], None] = lambda: None

    # -- frames ------------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many frames should be submitted now."""
        free, most = 0, self._worth()
        for worker in self.workers.values():
            if worker.serving:
                free += len(worker.cells)
                most -= 1
                if not most:
                    break
        return free

    def _worth(self) -> int:
        """How many workers are worth having frames: as many as there are cores that slots leave to them.

        One more would take turns with them on one core, and each turn begins with cold caches.
        """
        cores = self._config.cores
        return max(1, cores - self._watcher.busy_slots()) if cores else len(self.workers)

    def submit(self, job: Job) -> int:
        """Give a frame to the worker with the most free credits; returns the request's number.

        The caller has made sure that ``free`` is not 0. ``on_done`` is called exactly once for it, later.
        """
        return self._begin(self._least_loaded(), job)

    @property
    def serves(self) -> bool:
        """Whether frames of clients are in work now."""
        return any(worker.serving and worker.jobs for worker in self.workers.values())

    @property
    def audit_free(self) -> bool:
        """Whether a frame of a long job could be submitted now."""
        worker = self.workers.get(self._count)
        return worker is not None and worker.ready and bool(worker.cells)

    def submit_audit(self, job: Job) -> int:
        """Give a frame to the worker for long jobs, as ``submit``; ``on_audit`` is called for it, later."""
        return self._begin(self.workers[self._count], job)

    def _begin(self, worker: Worker, job: Job) -> int:
        cell = worker.cells.pop()
        self._next = request = self._next + 1
        job.submitted = now = time.monotonic()
        worker.jobs[request] = (job, cell)
        self._holders[request] = worker
        length, state = len(job.data), len(job.state)
        self._frames.frame(cell, length)[:] = job.data
        if state:
            self._frames.state(cell, state)[:] = job.state
        message = pack_frame(
            request, cell, job.seq, job.flavour, length, state, job.received, job.deadline, now - job.received
        )
        worker.child.tell(message)
        if self.trace is not None:
            self.trace.span("lane", job.received, now, request, -1)
        return request

    def _least_loaded(self) -> Worker:
        best, most, worth = None, 0, self._worth()
        for worker in self.workers.values():
            if worker.serving:
                if len(worker.cells) > most:
                    best, most = worker, len(worker.cells)
                worth -= 1
                if worth <= 0 and best is not None:
                    break
        assert best is not None, "submit needs a free credit"
        return best

    def cancel(self, request: int) -> None:
        """Its client has left: the worker need not go on. ``on_done`` is called all the same."""
        worker = self._holders.get(request)
        if worker is not None:
            worker.child.tell(pack(Kind.CANCEL, request=request))

    def _finished(self, worker: Worker, message: Message) -> None:
        job, cell = worker.jobs.pop(message.request)
        del self._holders[message.request]
        fate = _FATES[message.status]
        data = bytes(self._frames.packet(cell, message.length)) if message.length else b""
        state = bytes(self._frames.state(cell, message.state)) if message.state else b""
        worker.cells.append(cell)
        if fate is Fate.OK:
            if not worker.audit:
                taken = message.t0 - job.submitted
                self.estimate_s += (taken - self.estimate_s) * (_ESTIMATE_WEIGHT if self.estimate_s else 1.0)
            done = Done(message.request, job, fate, data, state, "", message.f0, message.f1, report=message)
            self._tell(worker, done)
            if self.trace is not None:
                self.trace.span("deliver", message.t0, time.monotonic(), message.request, -1)
        else:
            text = data.decode("utf-8", "replace")
            blame = Blame(message.model)
            self._tell(worker, Done(message.request, job, fate, b"", b"", text, message.f0, message.f1, blame))

    def _tell(self, worker: Worker, done: Done) -> None:
        """Call ``on_done`` or ``on_audit``; what goes wrong there costs this frame only."""
        try:
            if worker.audit:
                self.on_audit(done)
            else:
                self.on_done(done)
        except Exception:
            ids = {"request": done.request, "seq": done.job.seq}
            log.exception("a request ended (%s), but its lane could not be told", done.fate.name, extra=ids)

    # -- processes ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all workers, those to be parked included, and wait until each has proven itself.

        Raises:
            StartFailed: one could not start; the message says why.
        """
        await self.keeper.start(self._count)

    async def start_audit(self) -> None:
        """Start the worker for long jobs, unless it is there, and wait until it has proven itself.

        Raises:
            StartFailed: it could not start; the message says why.
        """
        await asyncio.shield(self.keeper.begin(self._count))

    async def stop(self, limit_s: float) -> None:
        """Let the workers finish what they hold, then end them; those that take longer are killed."""
        await self.keeper.stop(limit_s)
        self._memory.close()

    def check(self, now: float) -> None:
        """Ping silent workers, and put down those that hang, for example in an endless loop. Call it often."""
        for worker in self.workers.values():
            if not worker.ready:
                continue
            pulse = worker.heartbeat.pulse(worker.child.progress.read().loops, now)
            if pulse is Pulse.HANGS:
                self.hangs += 1
                worker.hung = True
                log.error("worker-%d (pid %d) hangs; it is put down", worker.index, worker.child.pid)
                worker.child.kill()
            elif pulse is Pulse.SILENT:
                worker.child.tell(pack(Kind.PING))

    def _spawn(self, index: int, generation: int) -> Worker:
        config = self._config
        first = index * config.credits
        slab = Memory.create(f"slab-{index}", Slab.size(2 * config.credits, config.models))  # see ports.Groups
        settings = {
            "worker": index + 1,
            "generation": generation,
            "pipeline": config.pipeline,
            "options": config.options,
            "limits": config.limits,
            "frame_memory": self._memory.fd,
            "frame_bytes": config.frame_bytes,
            "packet_bytes": config.packet_bytes,
            "slab": slab.fd,
            "models": config.models,
            "first_cell": first,
            "credits": config.credits,
            "memory_limit": config.memory_limit,
            "search_path": config.search_path,
            "trace": config.trace,
            "log_level": config.log_level,
        }
        page, descriptors, audit = config.first_page + index, (self._memory.fd, slab.fd), index == self._count
        try:
            child = Child(_MODULE, f"worker-{index}", settings, self._pages, page, descriptors, idle=audit)
        except OSError:
            slab.close()
            raise
        worker = Worker(index, generation, child, slab, range(first, first + config.credits), config.hang_s)
        worker.audit = audit
        return worker

    def _hear(self, worker: Worker, message: Message) -> None:
        if message.kind == Kind.DONE:
            self._finished(worker, message)
        elif message.kind == Kind.ROUTED:
            self._watcher.worker_routed(worker, message.epoch)
        elif message.kind == Kind.READY:
            worker.ready = True
            self.keeper.proven(worker)
            if worker.audit:
                self.on_audit_credit()
            else:
                self._fill()

    def _fill(self) -> None:
        """Let parked workers serve until as many do as shall."""
        missing = self._config.workers - sum(worker.serving for worker in self.workers.values())
        parked = [worker for worker in self.workers.values() if worker.state == "parked"]
        for worker in parked[: max(0, missing)]:
            worker.serving = True
            self.on_credit()

    def _bury(self, worker: Worker) -> None:
        """Close the books of a worker that has ended: what it still held is lost."""
        self._watcher.worker_ended(worker)
        self._fill()
        if worker.jobs:
            log.warning("worker-%d (pid %d) held %d frames", worker.index, worker.child.pid, len(worker.jobs))
        culprit = worker.child.progress.read().request
        blamed = Blame.SUSPECTED if worker.child.was_killed and not worker.hung else Blame.CERTAIN
        for request, (job, _cell) in worker.jobs.items():
            del self._holders[request]
            blame = blamed if request == culprit else Blame.NONE
            self._tell(worker, Done(request, job, Fate.FAILED, b"", b"", "its worker died", 0.0, 0.0, blame, lost=True))
        worker.slab.close()


def _check_parallel(config: PoolConfig) -> None:
    parallel = max((model.parallel for model in config.models), default=0)
    if config.credits * parallel > _MOST_RUNS:
        raise StartFailed(
            f"{config.credits} credits x Model(parallel={parallel}) are {config.credits * parallel} runs in flight per "
            f"worker; the limit is {_MOST_RUNS}: lower one of them (map() sends any number of items in turns)"
        )
