"""Fleets to be measured: `framelane fleet` on a free port, under a mark that all its processes carry."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from framelane.loadtests.processes import Process, Server, clean_environment

_MARK = "TREE_OF_A_FLEET_UNDER_TEST"
_START_LIMIT_S = 90.0
_EVERYBODY = ("--max-clients", "1000")  # nobody waits for a place: that is not what is measured


class FleetServer(Server):
    """A fleet that is ready, with as many active replicas as it shall have.

    Args:
        options: of ``framelane fleet``.
        log: the file for its output.
        whole: wait until the spares are ready, too.
    """

    def __init__(self, options: Sequence[str], log: Path, *, whole: bool = True) -> None:
        self.mark = secrets.token_hex(8)
        self.port = _lasting_port()
        arguments = ["-m", "framelane.server.cli", "fleet", "--port", str(self.port), *_EVERYBODY, *options]
        Process.__init__(self, arguments, log, {**clean_environment(), _MARK: self.mark})
        try:
            self._wait_until_ready(time.monotonic() + _START_LIMIT_S)
            self.wait_for(self.is_whole if whole else self.is_full, "all replicas are ready", _START_LIMIT_S)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Where its clients go."""
        return f"http://127.0.0.1:{self.port}"

    def status(self) -> Any:
        """/v1/status of the fleet."""
        return self.get_json("/v1/status")

    def replicas(self, state: str) -> list[Any]:
        """The replicas in a state."""
        return [replica for replica in self.status()["replicas"] if replica["state"] == state]

    def is_full(self) -> bool:
        """Whether as many are active as shall be."""
        active = self.status()["active"]
        return bool(active["now"] == active["wanted"])

    def is_whole(self) -> bool:
        """Whether every replica is ready, and no rolling restart goes on."""
        status = self.status()
        steady = all(replica["state"] in ("active", "spare") for replica in status["replicas"])
        return steady and not status["rolling"]

    def wait_for(self, condition: Callable[[], bool], what: str, patience: float = 60.0) -> float:
        """Seconds until it is so. Raises TimeoutError."""
        started = time.monotonic()
        while time.monotonic() - started < patience:
            self.check()
            with contextlib.suppress(OSError, ValueError, KeyError):
                if condition():
                    return time.monotonic() - started
            time.sleep(0.05)
        raise TimeoutError(f"not within {patience:g} s: {what}; {self.tail()}")

    def roll(self) -> None:
        """Begin a rolling restart."""
        self.popen.send_signal(signal.SIGHUP)

    def living(self) -> list[int]:
        """Every process of the tree, orphans included."""
        return [pid for pid in psutil.pids() if _is_marked(pid, self.mark)]

    def leftovers(self) -> tuple[str, ...]:
        """Processes that are there after its end, given a moment to be reaped."""
        until = time.monotonic() + 5
        while self.living() and time.monotonic() < until:
            time.sleep(0.02)
        return tuple(f"process {pid}" for pid in self.living())

    def stop(self, patience: float = 30.0) -> float:
        """As ``Process.stop``, orphans included."""
        seconds = super().stop(patience)
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return seconds


def _lasting_port() -> int:
    """A free port whose neighbours, the replicas' ports, are below those that the kernel gives to outgoing connections.

    A balancer that looks for a replica which does not listen yet could be given that very port, and hold it.
    """
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _is_marked(pid: int, mark: str) -> bool:
    try:
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
