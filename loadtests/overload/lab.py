"""One run of load against one server: start the generators, let them begin at one moment, and collect what they saw."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from framelane.loadtests.generator import FrameFile
from framelane.loadtests.processes import Process, StartFailed, busy_seconds, cores, cpu_seconds
from framelane.loadtests.stage import wait_for
from framelane.loadtests.tally import Tally
from framelane.loadtests.windows import measure

from . import books
from .arrivals import Kind, Phase
from .crowd import Orders
from .driver import GO, READY, RECORDS
from .outcomes import Summary, summarize
from .records import Recorded, together
from .targets import Running, Target

WARM_UP_S = 2.0
_LEAD_S = 0.3
_GATHER_LIMIT_S = 90.0
_INSIDE_LIMIT_S = 3.0
_CALIBRATION_CLIENTS = 16


During = Callable[[float, Sequence[int]], None]
"""Called with the start of the load (``time.monotonic``) and the process ids of the generators, in order."""


class Void(Exception):
    """The generator was too late: what it measured was itself."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how hard.

    Attributes:
        seconds: of a window; scenarios that have a length of their own scale it by ``scale``.
        scale: 1, or less for a look.
        clients: of a scenario that leaves it open.
        kind: intervals between a client's frames.
        patience: how often a void run is repeated.
        legacy: whether the legacy server is measured beside the product.
    """

    seconds: float = 60.0
    scale: float = 1.0
    clients: int = 100
    kind: Kind = "poisson"
    patience: int = 1
    legacy: bool = True


class Run(NamedTuple):
    """What came of a run.

    Attributes:
        recorded: everything; ``well`` is what clients recorded that read their answers.
        cores: used, by role, "generator" among them; ``foreign``: by other programs.
        counted: what the server counted meanwhile.
        wrong: what does not add up between the books.
    """

    recorded: Recorded
    well: Recorded
    start: float
    seconds: float
    deadline_ms: float
    simulated: bool
    cores: Mapping[str, float]
    foreign: float
    counted: Mapping[tuple[str, str], float]
    wrong: Sequence[str]

    def summary(self, below: int | None = None) -> Summary:
        """Without the warm-up; of clients numbered ``below`` this, or of all that read their answers."""
        frames = self.well.frames if below is None else self.well.frames.below(below)
        return summarize(frames, self.start + WARM_UP_S, self.start + self.seconds, self.deadline_ms)

    @property
    def late_at_server(self) -> int:
        """Results older than the deadline by the server's own clock."""
        name = "framelane_result_age_seconds_bucket"
        edges = {label: value for (key, label), value in self.counted.items() if key == name}
        within = [value for edge, value in edges.items() if float(edge) >= self.deadline_ms / 1000]
        return int(edges.get("+Inf", 0.0) - min(within, default=0.0))

    @property
    def cut(self) -> dict[str, int]:
        """Connections that the server ended, by reason."""
        name = "framelane_connections_cut_total"
        return {reason: int(value) for (key, reason), value in self.counted.items() if key == name and value}

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        used = {role: round(value, 3) for role, value in self.cores.items()}
        clients = books.ClientBooks.of(self.recorded)
        return {
            "seconds": self.seconds,
            "cores": used,
            "foreign_cores": round(self.foreign, 3),
            "load_average": os.getloadavg(),
            "wrong": list(self.wrong),
            "cut": self.cut,
            "clients": msgspec.to_builtins(clients),
            "server": msgspec.to_builtins(books.ServerBooks.of(self.counted)),
            "bytes_to_clients": self.recorded.totals.received_bytes,
            "bytes_to_server": self.recorded.totals.sent_bytes,
        }


