"""Whether the gateway stays awake at 1.6 × capacity: /livez, the event loop's lag where /metrics tells it, pings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.lab import Lab, Run
from framelane.loadtests.overload.outcomes import Ages
from framelane.loadtests.overload.probes import Livez
from framelane.loadtests.overload.targets import roomy

from .base import honesty, worst

LOAD = 1.6
_LAG = "framelane_event_loop_lag_seconds"


class Health:
    """One run with a prober beside it."""

    name = "health"
    title = "Health at 1.6 × capacity"

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._livez: list[Ages] = []
        self._failures: list[int] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        run = lab.valid(lambda: self._one(lab))
        self._runs.append(run)

    def _one(self, lab: Lab) -> Run:
        rate = LOAD * lab.capacity() / lab.effort.clients
        with lab.server(roomy(lab.target, lab.effort.clients)) as server:
            orders = lab.orders(server, rate, lab.effort.seconds)
            livez = Livez(server.port)

            def probe(start: float, generators: Sequence[int]) -> None:
                with livez:
                    lab.wait("probing /livez", start + orders.phases[0].seconds)

            run = lab.run(server, orders, during=probe)
        self._livez.append(livez.ages())
        self._failures.append(livez.failures)
        return run

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        lag = tuple(value for run in self._runs for value in [loop_lag_ms(run.counted)] if value is not None)
        return [
            Figure(name="/livez p99", unit="ms", rounds=tuple(ages.p99 for ages in self._livez), bar=50),
            Figure(name="/livez failures", unit="", rounds=tuple(map(float, self._failures)), bar=0),
            Figure(name="event loop's lag p99, from /metrics", unit="ms", rounds=lag, bar=25),
            Figure(name="clients cut as silent", unit="", rounds=tuple(_silent(run) for run in self._runs), bar=0),
            *worst(honesty(self._runs)),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [{**run.summary().record(), **run.record()} for run in self._runs]


def loop_lag_ms(counted: Any) -> float | None:
    """The upper edge of the bucket with the p99, of a histogram of the event loop's lag; None if there is none."""
    buckets = sorted((float(edge), count) for (name, edge), count in counted.items() if name == f"{_LAG}_bucket")
    if not buckets or not buckets[-1][1]:
        return None
    return next(1000 * edge for edge, count in buckets if count >= 0.99 * buckets[-1][1])


def _silent(run: Run) -> float:
    return run.counted.get(("framelane_connections_cut_total", "silent"), 0.0)
