"""From what a run recorded to what it says: levels, users, slices of time, and whether it counts. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framelane.loadtests.overload.outcomes import SICK_LAG_MS, Summary, summarize
from framelane.loadtests.overload.records import CODES, NOT_SENT, OUTCOMES, RESULT, Columns, Happening, Happenings

from .ledger import Found, User
from .shapes import Mark

BUSY = 0.9
"""Share of a core from which a generator process has no time left for its frames."""
_MOST_SLICES = 60
_LEAST_SLICE_S = 2.0
_NOT_SENT = np.array(sorted(NOT_SENT), np.uint8)

Verdict = Literal["met", "missed", "void"]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What a level must hold: the share of frames answered with a result, and the median age in ms; 0: any."""

    delivery: float = 0.979
    p50_ms: float = 259.0

    def holds(self, delivery: float, p50_ms: float) -> bool:
        """Whether both are reached; not by not-a-number."""
        return delivery >= self.delivery and (not self.p50_ms or p50_ms <= self.p50_ms)


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One level of users, measured in its window.

    Attributes:
        summary: of the honest users' frames.
        unserved: share of the frames due that could not be sent, since their user waited for a place or had none.
        tracked: share of the results that were tracked; not-a-number where the server does not say.
        connect_p50_ms, connect_p95_ms: from the attempt to `ready`, of all who came for this level.
        cores: used in the window, by role ("generator", "gateway", …), where it could be read.
        cpu_ms: the same per result, in ms.
        verdict: "void" if the generator was late: then it measured itself.
    """

    users: int
    summary: Summary
    unserved: float
    tracked: float
    connect_p50_ms: float
    connect_p95_ms: float
    cores: dict[str, float]
    verdict: Verdict

    @property
    def cpu_ms(self) -> dict[str, float]:
        """Processor milliseconds per result, by role."""
        rate = self.summary.results / self.summary.seconds
        return {role: 1000 * used / rate for role, used in self.cores.items()} if rate else {}

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        more = {"summary": self.summary.record(), "cpu_ms": self.cpu_ms}
        return {**msgspec.structs.asdict(self), **more}


class UserFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One user over the whole run. Ages in ms; the connect time is that of its first `ready`."""

    number: int
    door: str
    persona: str
    sent: int
    results: int
    delivery: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    connect_ms: float


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A few seconds of the run, by its middle, from the first frame on."""

    at: float
    offered_fps: float
    result_fps: float
    delivery: float
    p50_ms: float
    p95_ms: float
    users: int


Sample = tuple[float, Mapping[str, float]]
"""A moment of ``time.monotonic``, and the processor seconds used by then, by role."""


def of_users(frames: Columns, numbers: npt.NDArray[np.uint32]) -> Columns:
    """The frames of these users."""
    inside = np.isin(frames.client, numbers)
    return Columns._make(column[inside] for column in frames)


def numbers_of(users: Mapping[int, User], *, honest: bool) -> npt.NDArray[np.uint32]:
    """The numbers of the honest, or of the others."""
    return np.array([user.number for user in users.values() if user.honest is honest], np.uint32)


def level(found: Found, mark: Mark, frames: Columns, samples: Sequence[Sample], objective: Objective) -> Level:
    """What was measured while this level was held; ``frames`` are the honest users'."""
    deadline = max((account.deadline_ms for account in found.accounts), default=500)
    summary = summarize(frames, mark.start, mark.stop, deadline)
    connects = connect_times(found.recorded.events, until=mark.stop)
    tracked = ((found.tracked >= mark.start) & (found.tracked < mark.stop)).sum()
    away = sum(summary.fates.get(fate, 0) for fate in ("waiting", "away"))
    unserved = away / (summary.offered + away) if away else 0.0
    void = summary.sick or not summary.offered + away
    met = objective.holds(summary.delivery, summary.age.p50) and 1 - unserved >= objective.delivery
    return Level(
        users=mark.users,
        summary=summary,
        unserved=unserved,
        tracked=float(tracked) / summary.results if summary.results and len(found.tracked) else math.nan,
        connect_p50_ms=_percentile(connects, 50),
        connect_p95_ms=_percentile(connects, 95),
        cores=cores_used(samples, mark.start, mark.stop),
        verdict="void" if void else "met" if met else "missed",
    )


def whole(found: Found) -> Summary:
    """The honest users' frames of the whole run."""
    frames = of_users(found.recorded.frames, numbers_of(found.users, honest=True))
    deadline = max((account.deadline_ms for account in found.accounts), default=500)
    return summarize(frames, -math.inf, math.inf, deadline)


