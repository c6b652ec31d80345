"""The contract between Framelane and the author of a pipeline.

A pipeline turns one encoded image into one result. It is straight-line async Python; every ``await`` hands
tensors to a slot and lets the worker serve other frames meanwhile::

    class Classify(Pipeline):
        classifier = Model("my_model")                      # DIR/my_model/{model.onnx, model.toml}

        async def run(self, frame: Frame, lane: Lane) -> Result:
            image = frame.decode()                          # uint8 H x W x 3, RGB, checked before decoding
            (scores,) = await self.classifier(letterbox(image, out=self.classifier.input()))
            return {"label": int(scores.argmax())}

Rules that the worker relies on:

- The only thing a pipeline may await is a model (``await model(...)`` or ``await model.map(...)``).
- One call is one item, without a batch axis; the slot forms batches, across clients, by itself.
- Whatever must be remembered between the frames of a client goes into ``lane.state``: any worker may serve the
  next frame, so attributes of the pipeline object are for constants only.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from .errors import InvalidFrame, PipelineError

Array = npt.NDArray[Any]
Outputs = tuple[Array, ...]
Result = dict[str, Any]
"""JSON-like values, and NumPy arrays: sent as little-endian bytes over the sockets, as nested lists over HTTP."""


class Decoder(Protocol):
    """What a frame needs of an image decoder (``preprocess/decode.py`` is the one in use)."""

    def size(self, data: memoryview) -> tuple[int, int, str]:
        """Read only the header: width and height as displayed, and the format's name."""

    def decode(self, data: memoryview, at_least: tuple[int, int] | None) -> Array:
        """Decode to uint8 height x width x 3, RGB; with ``at_least`` perhaps reduced, never below it."""


class Frame:
    """One encoded image as its client sent it. Valid until ``run`` returns."""

    __slots__ = ("_decoder", "_size", "data", "seq")

    def __init__(self, data: memoryview, seq: int, decoder: Decoder) -> None:
        self.data = data
        self.seq = seq
        self._decoder = decoder
        self._size: tuple[int, int, str] | None = None

    @property
    def size(self) -> tuple[int, int, str]:
        """``(width, height, format)`` from the header: pixels as displayed (EXIF applied); "jpeg", "png" or "webp".

        Raises:
            InvalidFrame: the bytes are no image that Framelane accepts, or one beyond its limits.
        """
        if self._size is None:
            self._size = self._decoder.size(self.data)
        return self._size

    def decode(self, at_least: tuple[int, int] | None = None) -> Array:
        """Return the image as uint8, height x width x 3, RGB, upright.

        Args:
            at_least: ``(width, height)`` in pixels that suffice. JPEGs are then decoded at 1/2, 1/4 or 1/8 where that
                leaves at least this much, which is several times faster; compare the shape with ``size`` for the scale.

        Raises:
            InvalidFrame: as for ``size``, or the image data are damaged or truncated.
        """
        self.size  # noqa: B018 - the header is checked against the limits before a pixel is allocated
        return self._decoder.decode(self.data, at_least)


class Lane:
    """What a pipeline may know of the client: small opaque bytes that travel with its frames.

    ``state`` is empty for the first frame and afterwards what the last *finished* frame of the client left there,
    at most 16 KiB.
    """

    __slots__ = ("state",)

    def __init__(self, state: bytes = b"") -> None:
        self.state = state


class Port(Protocol):
    """Where a model's items are staged: a worker's shared cells, or plain arrays for a pipeline run in-process.

    A port has ``parallel`` cells for the frame that is running now.
    """

    parallel: int

    def lend(self, cell: int) -> Outputs:
        """The input arrays of a cell, one per model input."""

    def stage(self, cell: int, inputs: Sequence[Array]) -> None:
        """Put one item into a cell; an array that was lent for this very cell is not copied."""


class Call:
    """What a pipeline yields to its driver: run these staged cells of one model, resume with their outputs."""

    __slots__ = ("cells", "port")

    def __init__(self, port: Port, cells: Sequence[int]) -> None:
        self.port = port
        self.cells = cells

    def __await__(self) -> Generator[Call, list[Outputs], list[Outputs]]:
        return (yield self)


class _First:
    """Runs one cell when it is awaited, and unwraps its outputs.

    Only then is the item staged: another call of the model that was made before this one was awaited has had its turn.
    """

    __slots__ = ("_cell", "_inputs", "_model", "_port")

    def __init__(self, model: Model, port: Port, cell: int, inputs: tuple[Array, ...]) -> None:
        self._model = model
        self._port = port
        self._cell = cell
        self._inputs = inputs

    def __await__(self) -> Generator[Call, list[Outputs], Outputs]:
        self._port.stage(self._cell, self._inputs)
        self._model.lent = 0
        return (yield Call(self._port, (self._cell,)))[0]


