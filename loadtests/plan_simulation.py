"""The frame's path as a discrete-event simulation, for counts of users that this machine cannot run. No I/O.

    client ─▶ gateway ─▶ mailbox of one (latest wins) ─▶ credit ─▶ worker ─▶ slot ─▶ worker ─▶ gateway ─▶ client

It is calibrated by the stage times of one measured replica (``plan.Stages``) and keeps the server's rules: one frame of
a lane in work and one waiting, lanes served in turn, credits bound what is in the workers, expired frames are dropped
before work. Times vary around their mean (log-normal, ``spread``); all processes share the machine's cores.
"""

from __future__ import annotations

import collections
import math
import random
import statistics
from collections.abc import Generator
from typing import Annotated, Any

import msgspec
import simpy
from msgspec import Meta

from framelane.loadtests.plan import Stages
from framelane.loadtests.probe import percentile

_WARM_UP = 0.15

Steps = Generator[simpy.Event, Any, None]


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated: one replica, or the share of a machine that one has."""

    workers: Annotated[int, Meta(ge=1)] = 2
    slots: Annotated[int, Meta(ge=1)] = 1
    credits: Annotated[int, Meta(ge=1)] = 3
    cores: Annotated[int, Meta(ge=1)] = 2
    deadline_ms: Annotated[float, Meta(gt=0)] = 500.0
    runs: Annotated[int, Meta(ge=1)] = 1
    """Runs per frame; a frame of two runs goes through a slot twice."""
    generator_ms: Annotated[float, Meta(ge=0)] = 0.0
    """Processor time per frame of a load generator on the same cores; 0 where it runs elsewhere."""
    spread: Annotated[float, Meta(ge=0, le=2)] = 0.1


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Users: with ``fps`` each sends on a beat of its own (open loop); with 0 after each answer and ``pause_ms``."""

    users: Annotated[int, Meta(ge=1)]
    fps: Annotated[float, Meta(ge=0)] = 0.75
    pause_ms: Annotated[float, Meta(ge=0)] = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, after the warm-up."""

    sent: int
    results: int
    dropped: int
    per_second: float
    delivery: float
    p50_ms: float
    p95_ms: float
    slots_busy: float
    cores_busy: float


class _Frame:
    """One frame, and what its client waits for."""

    __slots__ = ("answered", "lane", "sent")

    def __init__(self, lane: _Lane, sent: float, answered: simpy.Event) -> None:
        self.lane = lane
        self.sent = sent
        self.answered = answered


class _Lane:
    """A client's mailbox of depth one, and whether a frame of it is in work."""

    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        self.busy = False
        self.waiting: _Frame | None = None


