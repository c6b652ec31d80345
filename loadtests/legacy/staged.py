"""A pipeline whose stages take as long as they are told, without using the processor: SIMULATED work.

For experiments that need a bottleneck of known size on any machine: each stage holds its thread (a worker's, or the
event loop's) as computing would, and ``decode_ms`` grows with the picture. One run of one model per frame follows.

    framelane serve --pipeline framelane.loadtests.legacy.staged:Staged --option preprocess_ms=20 --device sim:8
"""

from __future__ import annotations

import time
from typing import Annotated, ClassVar

import msgspec

from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result

_PIXELS = 640 * 480
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=10_000)]


class Staged(Pipeline):
    """Answers ``{width, height}`` after the stages."""

    stateful: ClassVar[bool] = False
    model = Model("blazeface_short")

    class Options(Pipeline.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """How long each stage takes.

        Attributes:
            decode_ms: for a picture of 640 × 480; in proportion to the pixels for others.
            preprocess_ms: before the model.
            python_ms: after the model, whatever the picture: all the rest that a worker does.
        """

        decode_ms: Milliseconds = 1.0
        preprocess_ms: Milliseconds = 1.0
        python_ms: Milliseconds = 0.0

    options: Staged.Options

    async def run(self, frame: Frame, lane: Lane) -> Result:
        """See the class."""
        width, height, _ = frame.size
        _hold(self.options.decode_ms * width * height / _PIXELS + self.options.preprocess_ms)
        await self.model(self.model.input())
        _hold(self.options.python_ms)
        return {"width": width, "height": height}


def _hold(ms: float) -> None:
    """Keep this thread for so long."""
    if ms:
        time.sleep(ms / 1000)
