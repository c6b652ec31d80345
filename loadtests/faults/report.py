"""What a fault did, as figures with bars. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from framelane.loadtests.figures import Figure


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        fault: its name.
        lost: frames without a result, by reason.
        recover_s: seconds until clients got results as before; None where that is not the question.
        connections: connections that ended.
        leftovers: what was there after the server's end that should not have been.
        figures: what the fault's own bars are about.
        note: for people.
    """

    fault: str
    lost: Mapping[str, int] = {}
    recover_s: float | None = None
    connections: int = 0
    leftovers: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether every bar is reached, and nothing was left behind."""
        return not self.leftovers and all(figure.verdict != "miss" for figure in self.figures)

    def row(self) -> tuple[str, ...]:
        """Fault, frames lost, time to recover, connections lost, leftovers, verdict."""
        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(self.lost.items())) or "0"
        recover = "–" if self.recover_s is None else f"{self.recover_s:.2f} s"
        left = ", ".join(self.leftovers) or "none"
        return self.fault, lost, recover, str(self.connections), left, "pass" if self.passed else "MISS"

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "fault": self.fault,
            "lost": dict(self.lost),
            "recover_s": self.recover_s,
            "connections_lost": self.connections,
            "leftovers": list(self.leftovers),
            "figures": [figure.record() for figure in self.figures],
            "note": self.note,
            "passed": self.passed,
        }


def at_most(name: str, value: float, bar: float | None, unit: str = "") -> Figure:
    """A figure that should be small."""
    return Figure(name=name, unit=unit, rounds=(value,), bar=bar)


def at_least(name: str, value: float, bar: float | None, unit: str = "") -> Figure:
    """A figure that should be large."""
    return Figure(name=name, unit=unit, rounds=(value,), bar=bar, at_most=False)
