"""A slot's process whose model ends it on one input, as a fault in a native library would; run in place of the real.

``double`` dies by SIGKILL while it runs an item whose first number is 66.
"""

import os
import signal
from collections.abc import Sequence

from framelane.models.session import Bound, OnnxSession
from framelane.server.slots import process

POISON = 66

_run = OnnxSession.run


def run(self: OnnxSession, items: Sequence[Bound]) -> None:
    if any(item.inputs[0].flat[0] == POISON for item in items):
        os.kill(os.getpid(), signal.SIGKILL)
    _run(self, items)


def warm_up(self: OnnxSession) -> dict[int, float]:
    """Batches are of the size that a test asks for."""
    self.best_batch = int(os.environ.get("FRAGILE_BATCH", "1"))
    return {1: 0.0}


if __name__ == "__main__":
    OnnxSession.run = run
    OnnxSession.warm_up = warm_up
    process.main()
