"""One run of the swarm: a server, Locust as a child process, and what both used and counted meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
import psutil

import framelane.loadtests
from framelane.loadtests.overload import books
from framelane.loadtests.overload.targets import Running, Target
from framelane.loadtests.processes import Process, StartFailed, busy_seconds, clean_environment, cpu_seconds, total_pss
from framelane.loadtests.tally import Counts, Tally, total

from .findings import Sample
from .ledger import Found
from .shapes import MARKS, Mark

_LOOK_S = 0.5
_ASK_S = 3.0
_PATIENCE_S = 20.0
_INSIDE_LIMIT_S = 3.0


class Site(Protocol):
    """A server, whoever started it."""

    @property
    def url(self) -> str:
        """Its address, as Locust wants it."""

    def get_json(self, path: str) -> Any:
        """GET a JSON document. Raises OSError, HTTPException or ValueError."""

    def metrics(self) -> books.Metrics:
        """What /metrics says now. Raises OSError or HTTPException."""

    def roles(self) -> dict[int, str]:
        """Its processes on this machine, by what they are; empty where it runs elsewhere."""


class Given:
    """A server that runs already.

    Args:
        url: http://host:port.

    Raises:
        ValueError: it is no such address.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "ws") or not parts.hostname:
            raise ValueError(f"{url!r}: give it as http://host:port (only --door stock speaks TLS, in plain Locust)")
        self.host, self.port = parts.hostname, parts.port or 80
        self.url = f"http://{self.host}:{self.port}"

    def get_json(self, path: str) -> Any:
        """See ``Site``."""
        return json.loads(self._get(path))

    def metrics(self) -> books.Metrics:
        """See ``Site``."""
        return books.parse_metrics(self._get("/metrics").decode())

    def roles(self) -> dict[int, str]:
        """See ``Site``."""
        if self.host not in ("localhost", "127.0.0.1", "::1"):
            return {}
        status = self.get_json("/v1/status")
        roles = {status["pid"]: "gateway"}
        for role in ("worker", "slot"):
            roles.update({entry["pid"]: role for entry in status.get(f"{role}s", [])})
        return {pid: role for pid, role in roles.items() if psutil.pid_exists(pid)}

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()


@contextlib.contextmanager
def own_server(target: Target, folder: Path) -> Iterator[Site]:
    """A server of our own, until the run is over. Raises StartFailed."""
    with _Own(target, folder / "server.log") as server:
        yield server


class _Own(Running):
    """A ``Running`` server as a ``Site``."""

    @property
    def url(self) -> str:
        """See ``Site``."""
        return f"http://127.0.0.1:{self.port}"


class Orders(NamedTuple):
    """What Locust is told: its users' classes and the arguments that ``locustfile.py`` knows."""

    classes: tuple[str, ...]
    arguments: tuple[str, ...]
    seconds: float


class Progress(NamedTuple):
    """How it goes: seconds since the start, users of the last level reached, how many of them wait for a place, what
    was counted, and results per second and ages of the last moments."""

    elapsed: float
    users: int
    waiting: int
    counts: Counts
    rate: float
    p50_ms: float
    p95_ms: float


class Course(NamedTuple):
    """What came of a run.

    Attributes:
        found: None where the generator left nothing.
        before, after: the server's /v1/status; counted: what its /metrics counted meanwhile.
        memory: PSS of the server in bytes, before and after; 0 where it runs elsewhere.
        foreign: cores that other programs used.
        interrupted: whether Ctrl-C ended it early.
    """

    found: Found | None
    marks: list[Mark]
    samples: list[Sample]
    before: dict[str, Any]
    after: dict[str, Any]
    counted: books.Metrics
    memory: tuple[int, int]
    foreign: float
    interrupted: bool


