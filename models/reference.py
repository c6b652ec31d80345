"""The pipeline ``reference``: a network of known size, for measuring cards.

The bundled models take about a millisecond; models that a card is bought for take more. This one has 120 GFLOP per
frame and weights from a seed, so that everybody's is the same; it computes nothing of use. On an NVIDIA L4 it should
take about 8 ms, at 15 TFLOPS: a quarter of the card's 60 with TF32, and half of its 30 without, as convolutions of one
picture may reach there within 72 W. That is an estimate; no card has measured it yet. On a CPU it takes seconds: there
``--device sim:8`` stands for it, which waits 8 ms and answers every frame with the 128 numbers of one picture of noise.

    framelane serve --pipeline reference --device cuda

The network is generated when it is first asked for, into the cache folder (``XDG_CACHE_HOME``, else ~/.cache).
"""

from __future__ import annotations

from typing import ClassVar

from framelane.models.images import letterbox
from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result
from framelane.models.reference_network import SIDE


class Reference(Pipeline):
    """Answers ``{embedding}``: 128 numbers, float32."""

    stateful: ClassVar[bool] = False
    network = Model("reference")

    async def run(self, frame: Frame, lane: Lane) -> Result:
        """One run of the network on the whole frame."""
        image = frame.decode(at_least=(SIDE, SIDE))
        (embedding,) = await self.network(letterbox(image, out=self.network.input()))
        return {"embedding": embedding}
