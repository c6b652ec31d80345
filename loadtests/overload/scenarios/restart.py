"""800 clients lose their server at once (SIGKILL), and it is started again at the same address.

They come back with the waits of the client kit: full jitter, 0.5 s doubling to 10 s. So a client tries less than twice
within any second, and that bounds the peak. Served means a first result on the new connection. Time counts from the
kill, and so includes the server's own start. Clients send at even intervals of some seconds: if the first frame is
dropped in the rush, the second one counts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.lab import WARM_UP_S, Lab
from framelane.loadtests.overload.records import Happening, Happenings, Recorded
from framelane.loadtests.overload.targets import Running, roomy

CLIENTS = 800
LOAD = 0.8
BACK_WITHIN_S = 15.0
_AFTER_S = 20.0


class Return(NamedTuple):
    """When each client was served and let in again, in seconds after the kill; the server's start; peaks per second."""

    served: list[float]
    let_in: list[float]
    clients: int
    start_seconds: float
    peak_attempts: int
    peak_ready: int

    def within(self, seconds: float) -> float:
        """The share of clients that were served by then."""
        return sum(at <= seconds for at in self.served) / self.clients

    def by_share(self, share: float) -> float:
        """Seconds until this share was served; infinite if it never was."""
        needed = int(np.ceil(share * self.clients))
        return self.served[needed - 1] if len(self.served) >= needed else float("inf")


class Restart:
    """One restart."""

    name = "restart"
    title = "800 clients dropped by a restart"

    def __init__(self) -> None:
        self._found: list[Return] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        clients = round(CLIENTS * min(1.0, 2 * lab.effort.scale))
        target = roomy(lab.target, clients)
        rate = LOAD * lab.capacity() / clients
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(Running(target, lab.path("server.log")))
            killed: list[float] = []
            second: list[Running] = []

            def during(start: float, generators: Sequence[int]) -> None:
                lab.wait("before the kill", start + WARM_UP_S)
                killed.append(time.monotonic())
                for pid in first.pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                first.popen.wait()
                second.append(stack.enter_context(Running(target, lab.path("server.log"), first.port)))

            orders = lab.orders(first, rate, _AFTER_S, clients=clients, kind="fixed", greets=True, drain_s=1.0)
            recorded = lab.play(first, orders, during=during)
        self._found.append(_returned(recorded, killed[0], clients, second[0].start_seconds))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        found = self._found
        name = f"clients back and served within {BACK_WITHIN_S:.0f} s"
        back = tuple(100 * one.within(BACK_WITHIN_S) for one in found)
        return [
            Figure(name=name, unit="%", rounds=back, bar=99, at_most=False),
            _figure("most attempts per client within one second", [f.peak_attempts / f.clients for f in found], bar=2),
            _figure("  seconds until 99 % are served", [one.by_share(0.99) for one in found], "s"),
            _figure("  most let in within one second", [one.peak_ready for one in found]),
            _figure("  the server's own start", [one.start_seconds for one in found], "s"),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [one._asdict() for one in self._found]


def _figure(name: str, values: Sequence[float], unit: str = "", bar: float | None = None) -> Figure:
    return Figure(name=name, unit=unit, rounds=tuple(map(float, values)), bar=bar)


def _returned(recorded: Recorded, killed: float, clients: int, start_seconds: float) -> Return:
    events = recorded.events.between(killed, np.inf)
    return Return(
        served=_firsts(events.of(Happening.SERVED), killed),
        let_in=_firsts(events.of(Happening.READY), killed),
        clients=clients,
        start_seconds=start_seconds,
        peak_attempts=peak_per_second(events.of(Happening.ATTEMPT).at),
        peak_ready=peak_per_second(events.of(Happening.READY).at),
    )


def _firsts(events: Happenings, since: float) -> list[float]:
    """The first event of each client, in order of time."""
    _, places = np.unique(events.client, return_index=True)
    return sorted(float(at) - since for at in events.at[places])


def peak_per_second(times: Any) -> int:
    """The most events within any one second."""
    ordered = np.sort(times)
    counts = np.searchsorted(ordered, ordered + 1.0) - np.arange(len(ordered))
    return int(counts.max(initial=0))
