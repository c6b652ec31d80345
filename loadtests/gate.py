"""How many slots may be active: what a probe measured, and what production showed, against gates. No I/O here.

    gates      per number of slots: success rate, p95 and throughput, the last two as ratios to one slot
    verdict    pass, borderline (beyond the limit by less than the gate allows: accepted, and said), or fail
    decision   as many active slots as pass one after another; one more stays warm as the spare
    promotion  the spare becomes active when every one of the last so many whole days of production had
               p95 ≤ 1.5 × *and* throughput ≥ 2.0 × that of one slot; else it is said what is missing

A probe shows what a device can do; only production shows what users do with it. So a spare that failed its gate in the
probe can still earn its place, and a good hour cannot: days count.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]


class GateError(ValueError):
    """Gates or history that cannot be used; the message says why."""


class Outcome(StrEnum):
    """What a gate says."""

    PASS = "pass"
    BORDERLINE = "borderline"
    FAIL = "fail"


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit, and how far beyond it (as a share of it) a figure is still let through."""

    limit: Positive
    borderline: Share = 0.0


class SlotGates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gates for one number of active slots."""

    success: Gate
    p95: Gate
    throughput: Gate


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When production promotes the spare: ratios to one slot, on each of so many whole days."""

    p95: Positive = 1.5
    throughput: Positive = 2.0
    days: Annotated[int, Meta(ge=1)] = 7


class Gates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file of gates."""

    slots: dict[str, SlotGates]
    promotion: Promotion = Promotion()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe read with so many active slots.

    Attributes:
        slots: how many ran at once.
        attempts: how many were made.
        successes: how many gave a result.
        p95_ms: of the successful attempts.
        per_second: successful attempts per second; None if only the ratio is known.
        throughput_ratio: to one slot; None to compute it from ``per_second``.
    """

    slots: int
    attempts: int
    successes: int
    p95_ms: float
    per_second: float | None = None
    throughput_ratio: float | None = None

    @property
    def success(self) -> float:
        """Share of the attempts that gave a result."""
        return self.successes / self.attempts if self.attempts else 0.0


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """One figure before one gate. ``margin`` is how far inside (above 0) or beyond the limit, as a share of it."""

    slots: int
    figure: str
    value: float
    limit: float
    margin: float
    outcome: Outcome

    def __str__(self) -> str:
        return f"{self.slots} slots, {self.text}"

    @property
    def text(self) -> str:
        """The ruling in words, without the number of slots."""
        at_most = self.figure == "p95"
        unit = "" if self.figure == "success" else " ×"
        side = "inside" if self.margin >= 0 else "over" if at_most else "short"
        return (
            f"{self.figure}: {self.value:.4g}{unit} against {'≤' if at_most else '≥'} "
            f"{self.limit:g}{unit}: {self.outcome}, {abs(self.margin):.1%} {side}"
        )


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots shall be active after a probe, and why. ``spare``: whether one more is kept warm beyond them."""

    active: int
    spare: bool
    rulings: tuple[Ruling, ...]
    reasons: tuple[str, ...]


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """A day of production: its worst p95 while there was traffic, its busiest throughput, how much of it was seen."""

    date: dt.date
    p95_ms: float
    per_second: float
    coverage: Share = 1.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Production over one step of time that ends at ``time`` (UTC)."""

    time: dt.datetime
    p95_ms: float
    per_second: float


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the spare becomes active; ``missing`` says what keeps it from it, ``days`` what each day showed."""

    promote: bool
    missing: tuple[str, ...]
    days: tuple[str, ...]


def parse_gates(text: str) -> Gates:
    """Gates from the text of a TOML file.

    Raises:
        GateError: naming what is wrong.
    """
    try:
        gates = msgspec.convert(tomllib.loads(text), Gates)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise GateError(f"gates: {error}") from None
    wrong = [name for name in gates.slots if not name.isdigit() or int(name) < 2]
    if wrong:
        raise GateError(f"gates: [slots.{wrong[0]}]: the name is a number of active slots, from 2")
    return gates


def rule(figure: str, slots: int, value: float, gate: Gate) -> Ruling:
    """Hold one figure against its gate: "p95" at most the limit, "success" and "throughput" at least."""
    sign = 1 if figure == "p95" else -1
    beyond = sign * (value - gate.limit) / gate.limit
    outcome = Outcome.PASS if beyond <= 0 else Outcome.BORDERLINE if beyond <= gate.borderline else Outcome.FAIL
    if value != value:
        outcome = Outcome.FAIL
    return Ruling(slots=slots, figure=figure, value=value, limit=gate.limit, margin=-beyond, outcome=outcome)


def decide(readings: Iterable[Reading], gates: Gates) -> Decision:
    """How many slots shall be active.

    Raises:
        GateError: there is no reading for one slot, or it has no success to compare with.
    """
    by_slots = {reading.slots: reading for reading in readings}
    one = by_slots.get(1)
    if one is None or not one.successes:
        raise GateError("everything is compared with one slot: there must be a reading of it with successes")
    rulings: list[Ruling] = []
    reasons: list[str] = []
    active, blocked = 1, False
    for slots in sorted(count for count in by_slots if count > 1):
        limits = gates.slots.get(str(slots))
        if limits is None:
            reasons.append(f"{slots} slots: there is no gate for them, so they are not decided on")
            blocked = True
            continue
        ruled = _rule_all(by_slots[slots], one, limits)
        rulings += ruled
        outcome, why = _summary(slots, ruled)
        reasons.append(why)
        blocked = blocked or outcome is Outcome.FAIL or slots != active + 1
        active = active if blocked else slots
    spare = max(by_slots) > active
    reasons.append(
        f"keep {active} active" + ("; one more warm: standby, audit runs, later measurement" if spare else "")
    )
    return Decision(active=active, spare=spare, rulings=tuple(rulings), reasons=tuple(reasons))


def _rule_all(reading: Reading, one: Reading, gates: SlotGates) -> list[Ruling]:
    slots = reading.slots
    return [
        rule("success", slots, reading.success, gates.success),
        rule("p95", slots, reading.p95_ms / one.p95_ms, gates.p95),
        rule("throughput", slots, throughput_ratio(reading, one), gates.throughput),
    ]


def throughput_ratio(reading: Reading, one: Reading) -> float:
    """Throughput in units of one slot's; not-a-number if it is not known."""
    if reading.throughput_ratio is not None:
        return reading.throughput_ratio
    if reading.per_second is None or not one.per_second:
        return float("nan")
    return reading.per_second / one.per_second