class Simulation:
    """One run.

    Args:
        stages: what a frame takes.
        replica, load: see there.
        seconds: of simulated time; the first part of it is warm-up.
        seed: the same seed gives the same run.
    """

    def __init__(self, stages: Stages, replica: Replica, load: Load, seconds: float = 30.0, seed: int = 0) -> None:
        self._stages = stages
        self._replica = replica
        self._load = load
        self._seconds = seconds
        self._random = random.Random(seed)
        self._env = simpy.Environment()
        self._cores = simpy.Resource(self._env, replica.cores)
        self._gateway = simpy.Resource(self._env, 1)
        self._workers = simpy.Resource(self._env, replica.workers)
        self._slots = simpy.Resource(self._env, replica.slots)
        self._free = replica.workers * replica.credits
        self._ring: collections.deque[_Lane] = collections.deque()
        self._running = 0
        self._estimate = 0.0  # seconds that a frame is in work, as the server estimates it before it begins one
        self._sent = self._dropped = 0
        self._ages: list[float] = []
        self._busy = {"slots": 0.0, "cores": 0.0}

    def run(self) -> Outcome:
        """Simulate."""
        for number in range(self._load.users):
            self._env.process(self._client(number))
        self._env.run(until=self._seconds)
        measured = self._seconds * (1 - _WARM_UP)
        ages = sorted(age * 1000 for age in self._ages)
        decided = len(ages) + self._dropped
        return Outcome(
            sent=self._sent,
            results=len(ages),
            dropped=self._dropped,
            per_second=len(ages) / measured,
            delivery=len(ages) / decided if decided else math.nan,
            p50_ms=percentile(ages, 50),
            p95_ms=percentile(ages, 95),
            slots_busy=self._busy["slots"] / self._seconds / self._replica.slots,
            cores_busy=self._busy["cores"] / self._seconds / self._replica.cores,
        )

    @property
    def _counting(self) -> bool:
        return self._env.now >= self._seconds * _WARM_UP

    # -- clients -----------------------------------------------------------------------------------------------------

    def _client(self, number: int) -> Steps:
        env, load, lane = self._env, self._load, _Lane()
        if not load.fps:
            yield env.timeout(self._random.random() * 0.01)
            while True:
                frame = self._send(lane)
                yield frame.answered
                yield env.timeout(load.pause_ms / 1000)
        yield env.timeout(self._random.random() / load.fps)
        while True:
            self._send(lane)
            yield env.timeout(1 / load.fps)

    def _send(self, lane: _Lane) -> _Frame:
        frame = _Frame(lane, self._env.now, self._env.event())
        self._sent += self._counting
        self._env.process(self._arrive(frame))
        return frame

    def _arrive(self, frame: _Frame) -> Steps:
        yield from self._compute(self._replica.generator_ms / 2)
        yield self._env.timeout(self._stages.wait_ms / 2000)
        with self._gateway.request() as turn:
            yield turn
            yield from self._compute(self._stages.gateway_ms / 2)
        self._mail(frame)

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _mail(self, frame: _Frame) -> None:
        lane = frame.lane
        if lane.waiting is not None:
            self._drop(lane.waiting)
        elif not lane.busy:
            self._ring.append(lane)
        lane.waiting = frame
        self._pump()

    def _pump(self) -> None:
        while self._ring and self._free > 0:
            lane = self._ring.popleft()
            frame, lane.waiting = lane.waiting, None
            if frame is None:
                continue
            idle = self._free == self._replica.workers * self._replica.credits
            expected = 0.0 if idle else self._estimate
            if self._env.now + expected - frame.sent > self._replica.deadline_ms / 1000:
                self._drop(frame)
                continue
            lane.busy = True
            self._free -= 1
            self._env.process(self._work(frame))

    def _drop(self, frame: _Frame) -> None:
        self._dropped += self._counting
        frame.answered.succeed()

    # -- workers and slots -------------------------------------------------------------------------------------------

    def _work(self, frame: _Frame) -> Steps:
        replica, stages, started = self._replica, self._stages, self._env.now
        share = stages.worker_ms / (replica.runs + 1)
        for _ in range(replica.runs):
            yield from self._on_worker(share)
            yield from self._on_slot()
        yield from self._on_worker(share)
        self._free += 1
        self._estimate += (self._env.now - started - self._estimate) / 8
        lane = frame.lane
        lane.busy = False
        if lane.waiting is not None:
            self._ring.append(lane)
        self._env.process(self._deliver(frame))
        self._pump()

    def _on_worker(self, ms: float) -> Steps:
        with self._workers.request() as turn:
            yield turn
            yield from self._compute(ms)

    def _on_slot(self) -> Steps:
        stages, runs = self._stages, self._replica.runs
        with self._slots.request() as turn:
            yield turn
            self._running += 1
            seconds = self._vary(stages.slot_ms / runs) * stages.tax_at(self._running) / 1000
            # A slot that computes on this machine's processor needs a core for as long as that takes.
            computing = min(stages.slot_cpu_ms / runs / 1000, seconds)
            yield from self._compute(computing * 1000)
            yield self._env.timeout(seconds - computing)
            self._busy["slots"] += seconds
            self._running -= 1

    def _deliver(self, frame: _Frame) -> Steps:
        with self._gateway.request() as turn:
            yield turn
            yield from self._compute(self._stages.gateway_ms / 2)
        yield self._env.timeout(self._stages.wait_ms / 2000)
        yield from self._compute(self._replica.generator_ms / 2)
        age = self._env.now - frame.sent
        if age > self._replica.deadline_ms / 1000:
            self._drop(frame)
            return
        if self._counting:
            self._ages.append(age)
        frame.answered.succeed()

    def _compute(self, ms: float) -> Steps:
        """Have a core for so long."""
        if ms <= 0:
            return
        with self._cores.request() as turn:
            yield turn
            seconds = self._vary(ms) / 1000
            self._busy["cores"] += seconds
            yield self._env.timeout(seconds)

    def _vary(self, ms: float) -> float:
        spread = self._replica.spread
        return ms * self._random.lognormvariate(-spread * spread / 2, spread) if spread else ms


def simulate(stages: Stages, replica: Replica, load: Load, seconds: float = 30.0, seeds: int = 1) -> Outcome:
    """The median of several runs, figure by figure."""
    runs = [Simulation(stages, replica, load, seconds, seed).run() for seed in range(seeds)]
    names = Outcome.__struct_fields__
    medians = {name: statistics.median([getattr(run, name) for run in runs]) for name in names}
    return msgspec.convert(medians, Outcome, strict=False)
