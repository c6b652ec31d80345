"""Goodput, delivery and age against offered load, product and legacy side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.lab import Lab, Run, own_cores
from framelane.loadtests.overload.outcomes import Summary
from framelane.loadtests.overload.targets import Target, roomy
from framelane.loadtests.processes import cores

from .base import honesty, worst

LOADS = (0.5, 0.75, 0.9, 1.0, 1.2, 1.6, 2.0, 3.0)
LEGACY_LOADS = (0.25, 0.5, 0.75, 1.0, 1.6, 3.0)
_BARS = {True: {1.6: 0.97, 3.0: 0.90}, False: {1.6: 0.93, 3.0: 0.80}}


class Point(NamedTuple):
    """One offered load, as a multiple of the product's capacity."""

    load: float
    summary: Summary
    run: Run

    @property
    def share(self) -> float:
        """Goodput as it is compared: of a simulated device as it is; of models on these cores, what it would be if the
        server had them all, without the generator and without other programs."""
        if self.run.simulated:
            return self.summary.goodput
        return self.summary.goodput * cores() / max(own_cores(self.run), 0.1)

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        return {"load": self.load, **self.summary.record(), "compared": self.share, **self.run.record()}


class Curve:
    """Each load in turn on one server; the multiples are of the product's capacity for both servers."""

    name = "curve"
    title = "Goodput against offered load"

    def __init__(self) -> None:
        self.points: dict[str, list[Point]] = {"product": [], "legacy": []}
        self._simulated = True
        self._capacity = 0.0

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        self._simulated = lab.target.capacity is not None
        self._capacity = lab.capacity()
        product = roomy(lab.target, lab.effort.clients)
        self._sweep(lab, product, LOADS)
        if lab.effort.legacy:
            legacy = msgspec.structs.replace(lab.target, name="legacy", arguments=())
            self._sweep(lab, legacy, LEGACY_LOADS)

    def _sweep(self, lab: Lab, target: Target, loads: tuple[float, ...]) -> None:
        points = self.points[target.name]
        for load in loads:
            rate = load * self._capacity / lab.effort.clients
            run = lab.valid(lambda rate=rate: _one(lab, target, rate))  # type: ignore[misc]
            points.append(Point(load, run.summary(), run))
            lab.say(_line(target.name, points[-1]))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        points = self.points["product"]
        peak = max((point.share for point in points), default=0.0)
        of_peak = [
            Figure(
                name=f"goodput at {load:g} × capacity, share of the peak",
                unit="",
                rounds=tuple(point.share / peak for point in points if point.load == load),
                bar=bar,
                at_most=False,
            )
            for load, bar in _BARS[self._simulated].items()
        ]
        told = [figure for name, found in self.points.items() for figure in _told(name, _by_load(found))]
        return [*of_peak, *told, *worst(honesty([point.run for point in points]))]

    def details(self) -> Any:
        """See ``Scenario``."""
        return {
            "capacity": self._capacity,
            **{name: [point.record() for point in points] for name, points in self.points.items()},
        }


def _by_load(points: list[Point]) -> dict[float, list[Point]]:
    """Points by load."""
    return {load: [p for p in points if p.load == load] for load in sorted({p.load for p in points})}


def _one(lab: Lab, target: Target, rate: float) -> Run:
    with lab.server(target) as server:
        tolerant = target.name == "legacy"  # its points have no bar, and say what the generator's lag was
        return lab.run(server, lab.orders(server, rate, lab.effort.seconds), tolerant=tolerant)


def _told(name: str, points: dict[float, list[Point]]) -> list[Figure]:
    return [
        figure
        for load, found in points.items()
        for figure in (
            Figure(name=f"  {name} {load:g} ×: goodput", unit="fps", rounds=tuple(p.summary.goodput for p in found)),
            Figure(name="    delivery ratio", unit="", rounds=tuple(p.summary.delivery for p in found)),
            Figure(name="    age p50", unit="ms", rounds=tuple(p.summary.age.p50 for p in found)),
            Figure(name="    age p99", unit="ms", rounds=tuple(p.summary.age.p99 for p in found)),
        )
    ]


def _line(name: str, point: Point) -> str:
    found = point.summary
    return (
        f"{name} {point.load:g} ×: offered {found.offered_fps:.0f} fps, goodput {found.goodput:.0f}, delivery "
        f"{100 * found.delivery:.1f} %, age p50 {found.age.p50:.0f} p99 {found.age.p99:.0f} ms, "
        f"lag p99 {found.lag.p99:.1f} ms, others {point.run.foreign:.2f} cores"
    )