class Model:
    """A model by its folder's name, declared as a class attribute of a pipeline.

    Args:
        name: folder below a models directory.
        parallel: how many items of one frame may be at the slots at once (``map`` sends more in turns). Each costs
            one cell of shared memory per frame in work.
    """

    def __init__(self, name: str, *, parallel: int = 1) -> None:
        if parallel < 1:
            raise PipelineError(f"Model({name!r}): parallel must be at least 1, not {parallel}")
        self.name = name
        self.parallel = parallel
        self.port: Port | None = None
        self.lent = 0
        """Cells lent since the last await; the driver sets it back before each step of a pipeline."""

    def bound(self, port: Port) -> Model:
        """A copy of this declaration that runs through ``port``."""
        model = Model(self.name, parallel=self.parallel)
        model.port = port
        return model

    def input(self, index: int = 0) -> Array:
        """Lend the next cell's own input array (uint8, float32 … as in model.toml, without batch axis).

        Writing into it and passing it to the call saves a copy. It is valid until the next ``await``. Called
        ``parallel`` times it lends as many cells, for ``map``; ``index`` other than 0 chooses a further input of the
        cell that was lent last.
        """
        port = self._bound()
        if index == 0 or not self.lent:
            self.lent += 1
        if self.lent > port.parallel:
            raise PipelineError(f"{self.name}: input() lends {port.parallel} cells per frame; raise Model(parallel=…)")
        return port.lend(self.lent - 1)[index]

    def __call__(self, *inputs: Array) -> _First:
        """Run one item; awaiting gives a tuple with one owned array per model output, without batch axis."""
        return _First(self, self._bound(), max(0, self.lent - 1), inputs)

    async def map(self, items: Iterable[Array | Sequence[Array]]) -> list[Outputs]:
        """Run several items, ``parallel`` at a time; the list has one tuple of owned outputs per item, in order.

        Each item is an array, or one array per model input. Lent arrays must come in the order they were lent.
        """
        port = self._bound()
        self.lent = 0
        pending = [(item,) if isinstance(item, np.ndarray) else tuple(item) for item in items]
        results: list[Outputs] = []
        for start in range(0, len(pending), port.parallel):
            batch = pending[start : start + port.parallel]
            for cell, inputs in enumerate(batch):
                port.stage(cell, inputs)
            results += await Call(port, range(len(batch)))
        return results

    def _bound(self) -> Port:
        if self.port is None:
            raise PipelineError(f"model {self.name!r} is used outside a running pipeline")
        return self.port


class Pipeline:
    """Base class of all pipelines. One object per process serves all clients.

    Class attributes:
        Options: a frozen ``msgspec.Struct`` of the pipeline's settings (``[options]`` in the configuration file,
            ``--option key=value``); unknown keys and wrong types are refused at start.
        stateful: whether ``lane.state`` is used. The frames of a client are then run strictly one after another.
    """

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """No options."""

    stateful: ClassVar[bool] = True

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    async def run(self, frame: Frame, lane: Lane) -> Result:
        """Turn one frame into one result.

        Raises:
            InvalidFrame: the client sent something this pipeline cannot use (``dropped: invalid`` with its message).
                Any other exception is the pipeline's own fault: ``dropped: failed``, logged with its traceback.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `async def run(self, frame, lane)`")

    @classmethod
    def models(cls) -> dict[str, Model]:
        """Attribute name → declared model, in the order of declaration, base classes first."""
        found: dict[str, Model] = {}
        for base in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(base).items() if isinstance(value, Model)})
        return found

    def bind(self, make_port: Callable[[Model], Port]) -> list[Model]:
        """Give every declared model of this object its port; returns the bound models."""
        bound = {name: model.bound(make_port(model)) for name, model in self.models().items()}
        vars(self).update(bound)
        return list(bound.values())


BUILT_IN: Mapping[str, str] = {
    "face_mesh": "framelane.models.face_mesh:FaceMesh",
    "echo": "framelane.models.echo:Echo",
    "reference": "framelane.models.reference:Reference",
}


def load_pipeline(name: str, options: Mapping[str, Any] | None = None) -> Pipeline:
    """Import a built-in pipeline by name, or a user's as ``module:Class``, and construct it with its options.

    Raises:
        PipelineError: no such module or class, not a ``Pipeline``, or options that its ``Options`` does not accept.
    """
    target = BUILT_IN.get(name, name)
    module_name, _, class_name = target.partition(":")
    if not class_name:
        raise PipelineError(f"unknown pipeline {name!r}: use {', '.join(BUILT_IN)}, or module:Class for your own")
    try:
        pipeline = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"pipeline {name!r} cannot be imported: {error}") from error
    if not (isinstance(pipeline, type) and issubclass(pipeline, Pipeline)):
        raise PipelineError(f"pipeline {name!r} is not a subclass of framelane.models.pipeline.Pipeline")
    if not inspect.iscoroutinefunction(pipeline.run):
        raise PipelineError(f"pipeline {name!r}: run must be `async def run(self, frame, lane)` and return its result")
    try:
        settings = msgspec.convert(dict(options or {}), pipeline.Options, strict=False)
    except msgspec.ValidationError as error:
        raise PipelineError(f"option of pipeline {name!r}: {error}") from error
    return pipeline(settings)


__all__ = [
    "Array",
    "Call",
    "Frame",
    "InvalidFrame",
    "Lane",
    "Model",
    "Outputs",
    "Pipeline",
    "PipelineError",
    "Port",
    "Result",
    "load_pipeline",
]
