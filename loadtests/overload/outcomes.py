"""From columns to figures: goodput, delivery, ages, fairness. A frame belongs to the window it was due in."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from .records import CODES, NOT_SENT, OUTCOMES, RESULT, Columns

SICK_LAG_MS = 50.0
"""A generator whose p99 lag is beyond this measured itself."""
_LOWEST_US, _HIGHEST_US, _DIGITS = 1, 3_600_000_000, 3


class Ages(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds of an HDR histogram with three digits, and the histogram itself (HdrHistogram V2)."""

    p50: float
    p95: float
    p99: float
    most: float
    histogram: str

    @classmethod
    def of(cls, milliseconds: npt.NDArray[np.floating[Any]]) -> Ages:
        """Of values in milliseconds; not-a-number of none."""
        if not len(milliseconds):
            return cls(math.nan, math.nan, math.nan, math.nan, "")
        histogram = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
        for value in (milliseconds * 1000).astype(np.int64).clip(_LOWEST_US, _HIGHEST_US).tolist():
            histogram.record_value(value)
        p50, p95, p99, most = (histogram.get_value_at_percentile(percent) / 1000 for percent in (50, 95, 99, 100))
        return cls(p50, p95, p99, most, histogram.encode().decode())


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One window.

    Attributes:
        offered: frames due while their client had a place; sent: those that went out.
        results: answered with a result, of which `good` came within the deadline, counted from the intended moment.
        fates: frames by outcome (``records.OUTCOMES``), where there are any.
        age: of results, from the intended moment.
        lag: of the generator.
        jain: Jain's fairness index of results over the clients that sent (Jain, Chiu, Hawe 1984).
    """

    seconds: float
    offered: int
    sent: int
    results: int
    good: int
    fates: dict[str, int]
    age: Ages
    lag: Ages
    jain: float

    @property
    def offered_fps(self) -> float:
        """Frames offered per second."""
        return self.offered / self.seconds

    @property
    def goodput(self) -> float:
        """Results within the deadline, per second."""
        return self.good / self.seconds

    @property
    def delivery(self) -> float:
        """Results over frames sent."""
        return self.results / self.sent if self.sent else math.nan

    @property
    def sick(self) -> bool:
        """Whether the generator was too late for this to count."""
        return self.lag.p99 > SICK_LAG_MS

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        more = {"offered_fps": self.offered_fps, "goodput": self.goodput, "delivery": self.delivery, "void": self.sick}
        return {**msgspec.to_builtins(self), **more}


def summarize(frames: Columns, start: float, stop: float, deadline_ms: float) -> Summary:
    """Sum up the frames that were meant to be sent in ``[start, stop)``."""
    inside = frames.between(start, stop)
    counts = np.bincount(inside.outcome, minlength=len(OUTCOMES))
    fates = {name: int(counts[code]) for name, code in CODES.items() if counts[code]}
    answered = inside.outcome == RESULT
    ages = inside.ages_ms[answered]
    away = int(counts[CODES["waiting"]] + counts[CODES["away"]])
    unsent = sum(int(counts[code]) for code in NOT_SENT)
    return Summary(
        seconds=stop - start,
        offered=len(inside.outcome) - away,
        sent=len(inside.outcome) - unsent,
        results=len(ages),
        good=int((ages <= deadline_ms).sum()),
        fates=fates,
        age=Ages.of(ages),
        lag=Ages.of(inside.lag * 1000.0),
        jain=jain(results_by_client(inside)),
    )


def results_by_client(frames: Columns) -> npt.NDArray[np.int64]:
    """Results of each client that sent anything."""
    sent = ~np.isin(frames.outcome, list(NOT_SENT))
    senders = np.unique(frames.client[sent])
    counts = np.bincount(frames.client[frames.outcome == RESULT], minlength=int(senders.max(initial=0)) + 1)
    found: npt.NDArray[np.int64] = counts[senders]
    return found


def jain(shares: npt.NDArray[np.int64]) -> float:
    """``(Σx)² / (n·Σx²)``: 1 when all have the same, 1/n when one has all."""
    squares = float((shares.astype(float) ** 2).sum())
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares else math.nan


def sliding_p99(frames: Columns, start: float, stop: float, width: float, step: float) -> list[tuple[float, float]]:
    """(end of the window relative to ``start``, exact p99 age in ms of its results); infinite where there are none."""
    found = []
    for index in range(int((stop - start - width) / step + 1e-6) + 1):
        begin = start + index * step
        inside = frames.between(begin, begin + width)
        ages = inside.ages_ms[inside.outcome == RESULT]
        found.append((begin + width - start, float(np.percentile(ages, 99)) if len(ages) else math.inf))
    return found
