"""What clients cost that are connected and send nothing: goodput of 100 senders among 2,000, against 100 alone."""

from __future__ import annotations

from typing import Any

from framelane.loadtests.figures import Figure, ratios
from framelane.loadtests.overload.lab import Lab, Run
from framelane.loadtests.overload.targets import roomy

from .base import honesty, worst

CONNECTED = 2000
LOAD = 1.2


class Idle:
    """Rounds of both; every other round the other way round."""

    name = "idle"
    title = "2,000 connected, 100 of them send"

    def __init__(self) -> None:
        self._alone: list[Run] = []
        self._among: list[Run] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        connected = max(2 * lab.effort.clients, round(CONNECTED * min(1.0, 2 * lab.effort.scale)))
        both = [(self._alone, lab.effort.clients), (self._among, connected)]
        for runs, count in both if len(self._alone) % 2 == 0 else reversed(both):
            runs.append(lab.valid(lambda count=count: _one(lab, count)))  # type: ignore[misc]

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        alone, among = ([run.summary().goodput for run in runs] for runs in (self._alone, self._among))
        return [
            Figure(
                name="goodput among idle clients over that alone",
                unit="×",
                rounds=ratios(among, alone),
                bar=0.95,
                at_most=False,
            ),
            Figure(name="  goodput alone", unit="fps", rounds=tuple(alone)),
            *worst(honesty([*self._alone, *self._among])),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [{**run.summary().record(), **run.record()} for run in (*self._alone, *self._among)]


def _one(lab: Lab, connected: int) -> Run:
    rate = LOAD * lab.capacity() / lab.effort.clients
    with lab.server(roomy(lab.target, connected)) as server:
        return lab.run(
            server, lab.orders(server, rate, lab.effort.seconds, clients=connected, senders=lab.effort.clients)
        )
