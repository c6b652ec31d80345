"""A pipeline whose results fill the buffers of whoever does not read them: ``--pipeline heavy_pipelines:Heavy``."""

from typing import ClassVar

from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result


class Heavy(Pipeline):
    """One run of a model, and a large answer."""

    stateful: ClassVar[bool] = False
    model = Model("blazeface_short")

    async def run(self, frame: Frame, lane: Lane) -> Result:
        await self.model(self.model.input())
        return {"ballast": bytes(190_000)}
