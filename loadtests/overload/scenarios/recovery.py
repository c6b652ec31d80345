"""How soon latency is as before when the rush is over: 0.7 × capacity, then 3 × for 30 s, then 0.7 × again.

Normal is the worst p99 of any second before the rush, and a quarter more. It is back at the end of the first second
from which on hardly any is above that: on a shared machine a stray one means nothing.
"""

from __future__ import annotations

import math
from typing import Any

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.arrivals import Phase
from framelane.loadtests.overload.lab import WARM_UP_S, Lab, Run
from framelane.loadtests.overload.outcomes import sliding_p99
from framelane.loadtests.overload.targets import roomy

from .base import honesty, worst

CALM, RUSH = 0.7, 3.0
_CALM_S, _RUSH_S, _AFTER_S = 10.0, 30.0, 15.0
_WIDTH_S, _STEP_S = 1.0, 0.25
_ALLOWED = 1.25
_STRAY = 0.1


class Recovery:
    """One run with a rush in it."""

    name = "recovery"
    title = "Recovery after 3 × capacity"

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._normal: list[float] = []
        self._seconds: list[float] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        scale = lab.effort.scale
        calm, rush, after = (max(3.0, seconds * scale) for seconds in (_CALM_S, _RUSH_S, _AFTER_S))
        unit = lab.capacity() / lab.effort.clients
        phases = (Phase(WARM_UP_S + calm, CALM * unit), Phase(rush, RUSH * unit), Phase(after, CALM * unit))
        run = lab.valid(lambda: _one(lab, phases))
        begin, over = run.start + WARM_UP_S, run.start + WARM_UP_S + calm + rush
        before = sliding_p99(run.recorded.frames, begin, begin + calm, _WIDTH_S, _STEP_S)
        behind = sliding_p99(run.recorded.frames, over, run.start + run.seconds, _WIDTH_S, _STEP_S)
        normal = max(p99 for _, p99 in before)
        self._runs.append(run)
        self._normal.append(normal)
        self._seconds.append(back_to_normal(behind, _ALLOWED * normal))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        return [
            Figure(name="seconds until p99 is back", unit="s", rounds=tuple(self._seconds), bar=3.0),
            Figure(name="  normal p99 (worst second before)", unit="ms", rounds=tuple(self._normal)),
            *worst(honesty(self._runs)),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [
            {"p99_by_second": sliding_p99(run.recorded.frames, run.start, run.start + run.seconds, 1.0, 1.0)}
            | run.record()
            for run in self._runs
        ]


def back_to_normal(windows: list[tuple[float, float]], limit: float) -> float:
    """The end of the first window that is not above the limit, and behind which hardly any is; else infinity."""
    above = [p99 > limit for _, p99 in windows]
    for index, (end, _) in enumerate(windows):
        later = above[index:]
        if not later[0] and sum(later) <= _STRAY * len(later):
            return end
    return math.inf


def _one(lab: Lab, phases: tuple[Phase, ...]) -> Run:
    with lab.server(roomy(lab.target, lab.effort.clients)) as server:
        return lab.run(server, lab.orders(server, phases))
