"""The worker's process: turns frames into finished packets, many at a time, on one thread.

``python -m framelane.preprocess.worker`` is started by the pool (``pool.py``). Its loop waits on one epoll: for frames
from the gateway and for finished model runs from the slots. Continuations of started frames go before new frames: a
frame that is nearly done must not wait for one that has just begun.

A pipeline is a coroutine that awaits nothing but its models. When it does, the tensors are already in the worker's
slab, and the worker tells a slot which cells to run; when they have run, the coroutine is resumed with copies of the
outputs. There is no event loop and no task object: a ``Task`` here is one frame, and credits bound how many there are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import sys
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec

from framelane.models.errors import InvalidFrame, PipelineError
from framelane.models.pipeline import Call, Frame, Lane, Outputs, Pipeline, load_pipeline

from . import packets
from .children import Birth, born
from .decode import ImageDecoder
from .headers import Limits
from .links import Links, ModelFailed, NoSlotLeft, SlotsEnded
from .logs import set_up_logs
from .memory import STATE_BYTES, FrameCells, Memory, ModelCells, Slab
from .messages import Blame, Fate, Kind, Message, PeerGone, pack, pack_done
from .ports import Groups, SlabPort
from .trace import open_trace

log = logging.getLogger("framelane.worker")

_PARKED_POLL_S = 0.02


class WorkerConfig(msgspec.Struct, frozen=True):
    """What the pool tells a worker at its birth. Descriptors are inherited under the same numbers."""

    worker: int
    generation: int
    pipeline: str
    options: dict[str, Any]
    limits: Limits
    frame_memory: int
    frame_bytes: int
    packet_bytes: int
    slab: int
    models: list[ModelCells]
    first_cell: int
    credits: int
    memory_limit: int
    search_path: str = ""
    trace: str = ""
    log_level: str = "INFO"


class Task:
    """One frame in work."""

    __slots__ = (
        "began",
        "call_started",
        "cancelled",
        "inference",
        "lane",
        "message",
        "outputs",
        "outstanding",
        "ran",
        "steps",
        "worked",
    )

    def __init__(self, message: Message, steps: Coroutine[Call, list[Outputs], Any], lane: Lane, began: float) -> None:
        self.message = message
        self.began = began
        self.steps = steps
        self.lane = lane
        self.outputs: list[Any] = []
        self.outstanding = 0
        self.cancelled = False
        self.worked = 0.0
        self.inference = 0.0
        self.ran = 0.0
        self.call_started = 0.0


class Worker:
    """The loop. Constructed by ``main``; ``run`` returns when the gateway says STOP or is gone."""

    def __init__(self, birth: Birth, config: WorkerConfig, pipeline: Pipeline) -> None:
        self._gateway = birth.channel
        self._progress = birth.progress
        self._config = config
        self._pipeline = pipeline
        self._decoder = ImageDecoder(config.limits)
        self._cells = FrameCells(Memory.attach(config.frame_memory), config.frame_bytes, config.packet_bytes)
        self._slab = Slab(Memory.attach(config.slab), config.models)
        self._groups = Groups(config.credits)
        self._ports: list[SlabPort] = []
        self._models = pipeline.bind(self._port)
        self._epoll = select.epoll()
        self._links = Links(self._epoll, birth.pages, config.worker << 16 | config.generation & 0xFFFF)
        self._waiting: deque[Message] = deque()
        self._tasks: dict[int, Task] = {}
        self._stopping = False
        self._trace = open_trace(config.trace, f"worker-{config.worker - 1}")

    def run(self) -> None:
        """Serve until told to stop."""
        self._epoll.register(self._gateway.fileno(), select.EPOLLIN)
        gateway = self._gateway.fileno()
        now = time.monotonic
        self._progress.awake(now())
        while not (self._stopping and not self._tasks and not self._waiting):
            self._progress.turn()
            if self._waiting:
                events = self._epoll.poll(0)
            else:
                self._progress.asleep(now())
                events = self._epoll.poll(_PARKED_POLL_S if self._links.parked else None)
                self._progress.awake(now())
            for descriptor, _ in events:
                if descriptor == gateway:
                    self._hear_gateway()
                else:
                    self._hear_slot(descriptor)
            if self._links.parked:
                self._retry_parked()
            if self._waiting:
                self._start(self._waiting.popleft())
            self._progress.wait(len(self._waiting) + len(self._tasks))

    # -- what arrives ------------------------------------------------------------------------------------------------

    def _hear_gateway(self) -> None:
        for message in self._gateway.receive():
            kind = message.kind
            if kind == Kind.FRAME:
                self._waiting.append(message)
            elif kind == Kind.CANCEL:
                self._cancel(message.request)
            elif kind == Kind.PEER:
                self._links.add(message.cell, message.generation, message.length, self._gateway.descriptors.popleft())
            elif kind == Kind.ROUTES:
                self._links.route(message.epoch, message.request, bool(message.status))
                self._retry_parked()
            elif kind == Kind.GONE:
                self._finish_runs(self._links.gone(message.cell, message.generation, message.request))
                self._groups.release((message.cell, message.generation))
                self._retry_parked()
            elif kind == Kind.QUARANTINE:
                self._quarantine((message.cell, message.generation))
            elif kind == Kind.STOP:
                self._stopping = True
        self._acknowledge_routes()

    def _hear_slot(self, descriptor: int) -> None:
        self._finish_runs(self._links.receive(descriptor))
        self._acknowledge_routes()

    def _acknowledge_routes(self) -> None:
        if self._links.unacknowledged and (epoch := self._links.drained_epoch()):
            self._gateway.send(pack(Kind.ROUTED, epoch=epoch))

    def _cancel(self, request: int) -> None:
        for message in self._waiting:
            if message.request == request:
                self._waiting.remove(message)
                self._report(message, Fate.LEFT)
                return
        task = self._tasks.get(request)
        if task is not None:
            task.cancelled = True  # its cells may be in a slot's hands: it ends when they are back
            self._links.cancel(task)

    # -- frames ------------------------------------------------------------------------------------------------------

    def _start(self, message: Message) -> None:
        started = time.monotonic()
        if started > message.t1:
            self._report(message, Fate.EXPIRED)
            return
        frame = Frame(self._cells.frame(message.cell, message.length), message.seq, self._decoder)
        lane = Lane(bytes(self._cells.state(message.cell, message.state)))
        task = Task(message, self._pipeline.run(frame, lane), lane, started)
        self._tasks[message.request] = task
        self._advance(task, None, started)

    def _advance(
        self, task: Task, outputs: list[Outputs] | None, started: float, error: Exception | None = None
    ) -> None:
        """Run the pipeline of one frame up to its next model call, or to its end."""
        self._progress.start(task.message.request, started)
        self._groups.running = group = self._groups.of[self._credit(task)]
        for model in self._models:
            model.lent = 0
        finished: StopIteration | None = None
        try:
            call = task.steps.throw(error) if error else task.steps.send(outputs)  # type: ignore[arg-type]
        except StopIteration as stop:
            finished = stop  # delivered below: within this block a log would show the whole result as its context
        except InvalidFrame as problem:
            self._end(task, Fate.INVALID, problem.message)
        except NoSlotLeft:
            self._end(task, Fate.EXPIRED)
        except Exception as problem:
            if not isinstance(problem, ModelFailed):
                log.exception("pipeline %s failed", self._config.pipeline, extra=_ids(task.message))
            blame = problem.blame if isinstance(problem, SlotsEnded) else Blame.NONE
            self._end(task, Fate.FAILED, f"{type(problem).__name__}: {problem}", blame)
        else:
            self._call(task, call, group)
            task.worked += time.monotonic() - started
        if finished is not None:
            self._deliver(task, finished.value, started)
        self._progress.finish()
        if self._trace is not None:
            name = "postprocess" if finished is not None and outputs is not None else "worker"
            self._trace.span(name, started, time.monotonic(), task.message.request)

    def _call(self, task: Task, call: Call, group: int) -> None:
        port = getattr(call, "port", None)
        if not isinstance(port, SlabPort):
            self._end(task, Fate.FAILED, f"a pipeline may only await its models, not {type(call).__name__}")
            return
        model = port.index
        task.outputs = [None] * len(call.cells)
        task.outstanding = len(call.cells)
        task.call_started = time.monotonic()
        for position, item in enumerate(call.cells):
            self._links.run(task, position, model, port.cell(group, item), task.message.t1)

    def _finish_runs(self, runs: list[Any]) -> None:
        """Take the outputs of finished model runs, and resume the frames that have all of theirs."""
        for run, error in runs:
            task: Task = run.task
            task.outstanding -= 1
            if error is not None:
                task.outputs[run.position] = error
            elif not task.cancelled:
                try:
                    task.outputs[run.position] = self._ports[run.model].outputs(run.cell)
                except ModelFailed as failure:
                    log.error("%s", failure.message)  # the slot could not know
                    task.outputs[run.position] = failure
            if task.outstanding == 0:
                task.ran += run.ran_s  # of the call's last item: the others ran beside it, or before, while it waited
                self._resume(task)

    def _resume(self, task: Task) -> None:
        now = time.monotonic()
        task.inference += now - task.call_started
        if task.cancelled:
            self._end(task, Fate.LEFT)
            return
        failed = next((output for output in task.outputs if isinstance(output, Exception)), None)
        self._advance(task, task.outputs, now, failed)

    def _quarantine(self, slot: tuple[int, int]) -> None:
        """A slot cannot be killed: send copies of what it has elsewhere, and leave its cells alone until it ends."""
        runs = self._links.quarantine(*slot)
        tasks = dict.fromkeys(run.task for run in runs)
        groups = {task: self._groups.exchange(self._credit(task), slot) for task in tasks}
        for run in runs:
            run.cell = self._ports[run.model].move(run.cell, groups[run.task])
        self._retry_parked()

    def _credit(self, task: Task) -> int:
        return task.message.cell - self._config.first_cell

    def _retry_parked(self) -> None:
        self._finish_runs(self._links.retry_parked(time.monotonic()))

    # -- how frames end ----------------------------------------------------------------------------------------------

    def _deliver(self, task: Task, result: Any, started: float) -> None:
        """Encode the finished packet into the frame's cell and report it."""
        message = task.message
        try:
            state = bytes(task.lane.state)
            if len(state) > STATE_BYTES:
                raise PipelineError(f"lane.state has {len(state)} bytes; the limit is {STATE_BYTES}")
            now = time.monotonic()
            worked = task.worked + now - started
            timing = {
                "queue_ms": round(message.f0 * 1000, 3),
                "preprocess_ms": round(worked * 1000, 3),
                "inference_ms": round(task.inference * 1000, 3),
                "total_ms": round((now - message.t0) * 1000, 3),
            }
            packet = packets.encode_event(message.flavour, "result", {**result, "seq": message.seq, "timing": timing})
            if len(packet) > self._config.packet_bytes:
                raise PipelineError(f"the result has {len(packet)} bytes; the limit is {self._config.packet_bytes}")
        except Exception as problem:
            log.exception("pipeline %s gave no usable result", self._config.pipeline, extra=_ids(task.message))
            self._end(task, Fate.FAILED, f"{type(problem).__name__}: {problem}")
            return
        self._cells.packet(message.cell, len(packet))[:] = packet
        self._cells.state(message.cell, len(state))[:] = state
        del self._tasks[message.request]
        self._account(task, len(packet), len(state), started)

    def _account(self, task: Task, packet: int, state: int, resumed: float) -> None:
        """Report a result, and count where its frame's time went."""
        message, finished = task.message, time.monotonic()
        last = finished - resumed
        before, after = (task.worked, last) if task.inference else (last, 0.0)
        ran = min(task.ran, task.inference)
        waited = max(0.0, task.began - message.t0 - message.f0)
        self._progress.stages.answered(waited, before, task.inference - ran, ran, after)
        self._gateway.send(
            pack_done(
                message.request, message.cell, Fate.OK, packet, state, before + after, task.inference, Blame.NONE,
                finished, task.began, int(ran * 1e6), int(after * 1e6),
            )
        )  # fmt: skip

    def _end(self, task: Task, fate: Fate, text: str = "", blame: Blame = Blame.NONE) -> None:
        """End a frame without a result."""
        del self._tasks[task.message.request]
        with contextlib.suppress(Exception):  # a pipeline may await in its `finally`, or raise there
            task.steps.close()
        data = text.encode(errors="replace")[: self._config.packet_bytes]
        self._cells.packet(task.message.cell, len(data))[:] = data
        self._report(task.message, fate, len(data), task.worked, task.inference, blame)

    def _report(
        self,
        message: Message,
        fate: Fate,
        length: int = 0,
        worked: float = 0.0,
        inference: float = 0.0,
        blame: Blame = Blame.NONE,
    ) -> None:
        """Report a frame that has no result."""
        finished = time.monotonic()
        self._gateway.send(
            pack_done(message.request, message.cell, fate, length, 0, worked, inference, blame, finished)
        )

    def _port(self, model: Any) -> SlabPort:
        port = SlabPort(self._groups, self._slab, len(self._ports), model.name)
        self._ports.append(port)
        return port


