"""Real servers for tests: `framelane serve` as its own process tree, ended for certain, with proof that nothing stays.

Every process of a tree inherits a mark in its environment, so that one which lost its parent is found all the same;
memory files are known by their inodes, so that one which somebody else holds open is found as well.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from framelane.loadtests.processes import clean_environment, free_port, total_pss

HERE = Path(__file__).parent
PATIENCE_S = 40.0
"""The longest that anything may take before a test gives up: a safety limit, not a measurement."""

_MARK = "TREE_OF_AN_END_TO_END_TEST"
_PROGRAM = (sys.executable, "-m", "framelane.server.cli", "serve")
_PLACES = {"FRAMELANE_MAX_CLIENTS": "1000"}  # a busy machine, measured, must not make a test's clients wait
# The parent of a server is the test process, and it must not outlive it, whatever ends it.
_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_ADDRESS = re.compile(r"Page +http://localhost:(\d+)/")


def wait_until(condition: Callable[[], Any], what: str, patience: float = PATIENCE_S) -> Any:
    """The first true value of ``condition``, asked every few milliseconds; fails naming ``what`` after ``patience``."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}"
        time.sleep(0.02)


class Books(NamedTuple):
    """The accounts of a server as /metrics tells them: messages by fate."""

    received: int
    delivered: int
    dropped: Counter[str]
    refused: Counter[str]
    left: int
    shed: int
    inside: int
    lanes: int
    cut: Counter[str]
    mailbox_bytes: int

    @property
    def ended(self) -> int:
        """Messages that have their fate."""
        return self.delivered + self.dropped.total() + self.refused.total() + self.left + self.shed

    def since(self, before: Books) -> Books:
        """What happened since then; gauges stay as they are."""
        return self._replace(
            received=self.received - before.received,
            delivered=self.delivered - before.delivered,
            dropped=self.dropped - before.dropped,
            refused=self.refused - before.refused,
            left=self.left - before.left,
            shed=self.shed - before.shed,
            cut=self.cut - before.cut,
        )


