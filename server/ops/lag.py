"""How late the event loop is: what everything in the gateway waits for when something keeps the loop busy."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class LoopLag:
    """A histogram of how long after its time a timer was called; several a second are enough."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(EDGES_S) + 1)
        self._sum_s = 0.0

    def late(self, seconds: float) -> None:
        """A timer was called so long after it was due."""
        self._counts[bisect_left(EDGES_S, seconds)] += 1
        self._sum_s += max(0.0, seconds)

    def counts(self) -> tuple[int, ...]:
        """Timers by lag, in the buckets of ``EDGES_S`` and one above."""
        return tuple(self._counts)

    def record(self) -> dict[str, object]:
        """``buckets``: timers that were no later than so many seconds, in Prometheus' manner; ``sum_s`` over all."""
        edges = [*(f"{edge:g}" for edge in EDGES_S), "+Inf"]
        return {"buckets": dict(zip(edges, accumulate(self._counts), strict=True)), "sum_s": round(self._sum_s, 6)}
