"""Runs the setups of a sweep: a server of its own for each, closed-loop load, one window of counting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.overload.targets import Running, Target
from framelane.loadtests.processes import Process, StartFailed, cpu_seconds
from framelane.loadtests.stage import wait_for
from framelane.loadtests.sweep import Measurement, Setup
from framelane.loadtests.tally import Tally, total
from framelane.loadtests.windows import Vanished

_FRAMES = 12
_DEADLINE_MS = 60_000
_PLACES_FREE = 8


class Runner(Protocol):
    """Measures a setup."""

    def measure(self, setup: Setup) -> Measurement:
        """One run. Raises StartFailed, Vanished or OSError."""


class RealRunner:
    """Real servers and generators on this machine.

    Args:
        folder: for frames, tallies and logs.
        seconds: of a window.
        warm_up: seconds before it.
    """

    def __init__(self, folder: Path, seconds: float, warm_up: float = 1.0) -> None:
        self._folder = folder
        self._seconds = seconds
        self._warm_up = warm_up
        self._number = 0

    def measure(self, setup: Setup) -> Measurement:
        """See ``Runner``."""
        self._number += 1
        log = self._folder / f"{self._number:03}-server.log"
        with Running(target(setup), log) as server, self._load(setup, server.port) as (generators, tallies):
            time.sleep(self._warm_up)
            return self._window(server, generators, tallies)

    @contextlib.contextmanager
    def _load(self, setup: Setup, port: int) -> Iterator[tuple[list[Process], list[Tally]]]:
        frames, go = self._frames(setup.image), self._folder / f"{self._number:03}.go"
        with contextlib.ExitStack() as stack:
            tallies, generators = [], []
            for number, clients in enumerate(shares(setup.connections, setup.generators)):
                tally = Tally.create(self._folder / f"{self._number:03}-{number}.tally")
                arguments = ["-m", "framelane.loadtests.sweep_load", "--port", str(port), "--frames", str(frames)]
                arguments += ["--tally", str(tally.path), "--clients", str(clients), "--window", str(setup.window)]
                arguments += ["--rate", str(setup.rate), "--go", str(go)]
                log = self._folder / f"{self._number:03}-{number}-load.log"
                generators.append(stack.enter_context(Process(arguments, log)))
                tallies.append(tally)
            wait_for(generators, tallies)
            go.touch()
            yield generators, tallies

    def _window(self, server: Running, generators: list[Process], tallies: list[Tally]) -> Measurement:
        before, spent = [tally.counts() for tally in tallies], _spent(generators)
        started = time.monotonic()
        time.sleep(self._seconds)
        elapsed = time.monotonic() - started
        after, spent_after = [tally.counts() for tally in tallies], _spent(generators)
        limit = server.diagnosis().sentence if server.target.name == "product" else ""
        for process in (server, *generators):
            process.check()
        counts = total([stop.since(start) for start, stop in zip(before, after, strict=True)])
        spans = zip(tallies, before, after, strict=True)
        ages = sorted(ms for tally, start, stop in spans for ms in tally.latencies(start.results, stop.results))
        if not ages:
            raise StartFailed(f"not a single result in {elapsed:.1f} s ({counts}): {server.tail()}")
        busy = max(later - earlier for earlier, later in zip(spent, spent_after, strict=True)) / elapsed
        return Measurement(
            throughput=counts.results / elapsed,
            p50_ms=ages[len(ages) // 2],
            p95_ms=ages[min(int(len(ages) * 0.95), len(ages) - 1)],
            dropped=counts.dropped,
            errors=counts.errors,
            generator_busy=busy,
            limit=limit,
        )

    def _frames(self, image: str) -> Path:
        path = self._folder / f"{image}.frames"
        if not path.exists():
            width, height = map(int, image.split("x"))
            clip = moving_face(width, height, frames=_FRAMES)
            FrameFile(clip.fps, list(clip.frames)).save(path)
        return path


def _spent(generators: list[Process]) -> list[float]:
    seconds = [cpu_seconds(process.pid) for process in generators]
    if any(spent is None for spent in seconds):
        raise Vanished("a generator ended while it was measured")
    return [spent or 0.0 for spent in seconds]


def shares(connections: int, generators: int) -> list[int]:
    """Connections spread over generators as evenly as they go, each with at least one."""
    many = min(generators, connections)
    return [connections // many + (number < connections % many) for number in range(many)]


def target(setup: Setup) -> Target:
    """The server of a setup."""
    options = [f"--option={name}={_text(value)}" for name, value in setup.options.items()]
    if setup.server == "legacy":
        names = ("inline", "process", "broadcast")
        faults = [f"--{'' if getattr(setup, name) else 'no-'}{name}" for name in names]
        faults += [f"--send-ms={setup.send_ms:g}"] * bool(setup.send_ms)
        return Target(
            name="legacy", pipeline=setup.pipeline, device=setup.device, slots=setup.parallel,
            arguments=(*faults, *options), precedence=True,
        )  # fmt: skip
    fixed = ("--spare-workers", "0", "--max-clients", str(setup.connections + _PLACES_FREE))
    return Target(
        pipeline=setup.pipeline, device=setup.device, slots=setup.slots, workers=setup.workers,
        deadline_ms=_DEADLINE_MS, arguments=(*fixed, *options), precedence=True,
    )  # fmt: skip


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
