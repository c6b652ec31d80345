"""Where a frame is worked on: the four ways of ``faults.py``, each an awaitable call that turns bytes into a result."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cv2
import msgspec
import numpy as np

from framelane.models.devices import parse_device
from framelane.models.inline import Inline, put
from framelane.models.pipeline import Array, Call, Frame, Lane, Model, Outputs, Result, load_pipeline
from framelane.models.registry import ModelSpec, Registry
from framelane.models.session import Session, open_session
from framelane.preprocess.decode import ImageDecoder

from .faults import Faults

_PR_SET_PDEATHSIG = 1


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is run on each frame, and how many threads or processes do so where it is not the loop itself."""

    pipeline: str = "face_mesh"
    options: dict[str, Any] = {}
    models: tuple[str, ...] = ()
    device: str = "cpu"
    parallel: int = 2

    def registry(self) -> Registry:
        """The models at hand."""
        return Registry([Path(folder) for folder in self.models])

    def inline(self) -> Inline:
        """The pipeline, with its models opened here."""
        cv2.setNumThreads(1)
        return Inline(load_pipeline(self.pipeline, self.options), self.registry(), ImageDecoder(), self.device)


class Runner(Protocol):
    """Works on frames."""

    async def run(self, data: bytes, state: bytes) -> tuple[Result, bytes]:
        """The result of a frame, and its client's next state. Raises what the pipeline raises."""

    def close(self) -> None:
        """End threads and processes."""


def make_runner(faults: Faults, work: Work) -> Runner:
    """The runner that has these faults; its threads and processes are ready when this returns."""
    if faults.inline:
        return OnLoop(work) if faults.process else ModelsElsewhere(work)
    return Beside(_threads(work) if faults.process else _processes(work.parallel, _open_pipeline, work))


class OnLoop:
    """Everything on the event loop, which does nothing else meanwhile."""

    def __init__(self, work: Work) -> None:
        self._inline = work.inline()

    async def run(self, data: bytes, state: bytes) -> tuple[Result, bytes]:
        """See ``Runner``."""
        return self._inline(data, state)

    def close(self) -> None:
        """See ``Runner``."""


class Beside:
    """Everything in an executor whose threads or processes each have the pipeline open."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def run(self, data: bytes, state: bytes) -> tuple[Result, bytes]:
        """See ``Runner``."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _run_frame, data, state)

    def close(self) -> None:
        """See ``Runner``."""
        self._executor.shutdown(cancel_futures=True)


class ModelsElsewhere:
    """Images on the event loop; the tensors go to processes that own the models, and are awaited."""

    def __init__(self, work: Work) -> None:
        cv2.setNumThreads(1)
        self._executor = _processes(work.parallel, _open_models, work)
        self._decoder = ImageDecoder()
        self._pipeline = load_pipeline(work.pipeline, work.options)
        registry = work.registry()
        self._models = self._pipeline.bind(lambda model: _Staging(registry.get(model.name), model.parallel))

    async def run(self, data: bytes, state: bytes) -> tuple[Result, bytes]:
        """See ``Runner``."""
        lane = Lane(state)
        steps = self._pipeline.run(Frame(memoryview(data), 0, self._decoder), lane)
        outputs: list[Outputs] | None = None
        while True:
            for model in self._models:
                model.lent = 0
            try:
                call = steps.send(outputs)
            except StopIteration as stop:
                return stop.value, lane.state
            outputs = await self._infer(call)

    async def _infer(self, call: Call) -> list[Outputs]:
        port = call.port
        assert isinstance(port, _Staging)
        items = [port.copies(cell) for cell in call.cells]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, _run_model, port.name, items)

    def close(self) -> None:
        """See ``Runner``."""
        self._executor.shutdown(cancel_futures=True)


class _Staging:
    """The cells of one model whose sessions are in other processes; see ``pipeline.Port``."""

    def __init__(self, spec: ModelSpec, parallel: int) -> None:
        self.name = spec.name
        self.parallel = parallel
        self._cells = [tuple(np.zeros(t.shape, t.dtype) for t in spec.inputs) for _ in range(parallel)]

    def lend(self, cell: int) -> Outputs:
        """See ``pipeline.Port``."""
        return self._cells[cell]

    def stage(self, cell: int, inputs: Sequence[Array]) -> None:
        """See ``pipeline.Port``."""
        put(self.name, self._cells[cell], inputs)

    def copies(self, cell: int) -> Outputs:
        """What is staged, owned: it is pickled later, by a thread, when another frame may have been staged."""
        return tuple(array.copy() for array in self._cells[cell])


# -- in threads and processes ----------------------------------------------------------------------------------------

_here = threading.local()
"""What the initializer of a thread, or of a process's one thread, has opened: a pipeline, or sessions by model."""


class _Opened(NamedTuple):
    session: Session
    inputs: Outputs
    outputs: Outputs
    bound: Any


def _threads(work: Work) -> Executor:
    executor = ThreadPoolExecutor(work.parallel, initializer=lambda: setattr(_here, "inline", work.inline()))
    return _warm(executor, work.parallel)


def _processes(count: int, initializer: Callable[[Work], None], work: Work) -> Executor:
    """Started afresh, never forked: the parent has threads and sockets."""
    context = multiprocessing.get_context("spawn")
    return _warm(ProcessPoolExecutor(count, context, initializer, (work,)), count)


def _warm(executor: Executor, count: int) -> Executor:
    """All threads or processes of the executor have started and opened what they need."""
    for ready in [executor.submit(_together, count) for _ in range(count)]:
        ready.result(timeout=60)
    return executor


def _together(count: int) -> None:
    """Keep one of them busy for a moment, so that the others are needed as well."""
    threading.Event().wait(0.05 * (count > 1))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open_pipeline(work: Work) -> None:
    _die_with_parent()
    _here.inline = work.inline()


def _run_frame(data: bytes, state: bytes) -> tuple[Result, bytes]:
    answer: tuple[Result, bytes] = _here.inline(data, state)
    return answer


def _open_models(work: Work) -> None:
    _die_with_parent()
    registry, device = work.registry(), parse_device(work.device)
    models = load_pipeline(work.pipeline, work.options).models().values()
    _here.models = {model.name: _open(model, registry, device) for model in models}


def _open(model: Model, registry: Registry, device: Any) -> _Opened:
    session = open_session(registry.get(model.name), device)
    session.warm_up()
    inputs, outputs = (
        tuple(np.zeros((1, *tensor.shape), tensor.dtype) for tensor in side)
        for side in (session.spec.inputs, session.spec.outputs)
    )
    return _Opened(session, inputs, outputs, session.bind(inputs, outputs))


def _run_model(name: str, items: list[Outputs]) -> list[Outputs]:
    opened: _Opened = _here.models[name]
    answers = []
    for item in items:
        for own, given in zip(opened.inputs, item, strict=True):
            own[0] = given
        opened.session.run([opened.bound])
        answers.append(tuple(array[0].copy() for array in opened.outputs))
    return answers