def _summary(slots: int, rulings: Sequence[Ruling]) -> tuple[Outcome, str]:
    failed = [r.text for r in rulings if r.outcome is Outcome.FAIL]
    close = [r.text for r in rulings if r.outcome is Outcome.BORDERLINE]
    if failed:
        return Outcome.FAIL, f"{slots} slots fail: " + "; ".join(failed)
    if close:
        return Outcome.BORDERLINE, f"{slots} slots pass, borderline and accepted: " + "; ".join(close)
    return Outcome.PASS, f"{slots} slots pass every gate"


def whole_days(samples: Iterable[Sample], step: dt.timedelta) -> list[Day]:
    """Days from samples of production, by UTC date. Not-a-numbers are hours without traffic: seen, but no latency.

    A day's throughput is that of its busiest step, since nobody fills the slots at night; its p95 is the worst of all
    steps with traffic, since every user counts.
    """
    by_date: dict[dt.date, list[Sample]] = {}
    for sample in samples:
        # A step belongs to the day that it lies in: the one that ends at midnight to the day before.
        start = (sample.time - step).astimezone(dt.UTC)
        by_date.setdefault(start.date(), []).append(sample)
    whole = dt.timedelta(days=1) / step
    return [
        Day(
            date=date,
            p95_ms=max((s.p95_ms for s in found if s.p95_ms == s.p95_ms), default=float("nan")),
            per_second=max((s.per_second for s in found if s.per_second == s.per_second), default=0.0),
            coverage=min(1.0, len(found) / whole),
        )
        for date, found in sorted(by_date.items())
    ]


def decide_promotion(
    days: Sequence[Day], one: Reading, trigger: Promotion, today: dt.date, least_coverage: float = 0.95
) -> Promoted:
    """Whether production has earned the spare its place.

    Args:
        days: of production with the spare serving along, in any order.
        one: one slot's p95 and throughput, the baseline.
        trigger: see ``Promotion``.
        today: it is not over, so it never counts.
        least_coverage: share of a day that must have been seen for it to count.

    Raises:
        GateError: the baseline lacks a throughput or a p95.
    """
    if not one.per_second or not one.p95_ms:
        raise GateError("the baseline needs one slot's p95 and its throughput per second")
    by_date: Mapping[dt.date, Day] = {day.date: day for day in days}
    wanted = [today - dt.timedelta(days=back) for back in range(trigger.days, 0, -1)]
    missing: list[str] = []
    shown: list[str] = []
    for date in wanted:
        day = by_date.get(date)
        lacks = _lacks(day, one, trigger, least_coverage)
        missing += [f"{date}: {lack}" for lack in lacks]
        shown.append(f"{date}: {_shown(day, one)}: {'misses' if lacks else 'meets'} the trigger")
    good = trigger.days - len({line.partition(":")[0] for line in missing})
    if missing:
        missing.insert(0, f"{good} of {trigger.days} whole days meet the trigger")
    return Promoted(promote=not missing, missing=tuple(missing), days=tuple(shown))


def _lacks(day: Day | None, one: Reading, trigger: Promotion, least_coverage: float) -> list[str]:
    if day is None:
        return ["no data"]
    if day.coverage < least_coverage:
        return [f"only {day.coverage:.0%} of the day was seen; {least_coverage:.0%} are needed"]
    lacks = []
    p95, throughput = day.p95_ms / one.p95_ms, day.per_second / (one.per_second or 1)
    if not p95 <= trigger.p95:
        lacks.append(f"p95 was {p95:.2f} ×; it must be ≤ {trigger.p95:g} ×")
    if not throughput >= trigger.throughput:
        lacks.append(f"throughput was {throughput:.2f} ×; it must be ≥ {trigger.throughput:g} ×")
    return lacks


def _shown(day: Day | None, one: Reading) -> str:
    if day is None:
        return "nothing seen"
    return f"p95 {day.p95_ms / one.p95_ms:.2f} ×, throughput {day.per_second / (one.per_second or 1):.2f} ×"
