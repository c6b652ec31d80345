"""Starting what is measured, reading what it uses, and ending it for certain.

Processor time is read from each process's CPU clock (nanoseconds, all its threads, ended ones too), memory from
``smaps``: PSS, with shared memory apart. A process started here dies with the bench, and ``stop`` leaves nothing of
its tree behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

import psutil

_PR_SET_PDEATHSIG = 1


class StartFailed(Exception):
    """A process that shall be measured did not start; the text has the end of its output."""


class Memory(NamedTuple):
    """PSS of a process in bytes: its own, and its part of the memory files that the replica's processes share."""

    own: int
    shared: int


class Diagnosis(NamedTuple):
    """What a server says limits it, and what it advises; "" where it says nothing, or that nothing does."""

    sentence: str = ""
    advice: str = ""

    @classmethod
    def of(cls, status: Any) -> Diagnosis:
        """From /v1/status, whatever stands there: older servers have none, and other ones may have another shape."""
        found = status.get("diagnosis") if isinstance(status, dict) else None
        if not isinstance(found, dict) or found.get("limit") in (None, "", "idle"):
            return cls()
        return cls(str(found.get("sentence") or found["limit"]), str(found.get("advice") or ""))


class Process:
    """One process that the bench started, and its children.

    Args:
        arguments: what to run with this Python: ``["-m", module, …]``.
        log: the file for its output.
        environment: its variables; ``clean_environment()`` unless given.
        python: another interpreter than this one.
    """

    APART: ClassVar[dict[str, Any]] = {"start_new_session": True}
    """Ctrl-C is for the bench alone."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self._log = log
        self._name = " ".join(arguments[:3])
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                [python, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                **self.APART,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the bench has one thread
                env=dict(environment if environment is not None else clean_environment()),
            )
        self.pid = self.popen.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def pids(self) -> list[int]:
        """This process and all below it that are alive."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        return []

    def check(self) -> None:
        """Raises StartFailed with the end of its output if the process has ended."""
        if self.popen.poll() is not None:
            raise StartFailed(f"{self._name} ended: {self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """The last lines of its output."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, patience: float = 15.0) -> float:
        """SIGTERM, and SIGKILL to the tree if that does not end it; returns the seconds that it took."""
        started = time.monotonic()
        tree = [psutil.Process(pid) for pid in self.pids() if psutil.pid_exists(pid)]
        with contextlib.suppress(ProcessLookupError):
            self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # psutil compares start times: never another process of the same number
        self.popen.wait()
        psutil.wait_procs(tree, timeout=5)
        return time.monotonic() - started


class Server(Process):
    """``framelane serve`` on a free port of this machine, ready to be used.

    Args:
        options: further arguments of ``serve``.
        log: the file for its output.
        patience: seconds until it must be ready.
    """

    def __init__(self, options: Sequence[str], log: Path, patience: float = 60.0) -> None:
        self.port = free_port()
        arguments = ["-m", "framelane.server.cli", "serve", "--host", "127.0.0.1", "--port", str(self.port), *options]
        started = time.monotonic()
        super().__init__(arguments, log)
        try:
            self._wait_until_ready(started + patience)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - started

    def roles(self) -> dict[int, str]:
        """Every process of the server, by what it is: gateway, worker, slot, or the module of any other one."""
        status = self.get_json("/v1/status")
        roles = dict.fromkeys(self.pids(), "other")
        roles[self.pid] = "gateway"
        for role in ("worker", "slot"):
            roles.update({entry["pid"]: role for entry in status[f"{role}s"]})
        return roles

    def diagnosis(self) -> Diagnosis:
        """What it says of itself now; nothing if it does not answer."""
        try:
            return Diagnosis.of(self.get_json("/v1/status"))
        except (OSError, ValueError, http.client.HTTPException):
            return Diagnosis()

    def get_json(self, path: str) -> Any:
        """GET a JSON document. Raises OSError or ValueError."""
        return json.loads(self._get(path)[1])

    def _wait_until_ready(self, deadline: float) -> None:
        while True:
            self.check()
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._get("/readyz")[0] == 200:
                    return
            if time.monotonic() > deadline:
                raise StartFailed(f"the server is not ready in time: {self.tail()}")
            time.sleep(0.02)

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of Framelane's: a run shall depend on its arguments alone."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FRAMELANE_")}
    return {**kept, "ORT_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process since its start, all threads; None if it is gone.

    The clock's number is Linux's own: ``MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)`` of ``posix-timers.h``.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def busy_seconds() -> float:
    """Processor time that all programs of this machine have used; what a hypervisor took counts too."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def switches(pid: int) -> tuple[int, int]:
    """Context switches of a process's threads that live now: voluntary and not."""
    counts = [0, 0]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found = re.findall(r"voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text())
            counts = [counts[0] + int(found[0]), counts[1] + int(found[1])]
    return counts[0], counts[1]


def memory(pid: int) -> Memory:
    """PSS of a process, memory files of the server's apart."""
    own = shared = 0
    is_shared = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.startswith("Pss:"):
            size = int(line.split()[1]) * 1024
            own, shared = (own, shared + size) if is_shared else (own + size, shared)
        elif not line[0].isupper():
            is_shared = "/memfd:" in line
    return Memory(own, shared)


def shared_bytes(pids: Iterable[int]) -> int:
    """Bytes of all memory files that these processes hold, each once, whether touched yet or not."""
    files: dict[int, int] = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith("/memfd:"):
                    found = link.stat()
                    files[found.st_ino] = found.st_blocks * 512
    return sum(files.values())


def total_pss(pids: Iterable[int]) -> int:
    """PSS in bytes of several processes together, shared memory included."""
    return sum(sum(memory(pid)) for pid in pids)
