"""What a replica did between two looks at it: rates, shares and means, from counters that only rise. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from framelane.preprocess.stages import Stage, Tally
from framelane.server.lanes.accounts import AGE_BUCKETS_S

from .lag import EDGES_S as LAG_EDGES_S


class Reading(NamedTuple):
    """One process at one moment; seconds since the start of the replica, over all processes that had this place.

    ``busy_s`` counts the wall clock while it works on something, waiting for a core included; of that ``core_wait_s``
    it could have run but had no core; ``cpu_s`` is what it computed.
    """

    kind: str
    id: str
    pid: int
    state: str
    busy_s: float
    cpu_s: float
    core_wait_s: float
    done: int
    frames: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is counted, at one moment (``at``: monotonic seconds), and what is so just then."""

    at: float
    received: int
    delivered: int
    dropped: Mapping[str, int]
    refused: int
    left: int
    shed: int
    told: int
    bytes_in: int
    bytes_out: int
    ages: Sequence[int]
    stages: Mapping[Stage, Tally]
    batches: Tally
    lag: Sequence[int]
    processes: Sequence[Reading]
    machine_s: float
    turned_away: int
    clients: int
    admitted: int
    waiting: int
    senders: int
    blocked: int
    capacity_fps: float
    pace_ms: int
    held_back: bool
    gil: float | None = None
    gpus: Sequence[Mapping[str, object]] = ()


