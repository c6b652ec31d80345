"""Figures: what was measured in several rounds, against the bar it must reach and the goal beyond. No I/O here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a section.

    Attributes:
        name: what it is, for people.
        unit: "ms", "fps", "×" …
        rounds: its value in each round.
        bar: what it must reach, or None for a figure that is only told.
        goal: what it should reach, or None.
        at_most: whether smaller is better.
    """

    name: str
    unit: str
    rounds: tuple[float, ...]
    bar: float | None = None
    goal: float | None = None
    at_most: bool = True

    @property
    def value(self) -> float:
        """The median of the rounds; not-a-number without any."""
        return statistics.median(self.rounds) if self.rounds else float("nan")

    @property
    def verdict(self) -> str:
        """ "goal", "pass" or "miss"; "" for a figure without a bar, or without a value."""
        if self.bar is None or not self.rounds:
            return ""
        if self.goal is not None and self._reaches(self.goal):
            return "goal"
        return "pass" if self._reaches(self.bar) else "miss"

    def _reaches(self, limit: float) -> bool:
        return self.value <= limit if self.at_most else self.value >= limit

    def row(self) -> tuple[str, str, str, str, str, str]:
        """Name, value, spread, bar, goal and verdict as text."""
        if not self.rounds:
            return self.name, "–", "", _limit(self.bar, self.at_most), _limit(self.goal, self.at_most), "not measured"
        value = f"{_number(self.value)} {self.unit}".rstrip()
        spread = f"{_number(min(self.rounds))} – {_number(max(self.rounds))}" if len(self.rounds) > 1 else ""
        return self.name, value, spread, _limit(self.bar, self.at_most), _limit(self.goal, self.at_most), self.verdict

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": _rounded(self.value),
            "rounds": [_rounded(value) for value in self.rounds],
            "bar": self.bar,
            "goal": self.goal,
            "at_most": self.at_most,
            "verdict": self.verdict,
        }


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 20 else f"{value:.3g}"


def _rounded(value: float) -> float | None:
    return round(value, 4) if value == value else None


def _limit(limit: float | None, at_most: bool) -> str:
    return "" if limit is None else f"{'≤' if at_most else '≥'} {limit:g}"


def ratios(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Round by round, one over the other: what drifts over minutes cancels out."""
    return tuple(a / b for a, b in zip(above, below, strict=True))