class Lab:
    """Where scenarios run.

    Args:
        folder: for frames, orders, records and logs.
        clip: what clients send.
        target: the product, as it shall be measured.
        effort: see there.
        say: told what is going on.
        wait: sleeps until a moment, and may show a bar meanwhile: (what, moment).
    """

    def __init__(
        self,
        folder: Path,
        clip: FrameFile,
        target: Target,
        effort: Effort,
        say: Callable[[str], None],
        wait: Callable[[str, float], None],
    ) -> None:
        self.folder = folder
        self.target = target
        self.effort = effort
        self.say = say
        self.wait = wait
        self.clip = clip
        self._numbers = itertools.count()
        self._capacities: dict[Target, float] = {}
        self.frames = self.save(clip)

    def path(self, name: str) -> Path:
        """A new file's or folder's path."""
        return self.folder / f"{next(self._numbers):03}-{name}"

    def save(self, clip: FrameFile) -> Path:
        """Write a clip for generators."""
        path = self.path("frames.msgpack")
        clip.save(path)
        return path

    @contextlib.contextmanager
    def server(self, target: Target | None = None, port: int = 0) -> Iterator[Running]:
        """A server that is ready; it must be alive at the end too."""
        with Running(target or self.target, self.path("server.log"), port) as server:
            yield server
            server.check()

    def orders(self, server: Running, rate: float | Sequence[Phase], seconds: float = 0.0, **more: Any) -> Orders:
        """Orders for the clients of one generator: ``rate`` is frames per second of a client, or phases."""
        phases = tuple(rate) if not isinstance(rate, float) else (Phase(WARM_UP_S + seconds, rate),)
        given = {"clients": self.effort.clients, "kind": self.effort.kind, "frames": self.frames, **more}
        return Orders(host="127.0.0.1", port=server.port, phases=phases, **given)

    def run(self, server: Running, *orders: Orders, during: During | None = None, tolerant: bool = False) -> Run:
        """Let generators play their orders; ``during`` is called at the start, and should take no longer than they.

        Raises:
            Void: the generators were too late; not raised if ``tolerant``.
            StartFailed: a generator, or the server, ended.
        """
        with contextlib.ExitStack() as stack:
            drivers = [self._driver(stack, order) for order in orders]
            self._await(drivers, READY, _GATHER_LIMIT_S)
            before, start = server.metrics(), time.monotonic() + _LEAD_S
            for _, folder in drivers:
                _begin(folder, start)
            seconds = max(sum(phase.seconds for phase in order.phases) for order in orders)
            used = self._use(server, [process for process, _ in drivers], start, seconds, during)
            self._await(drivers, RECORDS, max(order.drain_s for order in orders) + 30)
            parts = [Recorded.load(folder / RECORDS) for _, folder in drivers]
        well = [part for part, order in zip(parts, orders, strict=True) if not order.deaf]
        run = self._sum_up(server, (together(parts), together(well)), before, (start, seconds), used)
        if run.summary().sick and not tolerant:
            raise Void(f"the generator's lag p99 was {run.summary().lag.p99:.0f} ms")
        return run

    def play(self, server: Running, orders: Orders, during: During) -> Recorded:
        """Let one generator play, whatever happens to the server meanwhile; only what it recorded comes back."""
        with contextlib.ExitStack() as stack:
            driver = self._driver(stack, orders)
            self._await([driver], READY, _GATHER_LIMIT_S)
            start = time.monotonic() + _LEAD_S
            _begin(driver[1], start)
            during(start, [driver[0].pid])
            seconds = sum(phase.seconds for phase in orders.phases)
            self.wait(f"{server.target.name}: {seconds:.0f} s of load", start + seconds)
            self._await([driver], RECORDS, orders.drain_s + 30)
            return Recorded.load(driver[1] / RECORDS)

    def valid(self, attempt: Callable[[], Run]) -> Run:
        """The run of an attempt, repeated while it is void. Raises Void after the last."""
        for _ in range(self.effort.patience):
            try:
                return attempt()
            except Void as error:
                self.say(f"void: {error}; once more")
        return attempt()

    def capacity(self, target: Target | None = None) -> float:
        """Frames per second that a target can answer: by its simulated device, else measured with a closed loop."""
        target = target or self.target
        if target.capacity is not None:
            return target.capacity
        if target not in self._capacities:
            with self.server(target) as server:
                self._capacities[target] = self._closed_loop(server)
            self.say(f"{target.name}: {self._capacities[target]:.0f} fps in a closed loop")
        return self._capacities[target]

    def _closed_loop(self, server: Running) -> float:
        tally = Tally.create(self.path("closed.tally"))
        arguments = ["-m", "framelane.loadtests.generator", "--port", str(server.port), "--frames", str(self.frames)]
        arguments += ["--tally", str(tally.path), "--clients", str(_CALIBRATION_CLIENTS)]
        with Process(arguments, self.path("closed.log")) as generator:
            wait_for([generator], [tally])
            time.sleep(WARM_UP_S)
            window = measure({"generator": [generator.pid]}, [tally], max(3.0, 10 * self.effort.scale))
            generator.check()
        return window.fps

    def _driver(self, stack: contextlib.ExitStack, orders: Orders) -> tuple[Process, Path]:
        folder = self.path("generator")
        folder.mkdir()
        path = folder / "orders.json"
        path.write_bytes(msgspec.json.encode(orders, enc_hook=str))
        arguments = ["-m", "framelane.loadtests.overload.driver", str(path), str(folder)]
        return stack.enter_context(Process(arguments, folder / "log")), folder

    def _await(self, drivers: Sequence[tuple[Process, Path]], name: str, seconds: float) -> None:
        limit = time.monotonic() + seconds
        for process, folder in drivers:
            while not (folder / name).exists():
                ended = process.popen.poll() is not None and not (folder / name).exists()
                if ended or time.monotonic() > limit:
                    raise StartFailed(f"a generator did not get to {name!r}: {process.tail()}")
                time.sleep(0.02)

    def _use(
        self,
        server: Running,
        drivers: Sequence[Process],
        start: float,
        seconds: float,
        during: During | None,
    ) -> tuple[dict[str, float], float]:
        """Cores used from the start to the end of the orders: by role, and by other programs."""
        roles = {**server.roles(), **{process.pid: "generator" for process in drivers}}
        time.sleep(max(0.0, start - time.monotonic()))
        before, busy, at = {pid: cpu_seconds(pid) for pid in (*roles, os.getpid())}, busy_seconds(), time.monotonic()
        if during is not None:
            during(start, [process.pid for process in drivers])
        self.wait(f"{server.target.name}: {seconds:.0f} s of load", start + seconds)
        spent = {pid: (cpu_seconds(pid) or 0.0) - (then or 0.0) for pid, then in before.items()}
        elapsed = time.monotonic() - at
        used: dict[str, float] = {}
        for pid, role in roles.items():
            used[role] = used.get(role, 0.0) + max(0.0, spent[pid]) / elapsed
        own = sum(max(0.0, seconds) for seconds in spent.values())
        return used, max(0.0, (busy_seconds() - busy - own) / elapsed)

    def _sum_up(
        self,
        server: Running,
        recorded: tuple[Recorded, Recorded],
        before: books.Metrics,
        when: tuple[float, float],
        used: tuple[dict[str, float], float],
    ) -> Run:
        counted = self._closed_books(server, before)
        wrong = []
        if counted:
            wrong = books.check(books.ServerBooks.of(counted), books.ClientBooks.of(recorded[0]))
        start, seconds = when
        target = server.target
        return Run(*recorded, start, seconds, target.deadline_ms, target.capacity is not None, *used, counted, wrong)

    def _closed_books(self, server: Running, before: books.Metrics) -> Mapping[tuple[str, str], float]:
        """What the server counted since ``before``, once nothing is inside any more."""
        limit = time.monotonic() + _INSIDE_LIMIT_S
        while True:
            counted = books.since(before, server.metrics())
            if not books.ServerBooks.of(counted).inside or time.monotonic() > limit:
                return counted
            time.sleep(0.05)


def _begin(folder: Path, start: float) -> None:
    """Tell a generator when to begin; it sees the file when it is whole."""
    (folder / "start").write_text(repr(start))
    (folder / "start").rename(folder / GO)


def own_cores(run: Run) -> float:
    """The cores that generator and other programs left to the server."""
    return cores() - run.cores["generator"] - run.foreign
