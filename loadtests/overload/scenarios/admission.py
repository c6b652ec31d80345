"""1.6 × as many users as there is capacity for: those who are let in get what they came for, the others wait.

Users send at even intervals, at the pace of the campaign, and keep to the rules: they send nothing while they wait.
"""

from __future__ import annotations

from typing import Any

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.lab import Lab, Run
from framelane.loadtests.overload.records import Happening

from .base import honesty, worst

LOAD = 1.6
PACE_FPS = 2.0


class Admission:
    """One run with more users than places; the server decides how many that are."""

    name = "admission"
    title = "Delivery to admitted clients at 1.6 × users"

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        self._runs.append(lab.valid(lambda: _one(lab)))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        runs = self._runs
        return [
            Figure(
                name="delivery ratio of admitted clients",
                unit="%",
                rounds=tuple(100 * run.summary().delivery for run in runs),
                bar=99,
                at_most=False,
            ),
            Figure(name="  clients let in", unit="", rounds=tuple(_clients(run, Happening.READY) for run in runs)),
            Figure(
                name="  clients told to wait", unit="", rounds=tuple(_clients(run, Happening.WAITING) for run in runs)
            ),
            Figure(name="  clients refused", unit="", rounds=tuple(_clients(run, Happening.REFUSED) for run in runs)),
            Figure(name="  goodput", unit="fps", rounds=tuple(run.summary().goodput for run in runs)),
            *worst(honesty(runs)),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [{**run.summary().record(), **run.record()} for run in self._runs]


def _one(lab: Lab) -> Run:
    users = round(LOAD * lab.capacity() / PACE_FPS)
    with lab.server() as server:
        orders = lab.orders(
            server, PACE_FPS, lab.effort.seconds, clients=users, kind="fixed", window="follow", gather_s=15.0
        )
        return lab.run(server, orders)


def _clients(run: Run, kind: Happening) -> float:
    return float(len(set(run.recorded.events.of(kind).client.tolist())))