def _ids(message: Message) -> dict[str, int]:
    """Which frame a log line is about."""
    return {"request": message.request, "seq": message.seq}


def describe(pipeline: Pipeline) -> dict[str, Any]:
    """What the gateway must know of a pipeline, which it cannot import: its models, and whether it keeps state."""
    models = [{"name": model.name, "parallel": model.parallel} for model in pipeline.models().values()]
    return {"models": models, "stateful": pipeline.stateful}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the process. With ``describe`` in its configuration it only reports on the pipeline and ends."""
    birth = born(sys.argv if argv is None else argv)
    with birth.failures():
        _prepare(birth.config)
        if "describe" in birth.config:
            birth.ready(describe(load_pipeline(birth.config["describe"], birth.config["options"])))
            return
        config = msgspec.convert(birth.config, WorkerConfig)
        worker = Worker(birth, config, load_pipeline(config.pipeline, config.options))
        birth.ready({"pid": os.getpid()})
    with contextlib.suppress(PeerGone):  # the gateway is gone: nobody is left to answer to
        worker.run()


def _prepare(config: dict[str, Any]) -> None:
    import cv2

    set_up_logs(config.get("log_level", "INFO"))
    if config.get("memory_limit"):  # beyond it, allocating raises MemoryError: the frame fails, and the worker lives
        resource.setrlimit(resource.RLIMIT_DATA, (config["memory_limit"], config["memory_limit"]))
    cv2.setNumThreads(1)
    if config.get("search_path"):
        sys.path.append(config["search_path"])  # last, so that no file of the user's shadows a library


if __name__ == "__main__":
    main()
