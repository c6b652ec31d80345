"""What the lanes need of the pool (``preprocess/pool.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from framelane.preprocess.pool import Done, Job


class Workers(Protocol):
    """Whoever works on frames. ``estimate_s`` is what a frame takes from ``submit`` to its result, queues included."""

    estimate_s: float
    on_done: Callable[[Done], None]
    on_credit: Callable[[], None]

    @property
    def free(self) -> int:
        """How many frames could be submitted now."""

    def submit(self, job: Job) -> int:
        """Begin a frame; the request's number. ``on_done`` is called exactly once for it, later."""

    def cancel(self, request: int) -> None:
        """Nobody waits for it any more. ``on_done`` is called all the same."""