def read_books(text: str) -> Books:
    """Parse /metrics."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    single = {sample.name: int(sample.value) for sample in samples if not sample.labels}

    def table(name: str, label: str) -> Counter[str]:
        found = {sample.labels[label]: int(sample.value) for sample in samples if sample.name == name}
        return Counter({word: count for word, count in found.items() if count})

    return Books(
        received=single["framelane_messages_received_total"],
        delivered=single["framelane_results_delivered_total"],
        dropped=table("framelane_frames_dropped_total", "reason"),
        refused=table("framelane_messages_refused_total", "code"),
        left=single["framelane_frames_left_total"],
        shed=single["framelane_results_shed_total"],
        inside=single["framelane_frames_inside"],
        lanes=single["framelane_lanes"],
        cut=table("framelane_connections_cut_total", "reason"),
        mailbox_bytes=single["framelane_mailbox_bytes"],
    )


class Serve:
    """One run of `framelane serve`, in a process group of its own.

    Args:
        folder: for its output.
        options: of the command.
        port: 0 lets it take a free one, which is known once it is ready.
        environment: variables on top of this process's.
        cwd: its working directory; the folder of this file has ``pipelines.py``.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        cwd: Path = HERE,
    ) -> None:
        self.mark = secrets.token_hex(8)
        self.port = port
        self._output = folder / f"server-{self.mark}.out"
        self._errors = folder / f"server-{self.mark}.err"
        self._memory_files: set[tuple[int, int]] = set()
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", _DIE_WITH_PARENT, *_PROGRAM, "--port", str(port), *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                cwd=cwd,
                env={**clean_environment(), **_PLACES, **(environment or {}), _MARK: self.mark},
            )
        self.pid = self.popen.pid

    # -- what it says ------------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait for the line that it prints once frames can be served."""

        def announced() -> re.Match[str] | None:
            assert self.popen.poll() is None, f"the server ended with status {self.popen.returncode}: {self.log()}"
            return _ADDRESS.search(self._output.read_text())

        self.port = int(wait_until(announced, "the server is ready")[1])
        self.note_memory()

    def log(self) -> str:
        """What it has written to stderr."""
        return self._errors.read_text(errors="replace")

    def output(self) -> str:
        """What it has written to stdout."""
        return self._output.read_text(errors="replace")

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One HTTP request on a connection of its own; status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read()

    def json(self, path: str) -> Any:
        """The body of a GET, whatever its status."""
        return json.loads(self.request("GET", path)[1])

    def books(self) -> Books:
        """The accounts now."""
        return read_books(self.request("GET", "/metrics")[1].decode())

    def quiet_books(self) -> Books:
        """The accounts once every frame has its fate."""

        def settled() -> Books | None:
            books = self.books()
            return books if books.inside == 0 else None

        return wait_until(settled, "every frame has its fate")

    def status(self) -> Any:
        """/v1/status."""
        return self.json("/v1/status")

    def active(self, kind: str) -> set[int]:
        """The pids of all active "workers" or "slots"."""
        return {entry["pid"] for entry in self.status()[kind] if entry["state"] == "active"}

    def wait_active(self, kind: str, count: int) -> set[int]:
        """Those, once there are so many."""

        def enough() -> set[int] | None:
            found = self.active(kind)
            return found if len(found) == count else None

        return wait_until(enough, f"{count} {kind} are active")

    # -- what it has -------------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Every living process of the tree, orphans included."""
        return [pid for pid in psutil.pids() if _is_marked(pid, self.mark)]

    def pss(self) -> int:
        """Memory of the whole tree in bytes, shared memory included."""
        return total_pss(self.pids())

    def note_memory(self) -> None:
        """Remember the tree's memory files, to look for them when it has ended; nothing of it may be in /dev/shm."""
        for pid in self.pids():
            self._memory_files |= memory_files(pid)
            assert not list(_links(pid, "/dev/shm/"))

    # -- how it ends -------------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        """To the gateway alone."""
        self.popen.send_signal(number)

    def signal_group(self, number: signal.Signals) -> None:
        """To the whole process group, as a terminal does for Ctrl-C."""
        os.killpg(self.pid, number)

    def wait(self, patience: float = PATIENCE_S) -> int:
        """The exit status of the gateway."""
        return self.popen.wait(patience)

    def stop(self) -> None:
        """SIGTERM: it must end by itself, with status 0 and without a trace."""
        self.note_memory()
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.log()
        self.assert_nothing_left()
        assert "Traceback" not in self.log()

    def kill(self) -> None:
        """End every process of the tree, whatever it does."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()

    def assert_nothing_left(self) -> None:
        """No process, no memory, and the port is free again."""
        wait_until(lambda: not self.pids(), f"all processes have ended; {self.pids()} live")
        holders = {pid: memory_files(pid) & self._memory_files for pid in psutil.pids()}
        assert not {pid: files for pid, files in holders.items() if files}
        if self.port:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
                probe.bind(("127.0.0.1", self.port))
                probe.listen()


@contextlib.contextmanager
def serving(folder: Path, *options: str, **arguments: Any) -> Iterator[Serve]:
    """A server that is ready; at the end it must stop cleanly, unless the test has ended it."""
    server = Serve(folder, *options, **arguments)
    try:
        server.wait_ready()
        yield server
        if server.popen.poll() is None:
            server.stop()
    finally:
        server.kill()


def failed_start(folder: Path, *options: str, **arguments: Any) -> tuple[int, str]:
    """Run a server that must not start; its exit status and what it wrote to stderr. It must leave nothing."""
    server = Serve(folder, *options, **arguments)
    try:
        status = server.wait()
        server.port = 0  # it may be taken by whoever was in its way
        server.assert_nothing_left()
        return status, server.log()
    finally:
        server.kill()


def _is_marked(pid: int, mark: str) -> bool:
    try:
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def memory_files(pid: int) -> set[tuple[int, int]]:
    """Device and inode of every memory file that a process has open or mapped."""
    found = set()
    for link in _links(pid, "/memfd:"):
        with contextlib.suppress(OSError):
            status = link.stat()
            found.add((status.st_dev, status.st_ino))
    return found


def _links(pid: int, start: str) -> Iterator[Path]:
    """What a process has open or mapped, where its name starts so."""
    for folder in (Path(f"/proc/{pid}/fd"), Path(f"/proc/{pid}/map_files")):
        with contextlib.suppress(OSError):
            for link in folder.iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link).startswith(start):
                        yield link


__all__: Sequence[str] = ["PATIENCE_S", "Books", "Serve", "failed_start", "free_port", "serving", "wait_until"]
