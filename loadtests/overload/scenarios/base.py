"""What a scenario is, and figures that several of them have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from framelane.loadtests.figures import Figure
from framelane.loadtests.overload.lab import Lab, Run

CLIENT_ALLOWANCE_MS = 50.0
"""What a client may see beyond the deadline, its own lag apart (invariant 6)."""


class Scenario(Protocol):
    """One question. ``figures`` may be called at any time, and tells of the rounds so far."""

    name: str
    title: str

    def measure(self, lab: Lab) -> None:
        """Measure once. Raises what ``Lab.run`` raises."""

    def figures(self) -> list[Figure]:
        """What came out, each with its bar."""

    def details(self) -> Any:
        """Everything, for the JSON file."""


def honesty(runs: Sequence[Run]) -> list[Figure]:
    """What must hold in every run: the books, deadlines, and that the generator was well."""
    return [
        Figure(name="books that do not add up", unit="", rounds=tuple(float(len(run.wrong)) for run in runs), bar=0),
        Figure(
            name="results past their deadline, by the server's clock",
            unit="",
            rounds=tuple(float(run.late_at_server) for run in runs),
            bar=0,
        ),
        Figure(
            name="client's p99 over deadline + 50 ms + generator's lag",
            unit="ms",
            rounds=tuple(beyond(run) for run in runs),
            bar=0,
        ),
        Figure(name="  generator's lag p99", unit="ms", rounds=tuple(run.summary().lag.p99 for run in runs)),
        Figure(name="  generator's cores", unit="", rounds=tuple(run.cores["generator"] for run in runs)),
        Figure(name="  cores used by others", unit="", rounds=tuple(run.foreign for run in runs)),
    ]


def beyond(run: Run) -> float:
    """By how many ms the p99 age at the clients passes what is allowed; 0 if it does not."""
    summary = run.summary()
    over = summary.age.p99 - run.deadline_ms - CLIENT_ALLOWANCE_MS - summary.lag.p99
    return max(0.0, over) if over == over else 0.0


def worst(figures: Sequence[Figure]) -> list[Figure]:
    """Figures of many runs as the worst of them, where each alone has to hold."""
    return [Figure(name=f.name, unit=f.unit, rounds=(max(f.rounds),), bar=f.bar) if f.rounds else f for f in figures]
