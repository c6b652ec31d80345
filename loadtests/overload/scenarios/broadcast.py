"""What broadcasting alone costs: the legacy server with it and without it, its other two faults left in place.

That is the change which took the campaign from 871 to 59 ms. Clients send at the campaign's pace, and the device is so
fast that without the broadcast the one process bears the largest crowd, if only just.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.lab import Lab, Run
from framelane.loadtests.overload.outcomes import Summary
from framelane.loadtests.overload.targets import Target

CLIENTS = (10, 50, 100, 200)
PACE_FPS = 0.75
_SECONDS = 30.0
_DEVICE = "sim:2"
_MB = 1e6


class Cell(NamedTuple):
    """One cell of the table."""

    clients: int
    broadcast: bool
    summary: Summary
    run: Run

    @property
    def sent_mb_per_s(self) -> float:
        """What the clients received."""
        return self.run.recorded.totals.received_bytes / _MB / self.run.recorded.totals.seconds


class Broadcast:
    """Each number of clients, with and without."""

    name = "broadcast"
    title = "Legacy: broadcast against targeted delivery"

    def __init__(self) -> None:
        self._cells: list[Cell] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        for clients in CLIENTS:
            for broadcast in (True, False):
                run = _one(lab, clients, broadcast)
                self._cells.append(Cell(clients, broadcast, run.summary(), run))
                lab.say(_line(self._cells[-1]))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        return [
            figure
            for clients in CLIENTS
            for broadcast in (True, False)
            for figure in _told(clients, broadcast, [c for c in self._cells if c[:2] == (clients, broadcast)])
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [
            {"clients": c.clients, "broadcast": c.broadcast, **c.summary.record(), **c.run.record()}
            for c in self._cells
        ]


def _one(lab: Lab, clients: int, broadcast: bool) -> Run:
    """Run once. Where the generator suffers under the flood too, that is told, and not repeated."""
    switch = "--broadcast" if broadcast else "--no-broadcast"
    target = Target(
        name="legacy",
        pipeline="face_mesh",
        device=_DEVICE,
        arguments=(switch,),
        precedence=lab.target.precedence,
    )
    with lab.server(target) as server:
        seconds = max(4.0, _SECONDS * lab.effort.scale)
        return lab.run(server, lab.orders(server, PACE_FPS, seconds, clients=clients), tolerant=True)


def _told(clients: int, broadcast: bool, cells: list[Cell]) -> list[Figure]:
    how = "broadcast" if broadcast else "targeted"
    return [
        Figure(name=f"{clients} clients, {how}: p50", unit="ms", rounds=tuple(c.summary.age.p50 for c in cells)),
        Figure(name="    sent", unit="MB/s", rounds=tuple(c.sent_mb_per_s for c in cells)),
        Figure(name="    generator's lag p99", unit="ms", rounds=tuple(c.summary.lag.p99 for c in cells)),
    ]


def _line(cell: Cell) -> str:
    how = "broadcast" if cell.broadcast else "targeted"
    return f"{cell.clients} clients, {how}: p50 {cell.summary.age.p50:.0f} ms, {cell.sent_mb_per_s:.1f} MB/s"
