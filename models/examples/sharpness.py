"""A pipeline of your own, in one file: is this frame sharp, and lit well enough to be worth a closer look?

    framelane serve --pipeline framelane.models.examples.sharpness:Sharpness --models models/examples/models

Copy it as a start. Three things make a pipeline:

1. A folder ``sharpness`` with ``model.onnx`` and ``model.toml``. The tensors in the toml have no batch axis; the ONNX
   file has one in front of each, of any length, since the server puts the frames of several clients into one run.
   This model was written by hand (``models/convert/sharpness.py``): the grey picture, its Laplacian, and statistics.
2. A class with ``run``: bytes of a frame in, fields of the result out. It is plain code that waits for the model in
   one place. It keeps nothing between frames, so it says ``stateful = False``.
3. ``Options``, if it has any: ``--option min_sharpness=80``, or ``min_sharpness = 80`` below ``[options]``.

A module anywhere on ``PYTHONPATH`` will do: ``--pipeline my_module:MyClass --models my/models``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from framelane.models.images import Square, crop
from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result

Level = Annotated[float, msgspec.Meta(ge=0, le=255)]


class Sharpness(Pipeline):
    """``{sharpness, brightness, contrast, verdict}`` of the largest square in the middle of the frame.

    ``sharpness`` is the variance of the Laplacian (Pech-Pacheco et al., "Diatom autofocusing in brightfield
    microscopy", ICPR 2000) at 256 × 256 pixels: some tens where nothing is in focus, hundreds where something is.
    ``brightness`` and ``contrast`` are mean and standard deviation of the grey picture, 0 to 255. ``verdict`` is
    "dark", "bright", "blurred" or "good".
    """

    stateful: ClassVar[bool] = False
    model = Model("sharpness")

    class Options(Pipeline.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Where the verdicts part, in the units of the fields."""

        min_sharpness: Annotated[float, msgspec.Meta(ge=0)] = 100.0
        min_brightness: Level = 40.0
        max_brightness: Level = 225.0

    options: Sharpness.Options

    async def run(self, frame: Frame, lane: Lane) -> Result:
        """See the class."""
        picture = self.model.input()  # the model's own uint8 [256, 256, 3]: what is written here is not copied again
        image = frame.decode(at_least=(picture.shape[1], picture.shape[0]))
        height, width, _ = image.shape
        crop(image, Square(width / 2, height / 2, min(width, height), 0), picture)
        sharpness, brightness, contrast = map(float, await self.model(picture))
        verdict = self._verdict(sharpness, brightness)
        return {"sharpness": sharpness, "brightness": brightness, "contrast": contrast, "verdict": verdict}

    def _verdict(self, sharpness: float, brightness: float) -> str:
        if brightness < self.options.min_brightness:
            return "dark"
        if brightness > self.options.max_brightness:
            return "bright"
        return "good" if sharpness >= self.options.min_sharpness else "blurred"
