"""A slot's process whose card is host memory: everything that a slot does on a card, on a machine without one.

``CARD_BATCH`` is the largest batch. With ``CARD_GATE``, a folder, each batch that is gathered leaves a file
``gathered-N`` there, and each run waits until there is a file ``open-N``. ``CARD_GAIN`` is what a thread for the runs
brings. With ``CARD_LOST`` a run that raises was the card's last.
"""

import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framelane.models.cuda import CudaError, HostCard
from framelane.models.devices import Device
from framelane.models.registry import ModelSpec
from framelane.models.session import Batch, Bound, OnnxSession
from framelane.server.slots import opening, process

_gathered, _run = itertools.count(1), itertools.count(1)


class OnceEntered(HostCard):
    """Refuses copies on a thread that has not entered it, as a card's driver does."""

    def __init__(self) -> None:
        self.here = threading.local()
        self.here.entered = True

    def enter_thread(self) -> None:
        self.here.entered = True

    def upload(self, target: int, source: int, nbytes: int) -> None:
        assert getattr(self.here, "entered", False), "this thread has not entered the card"
        super().upload(target, source, nbytes)

    download = upload

    def check(self) -> None:
        if os.environ.get("CARD_LOST"):
            raise CudaError("cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")


class CardSession(OnnxSession):
    gate = os.environ.get("CARD_GATE", "")

    def warm_up(self) -> dict[int, float]:
        timings = super().warm_up()
        self.best_batch = int(os.environ.get("CARD_BATCH", "1"))
        return timings

    def gather(self, items: Sequence[Bound]) -> Batch:
        batch = super().gather(items)
        if self.gate and items[0].inputs[0].any():
            Path(self.gate, f"gathered-{next(_gathered)}").write_text(str(len(items)))
        return batch

    def execute(self, batch: Batch) -> None:
        if self.gate and batch.items[0].inputs[0].any():
            mine = Path(self.gate, f"open-{next(_run)}")
            while not mine.exists():
                time.sleep(0.005)
        super().execute(batch)


def open_card(spec: ModelSpec, device: Device, *_: Any) -> OnnxSession:
    return CardSession(spec, device, card=OnceEntered())


if __name__ == "__main__":
    opening.open_session = open_card
    opening.gain = lambda _session, _run_ms: float(os.environ.get("CARD_GAIN", "2"))
    process.main()
