"""Watching a server while it is under load: how fast /livez answers, what memory its processes take, its gauges."""

from __future__ import annotations

import http.client
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from framelane.loadtests.processes import memory

from .outcomes import Ages
from .targets import Running, get

_LIVEZ_EVERY_S = 0.05
_MEMORY_EVERY_S = 1.0


class Sample(NamedTuple):
    """PSS of all processes in bytes, that of the gateway, its open files, lanes and bytes in mailboxes."""

    at: float
    pss: int
    gateway_pss: int
    descriptors: int
    lanes: int
    mailbox_bytes: int


class Livez(threading.Thread):
    """Asks /livez twenty times a second over new connections, as an orchestrator does; each answer's milliseconds."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ended = threading.Event()
        self.milliseconds: list[float] = []
        self.failures = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Until it is ended."""
        while not self._ended.wait(_LIVEZ_EVERY_S):
            asked = time.monotonic()
            try:
                self.failures += get(self._port, "/livez", timeout=5.0) != 200
            except (OSError, http.client.HTTPException):
                self.failures += 1
            self.milliseconds.append((time.monotonic() - asked) * 1000)

    def ages(self) -> Ages:
        """Percentiles of the answers."""
        return Ages.of(np.array(self.milliseconds))


def sample(server: Running) -> Sample:
    """Look at the server once."""
    own, shared = memory(server.pid)
    metrics = server.metrics()
    return Sample(
        time.monotonic(),
        sum(sum(memory(pid)) for pid in server.pids()),
        own + shared,
        server.descriptors(),
        int(metrics.get(("framelane_lanes", ""), 0)),
        int(metrics.get(("framelane_mailbox_bytes", ""), 0)),
    )


def watch(server: Running, seconds: float, every: float = _MEMORY_EVERY_S) -> list[Sample]:
    """Look at the server again and again for so many seconds."""
    stop, samples = time.monotonic() + seconds, []
    while time.monotonic() < stop:
        samples.append(sample(server))
        time.sleep(max(0.0, min(every, stop - time.monotonic())))
    return samples