class Load(msgspec.Struct, frozen=True):
    """One process in a window: shares of its time. ``busy`` includes ``core_wait``; ``cpu`` may exceed 1."""

    kind: str
    id: str
    state: str
    busy: float
    cpu: float
    core_wait: float = 0.0
    done_fps: float = 0.0

    @property
    def serves(self) -> bool:
        """Whether frames of clients go through it."""
        return self.state == "active"


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A replica over some seconds. Rates are per second, times in seconds; None: nothing came that could tell.

    Attributes:
        clients, admitted, waiting, senders: connected; with a place; waiting for one; sending frames lately.
        blocked: clients that have not read what was last written to them, on average.
        received_fps, delivered_fps: messages from clients, and results that transports have accepted.
        dropped_fps, shed_fps, left_fps: frames without a result: by reason, not read, and whose client went.
        told_fps: packets to clients that were no results.
        stages: mean seconds of a frame in each stage.
        ages: results by age, in the buckets of ``accounts.AGE_BUCKETS_S``.
        cores: what this replica may use; of these ``others`` were used by other programs.
        capacity_fps: frames per second that can be sustained, as far as it was measured; infinity: not known.
        held_back: clients wait, or are asked to send less than they might.
        gil: share of the time in which the gateway's lock of the interpreter was taken; gpu: of the busiest device.
    """

    seconds: float
    clients: int = 0
    admitted: int = 0
    waiting: int = 0
    senders: int = 0
    blocked: float = 0.0
    received_fps: float = 0.0
    delivered_fps: float = 0.0
    dropped_fps: Mapping[str, float] = {}
    refused_fps: float = 0.0
    shed_fps: float = 0.0
    left_fps: float = 0.0
    told_fps: float = 0.0
    turned_away: int = 0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    stages: Mapping[Stage, float] = {}
    ages: Sequence[int] = ()
    batch: float | None = None
    lag: Sequence[int] = ()
    loads: Sequence[Load] = ()
    cores: float = 1.0
    others: float = 0.0
    capacity_fps: float = float("inf")
    pace_ms: int = 0
    held_back: bool = False
    gil: float | None = None
    gpu: float | None = None

    @property
    def ended_fps(self) -> float:
        """Frames that got their fate, those apart whose client went."""
        return self.delivered_fps + self.shed_fps + sum(self.dropped_fps.values())

    @property
    def delivery(self) -> float | None:
        """Results delivered per frame."""
        return self.delivered_fps / self.ended_fps if self.ended_fps > 0 else None

    def age_s(self, share: float) -> float | None:
        """The age that such a share of the results stay below."""
        return quantile(AGE_BUCKETS_S, self.ages, share)

    def lag_s(self, share: float) -> float | None:
        """How late timers of the event loop were, likewise."""
        return quantile(LAG_EDGES_S, self.lag, share)

    def of(self, kind: str) -> list[Load]:
        """The processes of a kind that serve clients."""
        return [load for load in self.loads if load.kind == kind and load.serves]


def between(before: Sample, after: Sample, cores: float, blocked: float | None = None) -> Window:
    """What happened from one moment to another one, some seconds later.

    Args:
        before, after: the moments.
        cores: that the replica may use.
        blocked: clients that did not read, on average, where more than the last moment is known.
    """
    seconds = max(after.at - before.at, 1e-9)

    def rate(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name)) / seconds

    loads = _loads(before, after, seconds)
    own = sum(load.cpu for load in loads)
    return Window(
        seconds=seconds,
        clients=after.clients,
        admitted=after.admitted,
        waiting=after.waiting,
        senders=after.senders,
        blocked=after.blocked if blocked is None else blocked,
        received_fps=rate("received"),
        delivered_fps=rate("delivered"),
        dropped_fps={key: (count - before.dropped.get(key, 0)) / seconds for key, count in after.dropped.items()},
        refused_fps=rate("refused"),
        shed_fps=rate("shed"),
        left_fps=rate("left"),
        told_fps=rate("told"),
        turned_away=after.turned_away - before.turned_away,
        bytes_in=rate("bytes_in"),
        bytes_out=rate("bytes_out"),
        stages=_means(before.stages, after.stages),
        ages=_rise(before.ages, after.ages),
        batch=_mean(before.batches, after.batches),
        lag=_rise(before.lag, after.lag),
        loads=loads,
        cores=cores,
        others=max(0.0, rate("machine_s") - own),
        capacity_fps=after.capacity_fps,
        pace_ms=after.pace_ms,
        held_back=before.held_back and after.held_back,
        gil=after.gil,
        gpu=max((float(str(gpu["utilisation"])) for gpu in after.gpus if "utilisation" in gpu), default=None),
    )


def quantile(edges: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Where such a share of a histogram lies below, straight between a bucket's edges; None of an empty one."""
    wanted, below = share * sum(counts), 0
    if not wanted:
        return None
    for index, count in enumerate(counts):
        if count and below + count >= wanted:
            low = edges[index - 1] if index else 0.0
            high = edges[index] if index < len(edges) else edges[-1]
            return low + (high - low) * (wanted - below) / count
        below += count
    return edges[-1]


def _loads(before: Sample, after: Sample, seconds: float) -> list[Load]:
    earlier = {reading.id: reading for reading in before.processes}
    loads = []
    for now in after.processes:
        then = earlier.get(now.id)
        if then is None or then.kind != now.kind:
            loads.append(Load(now.kind, now.id, now.state, 0.0, 0.0))
            continue
        cpu = max(0.0, now.cpu_s - then.cpu_s) / seconds
        wait = max(0.0, now.core_wait_s - then.core_wait_s) / seconds
        busy = min(1.0, max(0.0, now.busy_s - then.busy_s) / seconds)
        done = max(0, now.done - then.done) / seconds
        loads.append(Load(now.kind, now.id, now.state, busy, cpu, wait, done))
    return loads


def _means(before: Mapping[Stage, Tally], after: Mapping[Stage, Tally]) -> dict[Stage, float]:
    means = {stage: _mean(before[stage], tally) for stage, tally in after.items() if stage in before}
    return {stage: mean for stage, mean in means.items() if mean is not None}


def _mean(before: Tally, after: Tally) -> float | None:
    count = after.entries - before.entries
    return (after.sum - before.sum) / count if count > 0 else None


def _rise(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [max(0, now - then) for then, now in zip(before, after, strict=True)]
