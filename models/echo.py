"""The pipeline without a model: what it costs to bring a frame in and an answer out."""

from __future__ import annotations

from typing import ClassVar

from framelane.models.pipeline import Frame, Lane, Pipeline, Result


class Echo(Pipeline):
    """Answers ``{width, height, format}`` from the image's header; no pixel is decoded."""

    stateful: ClassVar[bool] = False

    async def run(self, frame: Frame, lane: Lane) -> Result:
        """Width and height in pixels as displayed, and "jpeg", "png" or "webp"."""
        width, height, name = frame.size
        return {"width": width, "height": height, "format": name}
