"""Measures densities: starts the replicas, plays users to all of them, and sums up what they saw.

Load is an open loop: every user sends a frame when it is due, whatever became of the last one, and a frame's age counts
from that moment. Delivery is results over frames that were due, also those of users that found no place. A run whose
generator was late is void: it is repeated, and if that does not help it says so instead of blaming the replicas.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec

from framelane.loadtests.clips import moving_face
from framelane.loadtests.density import Layout, Trial
from framelane.loadtests.density_replicas import Replicas, Tell
from framelane.loadtests.density_trials import Measured, Question, known, trial_of
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.gpu_memory import gpu_bytes
from framelane.loadtests.overload.arrivals import Phase
from framelane.loadtests.overload.crowd import Orders
from framelane.loadtests.overload.driver import GO, READY, RECORDS
from framelane.loadtests.overload.outcomes import summarize
from framelane.loadtests.overload.records import Recorded, together
from framelane.loadtests.processes import Diagnosis, Process, StartFailed, cpu_seconds, total_pss

WARM_UP_S = 2.0
_LEAD_S = 0.5
_GATHER_LIMIT_S = 120.0
_DEADLINE_MS = 500  # of the summary; no objective looks at it
_GENERATOR_FPS = 800.0
_FRAMES = 90
_PATIENCE = 1
_ASK_AT = 0.7
_UNSHAKEN = 0.99


class Machine(Protocol):
    """Measures trials."""

    def measure(self, layout: Layout, users: int, tell: Tell) -> Measured:
        """One run. Raises StartFailed or OSError."""


class Measuring:
    """Replicas on this machine; those of one density stay up for as long as it is asked for and they hold the load.

    What an overload has taught a server would be in the next run's figures: after one, the next gets fresh replicas.

    Args:
        question: see there.
        most_users: the largest count that will be asked for.
        folder: for frames, orders and logs.
    """

    def __init__(self, question: Question, most_users: int, folder: Path) -> None:
        self._question = question
        self._most_users = most_users
        self._folder = folder
        self._numbers = itertools.count()
        self._replicas: Replicas | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def measure(self, layout: Layout, users: int, tell: Tell) -> Measured:
        """See ``Machine``."""
        for _ in range(_PATIENCE):
            found = self._once(layout, users, tell)
            if not found.trial.void:
                return found
        return self._once(layout, users, tell)

    def _once(self, layout: Layout, users: int, tell: Tell) -> Measured:
        if self._replicas is None or self._replicas.layout != layout:
            self._drop()
            self._replicas = Replicas(self._question, layout, self._most_users, self._path("replicas"))
            self._replicas.start(tell)
        try:
            load = Load(self._question, users, self._frames(), self._path("load"))
            found = _measured(self._question, self._replicas, load, users, tell)
        except StartFailed:
            if (ended := self._replicas.ended()) is None:
                raise
            found = Measured(trial=Trial(density=layout, users=users, delivery=0.0), notes=(ended,))
        if found.trial.delivery < _UNSHAKEN:
            self._drop()
        return found

    def _drop(self) -> None:
        replicas, self._replicas = self._replicas, None
        if replicas is not None:
            replicas.stop()

    def _path(self, name: str) -> Path:
        path = self._folder / f"{next(self._numbers):03}-{name}"
        path.mkdir()
        return path

    def _frames(self) -> Path:
        path = self._folder / "frames.msgpack"
        if not path.exists():
            width, height = map(int, self._question.image.split("x"))
            clip = moving_face(width, height, frames=_FRAMES)
            FrameFile(clip.fps, list(clip.frames)).save(path)
        return path


class Load:
    """Users of all replicas, in as many generator processes as their frames need."""

    def __init__(self, question: Question, users: int, frames: Path, folder: Path) -> None:
        self._question = question
        self._users = users
        self._frames = frames
        self._folder = folder

    def play(
        self, ports: Sequence[int], meanwhile: Callable[[float, float, list[int]], None]
    ) -> tuple[Recorded, float]:
        """Play once; ``meanwhile`` gets start, end (``time.monotonic``) and the generators' process ids, and returns
        at the end. Returns what was recorded, and the start. Raises StartFailed."""
        seconds = WARM_UP_S + self._question.seconds
        with contextlib.ExitStack() as stack:
            drivers = [self._driver(stack, order) for order in self._orders(ports, seconds)]
            _await(drivers, READY, _GATHER_LIMIT_S)
            start = time.monotonic() + _LEAD_S
            for _, folder in drivers:
                (folder / "start").write_text(repr(start))
                (folder / "start").rename(folder / GO)
            meanwhile(start, start + seconds, [process.pid for process, _ in drivers])
            _await(drivers, RECORDS, 60.0)
            return together([Recorded.load(folder / RECORDS) for _, folder in drivers]), start

    def _orders(self, ports: Sequence[int], seconds: float) -> list[Orders]:
        count = max(1, math.ceil(self._users * self._question.fps / _GENERATOR_FPS))
        edges = [number * self._users // count for number in range(count + 1)]
        phases = (Phase(seconds, self._question.fps),)
        return [
            Orders(
                host="127.0.0.1", port=ports[0], ports=tuple(ports), frames=self._frames, clients=stop - first,
                first=first, phases=phases, kind="fixed", seed=first + 1,
            )
            for first, stop in itertools.pairwise(edges)
        ]  # fmt: skip

    def _driver(self, stack: contextlib.ExitStack, orders: Orders) -> tuple[Process, Path]:
        folder = self._folder / str(orders.first)
        folder.mkdir()
        path = folder / "orders.json"
        path.write_bytes(msgspec.json.encode(orders, enc_hook=str))
        arguments = ["-m", "framelane.loadtests.overload.driver", str(path), str(folder)]
        return stack.enter_context(Process(arguments, folder / "log")), folder


def _await(drivers: Sequence[tuple[Process, Path]], name: str, seconds: float) -> None:
    limit = time.monotonic() + seconds
    for process, folder in drivers:
        while not (folder / name).exists():
            ended = process.popen.poll() is not None and not (folder / name).exists()
            if ended or time.monotonic() > limit:
                raise StartFailed(f"a load generator did not get to {name!r}: {process.tail()}")
            time.sleep(0.02)


class _Watch:
    """What is looked at while the load runs."""

    def __init__(self, replicas: Replicas, what: str, tell: Tell) -> None:
        self.cores = self.generator_cores = 0.0
        self.diagnosis = Diagnosis()
        self._replicas = replicas
        self._what = what
        self._tell = tell

    def __call__(self, start: float, stop: float, generators: list[int]) -> None:
        pids = [pid for replica in self._replicas.pids() for pid in replica]
        before, own = _spent(pids), _spent(generators)
        asked = False
        while (now := time.monotonic()) < stop:
            part = (now - start) / (stop - start)
            self._tell(self._what, max(0.0, part))
            if part > _ASK_AT and not asked:
                asked, self.diagnosis = True, self._replicas.diagnosis()
            time.sleep(min(0.25, max(0.0, stop - time.monotonic())))
        elapsed = stop - start
        self.cores = (_spent(pids) - before) / elapsed
        self.generator_cores = (_spent(generators) - own) / elapsed


def _spent(pids: Sequence[int]) -> float:
    return sum(cpu_seconds(pid) or 0.0 for pid in pids)


def _measured(question: Question, replicas: Replicas, load: Load, users: int, tell: Tell) -> Measured:
    watch = _Watch(replicas, f"{replicas.layout}: {users} users", tell)
    recorded, start = load.play([replica.port for replica in replicas.running], watch)
    if ended := replicas.ended():
        raise StartFailed(ended)
    begin, stop = start + WARM_UP_S, start + WARM_UP_S + question.seconds
    seen = summarize(recorded.frames, begin, stop, _DEADLINE_MS)
    by_replica = replicas.pids()
    gpu = gpu_bytes([pid for pids in by_replica for pid in pids])
    return Measured(
        trial=trial_of(replicas.layout, users, seen),
        p99_ms=known(seen.age.p99),
        lag_p99_ms=seen.lag.p99,
        offered=sum(seen.fates.values()) / seen.seconds,
        delivered=seen.results / seen.seconds,
        without_place=1 - seen.offered / max(1, sum(seen.fates.values())),
        fates=seen.fates,
        cores=watch.cores,
        generator_cores=watch.generator_cores,
        pss_mib=statistics.fmean(total_pss(pids) for pids in by_replica) / 2**20,
        gpu_mib=gpu / len(by_replica) / 2**20 if gpu is not None else None,
        limit=watch.diagnosis.sentence,
        advice=watch.diagnosis.advice,
        notes=tuple(replicas.notes),
    )
