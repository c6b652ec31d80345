"""Whether clients get the same share, also when one in ten sends at ten times the rate.

Cameras send at even intervals, and so do these clients: with a Poisson process a mailbox of depth one is empty now and
then when its turn comes, and what is measured then is the clients' luck. Everybody asks for more than a fair share;
the greedy ones for ten times that.
"""

from __future__ import annotations

from typing import Any

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.lab import Lab, Run
from framelane.loadtests.overload.outcomes import results_by_client
from framelane.loadtests.overload.targets import roomy

from .base import honesty, worst

LOAD = 1.6
GREEDY_EVERY, GREEDY_WEIGHT = 10, 10.0


class Fairness:
    """A run in which all are alike, and one with greedy clients among them."""

    name = "fairness"
    title = "Fairness at 1.6 × capacity"

    def __init__(self) -> None:
        self._alike: list[Run] = []
        self._greedy: list[Run] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        self._alike.append(lab.valid(lambda: _one(lab)))
        self._greedy.append(lab.valid(lambda: _one(lab, every=GREEDY_EVERY, weight=GREEDY_WEIGHT)))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        return [
            _jain("Jain's index, all alike", self._alike),
            _jain("Jain's index, one in ten sends ten times as much", self._greedy),
            Figure(
                name="  a greedy client's results over another's",
                unit="×",
                rounds=tuple(_advantage(run) for run in self._greedy),
            ),
            *worst(honesty([*self._alike, *self._greedy])),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [{**run.summary().record(), **run.record()} for run in (*self._alike, *self._greedy)]


def _one(lab: Lab, **more: Any) -> Run:
    clients = lab.effort.clients
    with lab.server(roomy(lab.target, clients)) as server:
        rate = LOAD * lab.capacity() / clients
        return lab.run(server, lab.orders(server, rate, lab.effort.seconds, kind="fixed", **more))


def _jain(name: str, runs: list[Run]) -> Figure:
    return Figure(name=name, unit="", rounds=tuple(run.summary().jain for run in runs), bar=0.98, at_most=False)


def _advantage(run: Run) -> float:
    results = results_by_client(run.recorded.frames)
    greedy = results[::GREEDY_EVERY].mean()
    others = (results.sum() - results[::GREEDY_EVERY].sum()) / (len(results) - len(results[::GREEDY_EVERY]))
    return float(greedy / others)
