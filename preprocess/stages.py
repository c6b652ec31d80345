"""Where the time of frames goes, counted by the process that spends it, in shared memory that outlives it.

Each worker and slot has a few histograms behind its progress page. Counting a frame is an addition or two per stage;
nobody is told, and the gateway reads the sums when somebody asks. A process that takes over a dead one's page goes on
counting where that one stopped, so the counters never fall.

    received ── queue ──▶ submitted ── worker_wait ──▶ began ── preprocess, slot_wait, run, postprocess ──▶ finished
             └ gateway              └ worker                                                         deliver ┘ gateway

The stages of a frame add up to its age. ``preprocess`` is what its worker does before and between model runs,
``slot_wait`` what a model call takes beyond its run (its way to the slot, waiting there, and waiting for the worker).
"""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import NamedTuple

EDGES_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper edges of a stage's buckets, in seconds."""

BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64)
"""Upper edges of the buckets of batch sizes."""


class Stage(StrEnum):
    """The stages of a frame, in order."""

    QUEUE = "queue"
    WORKER_WAIT = "worker_wait"
    PREPROCESS = "preprocess"
    SLOT_WAIT = "slot_wait"
    RUN = "run"
    POSTPROCESS = "postprocess"
    DELIVER = "deliver"


WORKER_STAGES = (Stage.WORKER_WAIT, Stage.PREPROCESS, Stage.SLOT_WAIT, Stage.RUN, Stage.POSTPROCESS)

_STRIDE = len(EDGES_S) + 2  # the buckets, the one above them, and the sum
_BATCHES = len(WORKER_STAGES) * _STRIDE
_FIELDS = _BATCHES + len(BATCH_EDGES) + 2
STAGES_BYTES = 8 * _FIELDS


class Tally(NamedTuple):
    """One histogram as it was read: counts by bucket, the last one without an upper edge, and the sum."""

    buckets: tuple[int, ...]
    sum: float

    @property
    def entries(self) -> int:
        """How many were counted."""
        return sum(self.buckets)

    def __add__(self, other: object) -> Tally:
        if not isinstance(other, Tally):
            return NotImplemented
        return Tally(tuple(a + b for a, b in zip(self.buckets, other.buckets, strict=True)), self.sum + other.sum)

    def since(self, before: Tally) -> Tally:
        """What was counted after ``before``."""
        return Tally(tuple(a - b for a, b in zip(self.buckets, before.buckets, strict=True)), self.sum - before.sum)


NO_STAGE = Tally((0,) * (len(EDGES_S) + 1), 0.0)
NO_BATCH = Tally((0,) * (len(BATCH_EDGES) + 1), 0.0)


class StagePage:
    """The histograms of one process.

    Args:
        view: ``STAGES_BYTES`` bytes of shared memory.
    """

    __slots__ = ("_float", "_int")

    def __init__(self, view: memoryview) -> None:
        self._int = view[:STAGES_BYTES].cast("Q")
        self._float = view[:STAGES_BYTES].cast("d")

    def answered(self, worker_wait: float, preprocess: float, slot_wait: float, run: float, postprocess: float) -> None:
        """A worker has finished a frame that took so many seconds in each stage."""
        counts, sums, at = self._int, self._float, 0
        for seconds in (worker_wait, preprocess, slot_wait, run, postprocess):
            counts[at + bisect_left(EDGES_S, seconds)] += 1
            at += _STRIDE
            sums[at - 1] += seconds

    def ran(self, batch: int) -> None:
        """A slot has made a run of so many items."""
        self._int[_BATCHES + bisect_left(BATCH_EDGES, batch)] += 1
        self._float[_FIELDS - 1] += batch

    def stage(self, stage: Stage) -> Tally:
        """The frames of a worker's stage."""
        start = WORKER_STAGES.index(stage) * _STRIDE
        return Tally(tuple(self._int[start : start + _STRIDE - 1]), self._float[start + _STRIDE - 1])

    def batches(self) -> Tally:
        """The runs of a slot by the number of their items."""
        return Tally(tuple(self._int[_BATCHES : _FIELDS - 1]), self._float[_FIELDS - 1])
