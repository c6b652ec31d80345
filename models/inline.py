"""Run a pipeline in this very process, without a server: the bare loop, tests, and an author's first tries.

    run = Inline(load_pipeline("face_mesh"), Registry([]), decoder)
    result, state = run(jpeg_bytes)

It drives the same pipeline class through the same sessions as the server does, with plain arrays for cells. What the
server adds to this is what its benchmarks measure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .devices import Device, parse_device
from .errors import PipelineError
from .pipeline import Array, Call, Decoder, Frame, Lane, Model, Outputs, Pipeline, Result
from .registry import Registry
from .session import Session, open_session


class InlinePort:
    """Cells of one model as plain arrays; see ``pipeline.Port``."""

    def __init__(self, session: Session, parallel: int) -> None:
        self.parallel = parallel
        self.session = session
        spec = session.spec
        self._bound = [
            session.bind(
                tuple(np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.inputs),
                tuple(np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.outputs),
            )
            for _ in range(parallel)
        ]
        self._inputs = [tuple(array[0, ...] for array in bound.inputs) for bound in self._bound]

    def lend(self, cell: int) -> Outputs:
        """See ``pipeline.Port``."""
        return self._inputs[cell]

    def stage(self, cell: int, inputs: Sequence[Array]) -> None:
        """See ``pipeline.Port``."""
        put(self.session.spec.name, self._inputs[cell], inputs)

    def run(self, cells: Sequence[int]) -> list[Outputs]:
        """Run staged cells one after another; owned copies of their outputs."""
        for cell in cells:
            self.session.run([self._bound[cell]])
        return [tuple(array[0].copy() for array in self._bound[cell].outputs) for cell in cells]


class Inline:
    """A pipeline with its models opened in this process; calling it turns a frame into a result and the next state."""

    def __init__(self, pipeline: Pipeline, registry: Registry, decoder: Decoder, device: Device | str = "cpu") -> None:
        self.pipeline = pipeline
        self._decoder = decoder
        chosen = parse_device(device) if isinstance(device, str) else device

        def port(model: Model) -> InlinePort:
            session = open_session(registry.get(model.name), chosen)
            session.warm_up()
            return InlinePort(session, model.parallel)

        self.models = pipeline.bind(port)

    def __call__(self, data: bytes, state: bytes = b"", seq: int = 0) -> tuple[Result, bytes]:
        """Run one frame. Raises what the pipeline raises (``InvalidFrame`` for a bad image)."""
        lane = Lane(state)
        steps = self.pipeline.run(Frame(memoryview(data), seq, self._decoder), lane)
        outputs: list[Outputs] | None = None
        while True:
            for model in self.models:
                model.lent = 0
            try:
                call = steps.send(outputs)
            except StopIteration as stop:
                return stop.value, lane.state
            if not isinstance(call, Call):
                raise PipelineError(f"a pipeline may only await its models, not {call!r}")
            assert isinstance(call.port, InlinePort)
            outputs = call.port.run(call.cells)


def put(model: str, cell: Sequence[Array], inputs: Sequence[Array]) -> None:
    """Copy one item into a cell's input arrays, unless it already is those arrays.

    Raises:
        PipelineError: number, dtype or shape differ from what the model takes; both are named.
    """
    if len(inputs) == len(cell) == 1 and inputs[0] is cell[0]:
        return  # lent: already there
    if len(cell) != len(inputs):
        raise PipelineError(f"model {model} takes {len(cell)} input(s), not {len(inputs)}")
    for own, given in zip(cell, inputs, strict=True):
        if given is own:
            continue
        if given.shape != own.shape or given.dtype != own.dtype:
            raise PipelineError(
                f"model {model} takes {own.dtype}{list(own.shape)}, not {given.dtype}{list(given.shape)}"
            )
        own[...] = given