class Swarming:
    """Locust, from its start to its end.

    Args:
        site: what it is let loose on.
        orders: see there.
        folder: for records and logs.
        tell: called about twice a second.
    """

    def __init__(self, site: Site, orders: Orders, folder: Path, tell: Callable[[Progress], None]) -> None:
        self._site = site
        self._orders = orders
        self._tell = tell
        self._records = folder / "records"
        self._log = folder / "locust.log"
        self._samples: list[Sample] = []
        self._marks: list[Mark] = []
        self._tallies: dict[Path, Tally] = {}
        self._last = (0.0, 0)
        self._waiting = (0.0, 0)

    def run(self) -> Course:
        """Let it run to its end; Ctrl-C ends it early, and what was measured is kept. Raises StartFailed or OSError."""
        self._records.mkdir()
        before, counted = self._site.get_json("/v1/status"), self._site.metrics()
        memory = _memory(self._site)
        locustfile = Path(framelane.loadtests.__file__).with_name("locustfile.py")
        arguments = ["-m", "locust", "-f", str(locustfile), "--headless", "--only-summary", "--loglevel", "WARNING"]
        arguments += ["--host", self._site.url, "--records", str(self._records), *self._orders.arguments]
        arguments += self._orders.classes
        busy, started, interrupted = busy_seconds(), time.monotonic(), False
        environment = {key: value for key, value in clean_environment().items() if not key.startswith("LOCUST_")}
        with Process(arguments, self._log, environment) as locust:
            try:
                self._watch(locust, started)
            except KeyboardInterrupt:
                interrupted = True
                self._end(locust)
            spent = (busy_seconds() - busy) / (time.monotonic() - started)
        found = Found.load(self._records)
        if found is None and not interrupted:
            raise StartFailed(f"Locust left no records: {locust.tail()}")
        after, since = self._closed_books(counted)
        grown = (memory, _memory(self._site))
        own = sum(self._mean_cores().values())
        foreign = max(0.0, spent - own)
        return Course(found, self._marks, self._samples, before, after, since, grown, foreign, interrupted)

    def _watch(self, locust: Process, started: float) -> None:
        roles = self._site.roles()
        limit = started + 1.5 * self._orders.seconds + 120
        while locust.popen.poll() is None:
            now = time.monotonic()
            self._sample(now, roles, locust)
            self._read_marks()
            self._tell(self._progress(now, started))
            if now > limit:
                raise StartFailed(f"Locust does not come to its end: {locust.tail()}")
            time.sleep(_LOOK_S)

    def _end(self, locust: Process) -> None:
        """Ask Locust to stop its users and write down what they did."""
        with contextlib.suppress(ProcessLookupError):
            locust.popen.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            locust.popen.wait(_PATIENCE_S)
        self._read_marks()

    def _sample(self, now: float, roles: Mapping[int, str], locust: Process) -> None:
        used: dict[str, float] = {}
        for pid, role in {**roles, **dict.fromkeys(locust.pids(), "generator"), os.getpid(): "report"}.items():
            used[role] = used.get(role, 0.0) + (cpu_seconds(pid) or 0.0)
        self._samples.append((now, used))

    def _mean_cores(self) -> dict[str, float]:
        if len(self._samples) < 2:
            return {}
        (begin, before), (end, after) = self._samples[0], self._samples[-1]
        return {role: (used - before.get(role, 0.0)) / (end - begin) for role, used in after.items()}

    def _read_marks(self) -> None:
        path = self._records / MARKS
        if path.exists():
            lines = path.read_bytes().splitlines()
            self._marks = [msgspec.json.decode(line, type=Mark) for line in lines]

    def _progress(self, now: float, started: float) -> Progress:
        for path in self._records.glob("*.tally"):
            if path not in self._tallies and path.stat().st_size:
                self._tallies[path] = Tally(path)
        tallies = list(self._tallies.values())
        each = [tally.counts() for tally in tallies]
        counts = total(each) if each else Counts(0, 0, 0)
        then, results = self._last
        recent = sorted(
            ms for tally, count in zip(tallies, each, strict=True)
            for ms in tally.latencies(max(0, count.results - 300), count.results)
        )  # fmt: skip
        rate = (counts.results - results) / (now - then) if then else 0.0
        self._last = (now, counts.results)
        p50, p95 = (recent[int(len(recent) * part)] if recent else float("nan") for part in (0.5, 0.95))
        users = self._marks[-1].users if self._marks else 0
        return Progress(now - started, users, self._told_to_wait(now), counts, rate, p50, p95)

    def _told_to_wait(self, now: float) -> int:
        """How many clients of the server wait for a place; asked now and then."""
        asked_at, waiting = self._waiting
        if now - asked_at >= _ASK_S:
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                waiting = int(self._site.get_json("/v1/status").get("lanes", {}).get("waiting", 0))
            self._waiting = (now, waiting)
        return waiting

    def _closed_books(self, before: books.Metrics) -> tuple[dict[str, Any], books.Metrics]:
        """Status and what was counted, once nothing is inside any more."""
        limit = time.monotonic() + _INSIDE_LIMIT_S
        while True:
            counted = books.since(before, self._site.metrics())
            if not books.ServerBooks.of(counted).inside or time.monotonic() > limit:
                return self._site.get_json("/v1/status"), counted
            time.sleep(0.1)


def _memory(site: Site) -> int:
    """PSS in bytes of a server's processes, as far as they are ours to look at."""
    with contextlib.suppress(OSError):  # somebody else's process, or one that has ended meanwhile
        return total_pss(site.roles())
    return 0
