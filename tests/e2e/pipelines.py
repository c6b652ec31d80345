"""Pipelines of a user, as tests need them: ``--pipeline pipelines:Class`` from this folder."""

import zlib
from typing import ClassVar

from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result


class Mirror(Pipeline):
    """Says what it saw, after one run of a model, so that a frame spends time in a worker and in a slot."""

    stateful: ClassVar[bool] = False
    model = Model("blazeface_short")

    async def run(self, frame: Frame, lane: Lane) -> Result:
        checksum = zlib.crc32(frame.data)
        await self.model(self.model.input())
        width, height, _ = frame.size
        return {"width": width, "height": height, "checksum": checksum}


class Large(Pipeline):
    """Answers with far more than anybody's socket buffers hold."""

    stateful: ClassVar[bool] = False

    async def run(self, frame: Frame, lane: Lane) -> Result:
        return {"ballast": bytes(200_000)}


class Faulty(Pipeline):
    """Raises for every frame, the sample picture included."""

    async def run(self, frame: Frame, lane: Lane) -> Result:
        raise ValueError("this pipeline has a fault")


class NoModel(Pipeline):
    """Wants a model that nobody has."""

    model = Model("nobody_has_it")


class NoPipeline:
    """Has no base class."""