def cores_used(samples: Sequence[Sample], start: float, stop: float) -> dict[str, float]:
    """Cores by role, between the first and the last sample inside a window."""
    inside = [sample for sample in samples if start <= sample[0] <= stop]
    if len(inside) < 2:
        return {}
    (begin, before), (end, after) = inside[0], inside[-1]
    return {role: max(0.0, seconds - before.get(role, seconds)) / (end - begin) for role, seconds in after.items()}


def connect_times(events: Happenings, until: float = math.inf) -> npt.NDArray[np.float64]:
    """Milliseconds from each attempt to the `ready` that it led to."""
    attempts: dict[int, float] = {}
    times = []
    for at, client, kind in zip(events.at.tolist(), events.client.tolist(), events.kind.tolist(), strict=True):
        if kind == Happening.ATTEMPT:
            attempts[client] = at
        elif kind == Happening.READY and at <= until and client in attempts:
            times.append(1000 * (at - attempts.pop(client)))
        elif kind == Happening.LOST:
            attempts.pop(client, None)
    return np.array(times, np.float64)


def per_user(found: Found) -> list[UserFigures]:
    """Every user that sent anything, or tried to."""
    frames, users = found.recorded.frames, found.users
    order = np.argsort(frames.client, kind="stable")
    clients, firsts = np.unique(frames.client[order], return_index=True)
    first_ready: dict[int, float] = {}
    events = found.recorded.events
    for client in np.unique(events.client).tolist():
        mine = Happenings._make(column[events.client == client] for column in events)
        times = connect_times(mine)
        first_ready[client] = float(times[0]) if len(times) else math.nan
    figures = []
    for client, rows in zip(clients.tolist(), np.split(order, firsts[1:]), strict=True):
        outcomes, ages = frames.outcome[rows], frames.ages_ms[rows]
        sent = int((~np.isin(outcomes, _NOT_SENT)).sum())
        good = ages[outcomes == RESULT]
        user = users[client]
        figures.append(
            UserFigures(
                number=client,
                door=user.door,
                persona=user.persona,
                sent=sent,
                results=len(good),
                delivery=len(good) / sent if sent else math.nan,
                p50_ms=_percentile(good, 50),
                p95_ms=_percentile(good, 95),
                p99_ms=_percentile(good, 99),
                connect_ms=first_ready.get(client, math.nan),
            )
        )
    return figures


def by_persona(found: Found, start: float, stop: float) -> dict[str, Summary]:
    """The frames of each kind of user, in one window."""
    deadline = max((account.deadline_ms for account in found.accounts), default=500)
    kinds: dict[str, list[int]] = {}
    for user in found.users.values():
        kinds.setdefault(user.persona, []).append(user.number)
    return {
        name: summarize(of_users(found.recorded.frames, np.array(numbers, np.uint32)), start, stop, deadline)
        for name, numbers in kinds.items()
    }


def slices(frames: Columns) -> list[Slice]:
    """The run in at most sixty slices."""
    if not len(frames.intended):
        return []
    start, stop = float(frames.intended.min()), float(frames.intended.max())
    width = max(_LEAST_SLICE_S, (stop - start) / _MOST_SLICES)
    found = []
    for index in range(int((stop - start) / width)):
        begin = start + index * width
        inside = frames.between(begin, begin + width)
        sent = int((~np.isin(inside.outcome, _NOT_SENT)).sum())
        ages = inside.ages_ms[inside.outcome == RESULT]
        found.append(
            Slice(
                at=begin + width / 2 - start,
                offered_fps=len(inside.intended) / width,
                result_fps=len(ages) / width,
                delivery=len(ages) / sent if sent else math.nan,
                p50_ms=_percentile(ages, 50),
                p95_ms=_percentile(ages, 95),
                users=len(np.unique(inside.client)),
            )
        )
    return found


def fates(frames: Columns) -> dict[str, int]:
    """Frames by what became of them."""
    counts = np.bincount(frames.outcome, minlength=len(OUTCOMES))
    return {name: int(counts[code]) for name, code in CODES.items() if counts[code]}


def overall(levels: Sequence[Level]) -> Verdict:
    """Of the run: void as soon as one level is, since then nobody knows; met if every level is."""
    verdicts = {level.verdict for level in levels}
    if not verdicts or "void" in verdicts:
        return "void"
    return "missed" if "missed" in verdicts else "met"


def why_void(levels: Sequence[Level]) -> list[str]:
    """By name, what was wrong with the generator."""
    reasons = [] if levels else ["void: no level was reached and held, so nothing was measured"]
    for each in levels:
        if each.summary.sick:
            late = f"{each.summary.lag.p99:.0f} ms, at most {SICK_LAG_MS:g} ms are allowed"
            reasons.append(f"void: with {each.users} users the generator's own lag p99 was {late}: it measured itself")
        elif each.verdict == "void":
            reasons.append(f"void: with {each.users} users not a single frame was due")
    return reasons


def _percentile(values: npt.NDArray[np.floating[Any]], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan
