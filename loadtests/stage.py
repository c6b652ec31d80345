"""What a section of the bench works with: the clip, and windows over bare loops, servers and generators."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from framelane.loadtests.figures import Figure
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.processes import Process, Server, StartFailed, cores
from framelane.loadtests.tally import Tally
from framelane.loadtests.windows import Window, measure, undisturbed

WARM_UP_S = 1.5
_START_LIMIT_S = 60.0
_PLACES = ("--max-clients", "1000")  # a bench measures its clients, and none of them waits at the door


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how hard to measure.

    Attributes:
        seconds: of a window.
        clients: of the saturating generator.
        patience: how often a window that other programs disturbed is measured again.
        serve: further arguments for ``framelane serve``.
    """

    seconds: float = 8.0
    clients: int = 16
    patience: int = 2
    serve: tuple[str, ...] = ()


class Section(Protocol):
    """A part of the bench. ``figures`` may be called at any time, and tells of the rounds so far."""

    name: str
    title: str
    most_rounds: int
    """More rounds than this say nothing new."""

    def measure_round(self, stage: Stage, number: int) -> None:
        """Measure once more; ``number`` counts from 0."""

    def figures(self) -> list[Figure]:
        """What came out, each with its bar."""

    def details(self) -> Any:
        """The raw rounds, for the JSON file."""


class Stage:
    """One run of the bench.

    Args:
        folder: for frames, tallies and logs.
        clip: the frames that everybody gets.
        effort: see there.
        say: told what is going on.
    """

    def __init__(self, folder: Path, clip: FrameFile, effort: Effort, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.effort = effort
        self.say = say
        self.frames = folder / "frames.msgpack"
        clip.save(self.frames)
        self._numbers = itertools.count()

    def file(self, name: str) -> Path:
        """A new file's path in the folder."""
        return self.folder / f"{next(self._numbers):03}-{name}"

    @contextlib.contextmanager
    def server(self, options: Mapping[str, Any] | None = None, arguments: Sequence[str] = ()) -> Iterator[Server]:
        """A server that is ready; ``options`` are its pipeline's."""
        chosen = [f"--option={key}={str(value).lower()}" for key, value in (options or {}).items()]
        with Server([*self.effort.serve, *_PLACES, *chosen, *arguments], self.file("server.log")) as server:
            yield server
            server.check()

    def bare_window(self, options: Mapping[str, Any] | None = None, **load: Any) -> Window:
        """A window over bare loops, a process per core. See ``bare_loops`` for ``load``."""
        with self.bare_loops(options or {}, **load) as (processes, tallies):
            groups = {"bare": [process.pid for process in processes]}
            return self._window("bare", groups, tallies)

    @contextlib.contextmanager
    def bare_loops(
        self,
        options: Mapping[str, Any],
        processes: int = 0,
        lanes: int = 0,
        pause_ms: float = 0,
        real_time: bool = False,
    ) -> Iterator[tuple[list[Process], list[Tally]]]:
        """Bare loops at work: as many as there are cores, with as many lanes together as there are clients."""
        count = processes or cores()
        arguments = ["-m", "framelane.loadtests.legacy.bare", "--frames", str(self.frames)]
        arguments += ["--lanes", str(lanes or max(1, self.effort.clients // count)), "--pause-ms", str(pause_ms)]
        arguments += [f"--option={key}={str(value).lower()}" for key, value in options.items()]
        arguments += ["--real-time"] * real_time
        with contextlib.ExitStack() as stack:
            tallies = [Tally.create(self.file("bare.tally")) for _ in range(count)]
            started = [
                stack.enter_context(Process([*arguments, "--tally", str(tally.path)], self.file("bare.log")))
                for tally in tallies
            ]
            wait_for(started, tallies)
            yield started, tallies

    def load_window(self, server: Server, clients: int = 0, pause_ms: float = 0, real_time: bool = False) -> Window:
        """A window over a server under closed-loop load; groups are gateway, worker, slot, other and generator."""
        groups: dict[str, list[int]] = {}
        for pid, role in server.roles().items():
            groups.setdefault(role, []).append(pid)
        arguments = ["--clients", str(clients or self.effort.clients), "--pause-ms", str(pause_ms)]
        return self.load_window_on(server.port, groups, [*arguments, *["--real-time"] * real_time])

    def load_window_on(self, port: int, groups: Mapping[str, Sequence[int]], arguments: Sequence[str] = ()) -> Window:
        """A window over any server on this port that is these processes; ``arguments`` are the generator's."""
        tally = Tally.create(self.file("generator.tally"))
        command = ["-m", "framelane.loadtests.generator", "--port", str(port), "--frames", str(self.frames)]
        command += ["--tally", str(tally.path), "--clients", str(self.effort.clients), *arguments]
        with Process(command, self.file("generator.log")) as generator:
            wait_for([generator], [tally])
            window = self._window("server", {**groups, "generator": [generator.pid]}, [tally])
            generator.check()
            return window

    def _window(self, what: str, groups: Mapping[str, Sequence[int]], tallies: Sequence[Tally]) -> Window:
        time.sleep(WARM_UP_S)
        seconds, patience = self.effort.seconds, self.effort.patience
        window = undisturbed(lambda length: measure(groups, tallies, length), seconds, patience, self.say)
        if not window.counts.results:
            raise StartFailed(f"{what}: not a single result in {window.seconds:.1f} s ({window.counts})")
        self.say(f"{what}: {window.fps:.0f} fps, p50 {window.percentile(50):.2f} ms, others {window.foreign:.2f} cores")
        return window


def wait_for(processes: Sequence[Process], tallies: Sequence[Tally]) -> None:
    """Wait until all tallies are in use. Raises StartFailed."""
    deadline = time.monotonic() + _START_LIMIT_S
    while not all(tally.is_ready for tally in tallies):
        for process in processes:
            process.check()
        if time.monotonic() > deadline:
            raise StartFailed(f"a measured process does not begin its work: {processes[0].tail()}")
        time.sleep(0.02)


def server_cpu_ms(window: Window) -> float:
    """Milliseconds of processor time per result, summed over the server's processes."""
    return sum(window.cpu_ms(group) for group in window.use if group != "generator")
