"""Runs the probe: a server for every number of active slots, its slots kept busy, the attempts timed."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from framelane.loadtests.attempts import Attempts
from framelane.loadtests.overload.targets import Running, Target
from framelane.loadtests.probe import Level, depth_for, level
from framelane.loadtests.processes import busy_seconds, cpu_seconds

_LONE = 12
_WARM_UP = 3
_MAX_CREDITS = 64
_DEPTH = 4

Tell = Callable[[str, float], None]
"""Told what is being done and how much of it is done, 0 to 1."""


class Probing(msgspec.Struct, frozen=True, kw_only=True):
    """What to try.

    Attributes:
        pipeline, device: as in ``framelane serve``.
        slots: numbers of active slots, the first is 1.
        attempts: per slot.
        rounds: how often each number is measured; they take turns, so that what drifts meets all of them.
        depth: frames in flight per slot; 0 decides by what a lone attempt shows (see ``probe.depth_for``).
        workers: of the server; one knows all that is in flight and spreads it evenly.
        timeout: seconds after which an attempt has failed.
        serve: further arguments for ``framelane serve``.
    """

    pipeline: str = "face_mesh"
    device: str = "auto"
    slots: tuple[int, ...] = (1, 2, 3)
    attempts: int = 100
    rounds: int = 3
    depth: int = 0
    workers: int = 1
    timeout: float = 30.0
    serve: tuple[str, ...] = ()


class Place(Protocol):
    """Where attempts go."""

    depth: int

    def levels(self, tell: Tell) -> Iterator[Level]:
        """Measure one round after another; a level at a time."""


class OwnServers:
    """Servers of our own, one for each number of slots and round.

    Args:
        probing: what to try.
        frames: what to send.
        folder: for the servers' logs.
    """

    def __init__(self, probing: Probing, frames: Sequence[bytes], folder: Path) -> None:
        self._probing = probing
        self._frames = frames
        self._folder = folder
        self.depth = probing.depth
        self.status: dict[str, Any] = {}

    def levels(self, tell: Tell) -> Iterator[Level]:
        """See ``Place``. Raises StartFailed, NotServed or OSError."""
        for number in range(self._probing.rounds):
            order = self._probing.slots if number % 2 == 0 else self._probing.slots[::-1]
            for slots in order:
                yield self._level(number, slots, tell)

    def _level(self, number: int, slots: int, tell: Tell) -> Level:
        probing = self._probing
        what = f"round {number + 1} of {probing.rounds}: {slots} active"
        tell(f"{what}, starting", 0.0)
        with Running(self._target(slots), self._folder / f"{number}-{slots}.log") as server:
            self.status = self.status or server.get_json("/v1/status")
            runner = Attempts("127.0.0.1", server.port, self._frames, probing.timeout)
            if not self.depth:
                self.depth = _find_depth(runner)
            wanted = probing.attempts * slots
            busy, own = busy_seconds(), _own_seconds(server)
            started = time.monotonic()
            course = runner.run(self.depth * slots, wanted, _WARM_UP, lambda made: tell(what, made / wanted))
            spent = busy_seconds() - busy - (_own_seconds(server) - own)
            foreign = max(0.0, spent / (time.monotonic() - started))
            server.check()
            return level(slots, self.depth, course.attempts, course.seconds, round(foreign, 3))

    def _target(self, slots: int) -> Target:
        probing = self._probing
        in_flight = (self.depth or _DEPTH) * slots
        credits = min(_MAX_CREDITS, max(3, -(-in_flight // probing.workers)))
        # The gateway would take the queue before taxed slots for overload and hold frames back, so that some slots had
        # more to do than others: then the tail would be of that, and not of the device.
        fixed = ("--spare-workers", "0", "--credits", str(credits), "--in-work", str(in_flight))
        return Target(
            pipeline=probing.pipeline,
            device=probing.device,
            slots=slots,
            workers=probing.workers,
            deadline_ms=int(probing.timeout * 1000),
            arguments=(*fixed, "--max-clients", "1000", *probing.serve),
            precedence=True,
        )


class GivenServer:
    """A server that runs already. How many of its slots are active is not ours to say: n clients, each with one frame
    in flight, keep n of them busy if it has as many."""

    def __init__(self, url: str, probing: Probing, frames: Sequence[bytes]) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "ws") or not parts.hostname:
            raise ValueError(f"{url!r}: give it as http://host:port (TLS is not spoken here)")
        self._host, self._port = parts.hostname, parts.port or 80
        self._probing = probing
        self._frames = frames
        self.depth = 1

    def levels(self, tell: Tell) -> Iterator[Level]:
        """See ``Place``. Raises NotServed or OSError."""
        runner = Attempts(self._host, self._port, self._frames, self._probing.timeout)
        for number in range(self._probing.rounds):
            for slots in self._probing.slots if number % 2 == 0 else self._probing.slots[::-1]:
                what = f"round {number + 1} of {self._probing.rounds}: {slots} at once"
                wanted = self._probing.attempts * slots
                course = runner.run(slots, wanted, _WARM_UP, lambda made, w=what, n=wanted: tell(w, made / n))  # type: ignore[misc]
                yield level(slots, 1, course.attempts, course.seconds)


def _find_depth(runner: Attempts) -> int:
    """By the part of lone attempts that was not inference."""
    course = runner.run(1, _LONE, _WARM_UP)
    good = [attempt for attempt in course.attempts if attempt.ok]
    whole = sum(attempt.seconds for attempt in good)
    return depth_for(1 - sum(attempt.inference_ms for attempt in good) / 1000 / whole if whole else 1.0)


def _own_seconds(server: Running) -> float:
    """Processor time of the server's processes and of this one."""
    return sum(cpu_seconds(pid) or 0.0 for pid in server.pids()) + time.process_time()
