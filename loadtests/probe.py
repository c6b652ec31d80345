"""Do slots really run at the same time? Reads what attempts with 1, 2, 3 … active slots say about it. No I/O here.

With n slots kept busy, each with the same number of frames in flight:

    latency × throughput   concurrency is      the ceiling looks like
    ≈ 1 ×     ≈ n ×        full                none yet: every slot has what it needs
    1 < … < n × > 1 ×      shared              shared bandwidth, if each slot adds about the same latency (memory, bus);
                                               contention, if each adds more than the one before (caches, locks, power)
    ≈ n ×     ≈ 1 ×        serial              a queue: the device runs one after another, whatever the slots believe

Latency is that of the whole attempt. The slots are kept busy with more than one frame in flight each, and then it is
exactly frames in flight ÷ throughput (Little's law): what client, network, decoding and workers add overlaps with runs
and drops out, so the ratio is that of the slots alone, however fast a run is.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from framelane.loadtests.gate import Reading

SERIAL_WITHIN = 0.2
"""How much more throughput than one slot's is still called serial."""
FULL_WITHIN = 0.05
PLAUSIBLE = 0.9
LINEAR_WITHIN = 0.25
"""How much the latency added by each slot may differ from their mean to be called the same."""

Concurrency = Literal["full", "shared", "serial", "unknown"]


class Attempt(msgspec.Struct, frozen=True):
    """One frame: whether its result came, seconds until then, and when it ended (seconds on any clock)."""

    ok: bool
    seconds: float
    ended: float
    inference_ms: float = 0.0
    why: str = ""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen with so many active slots."""

    slots: int
    depth: int
    attempts: int
    successes: int
    p50_ms: float
    p95_ms: float
    per_second: float
    inference_ms: float
    failures: dict[str, int] = {}
    foreign_cores: float = 0.0
    """Cores that other programs of the machine used meanwhile."""

    def reading(self) -> Reading:
        """What the gates look at."""
        return Reading(
            slots=self.slots,
            attempts=self.attempts,
            successes=self.successes,
            p95_ms=self.p95_ms,
            per_second=self.per_second,
        )


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One number of slots against one slot. ``serial_p95`` is what serial queueing would read."""

    slots: int
    success: float
    p95: float
    latency: float
    """Of the medians, since a tail has many causes."""
    throughput: float
    serial_p95: float
    concurrency: Concurrency


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe says."""

    steps: tuple[Step, ...]
    concurrency: Concurrency
    ceiling: str
    added_per_slot: float | None
    """Latency that each further slot adds, in units of one slot's latency; None where it is not about the same."""
    best: int
    """Slots beyond which throughput grows by less than a twentieth."""
    implausible: str
    """Why these figures cannot be true of a device, so that nothing should be decided by them; "" if they can."""


def level(slots: int, depth: int, attempts: Sequence[Attempt], seconds: float, foreign_cores: float = 0.0) -> Level:
    """Sum up the attempts of one number of slots, made in so many seconds."""
    good = [attempt for attempt in attempts if attempt.ok]
    times = sorted(attempt.seconds * 1000 for attempt in good)
    failures: dict[str, int] = {}
    for attempt in attempts:
        if not attempt.ok:
            failures[attempt.why] = failures.get(attempt.why, 0) + 1
    return Level(
        slots=slots,
        depth=depth,
        attempts=len(attempts),
        successes=len(good),
        p50_ms=percentile(times, 50),
        p95_ms=percentile(times, 95),
        per_second=len(good) / seconds if seconds > 0 else float("nan"),
        inference_ms=statistics.median([a.inference_ms for a in good]) if good else float("nan"),
        failures=failures,
        foreign_cores=foreign_cores,
    )


def merged(rounds: Sequence[Level]) -> Level:
    """Several rounds of one number of slots as one: attempts add up, of the figures the median counts."""
    first = rounds[0]

    def median(name: str) -> float:
        values = [value for one in rounds if (value := getattr(one, name)) == value]
        return statistics.median(values) if values else float("nan")

    failures: dict[str, int] = {}
    for one in rounds:
        for why, count in one.failures.items():
            failures[why] = failures.get(why, 0) + count
    return Level(
        slots=first.slots,
        depth=first.depth,
        attempts=sum(one.attempts for one in rounds),
        successes=sum(one.successes for one in rounds),
        p50_ms=median("p50_ms"),
        p95_ms=median("p95_ms"),
        per_second=median("per_second"),
        inference_ms=median("inference_ms"),
        failures=failures,
        foreign_cores=median("foreign_cores"),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in rising order, by linear interpolation; not-a-number of none."""
    if not ordered:
        return float("nan")
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def read(levels: Sequence[Level]) -> Findings:
    """Compare every number of slots with one slot. The first level must be that of one slot."""
    one = levels[0]
    steps = tuple(_step(found, one) for found in levels)
    kinds = [step.concurrency for step in steps[1:]]
    concurrency: Concurrency = "unknown"
    if kinds:
        # Serial at the highest number is serial: with two slots a bad tax looks alike.
        concurrency = kinds[-1] if kinds[-1] != "unknown" else kinds[0]
    added = _added(steps)
    return Findings(
        steps=steps,
        concurrency=concurrency,
        ceiling=_ceiling(concurrency, steps, added),
        added_per_slot=added,
        best=_best(steps),
        implausible=_implausible(steps),
    )


def _step(found: Level, one: Level) -> Step:
    latency, throughput = found.p50_ms / one.p50_ms, found.per_second / one.per_second
    return Step(
        slots=found.slots,
        success=found.successes / found.attempts if found.attempts else 0.0,
        p95=found.p95_ms / one.p95_ms,
        latency=latency,
        throughput=throughput,
        serial_p95=float(found.slots),
        concurrency=concurrency_of(found.slots, latency, throughput),
    )


def concurrency_of(slots: int, latency: float, throughput: float) -> Concurrency:
    """How so many slots share their device, by latency and throughput against one slot."""
    if slots == 1 or latency != latency or throughput != throughput:
        return "unknown"
    if throughput <= 1 + SERIAL_WITHIN:
        return "serial"  # whatever the median says: where turns are not taken fairly, few attempts wait for all others
    if throughput >= slots * (1 - FULL_WITHIN):
        return "full"
    return "shared"


def _added(steps: Sequence[Step]) -> float | None:
    """The mean latency that each slot adds, where at least two additions are about the same."""
    gains = [
        (after.latency - before.latency) / (after.slots - before.slots) for before, after in itertools.pairwise(steps)
    ]
    if not gains or not all(gain > 0.02 for gain in gains):
        return None
    mean = statistics.fmean(gains)
    return mean if len(gains) == 1 or max(abs(gain - mean) for gain in gains) <= LINEAR_WITHIN * mean else None


def _ceiling(concurrency: Concurrency, steps: Sequence[Step], added: float | None) -> str:
    if concurrency == "serial":
        return "serial: the device runs one slot after another; more active slots only make a longer queue"
    if concurrency == "full":
        return "none yet: every slot ran as if it were alone; more may fit"
    if concurrency == "unknown":
        return "unknown: only one number of slots was measured, or nothing came back"
    if added is not None and len(steps) > 2:
        return (
            f"shared bandwidth: each slot adds about {added:.0%} of one slot's latency, as when all wait for the same "
            "memory or bus"
        )
    if added is not None:
        return f"shared: the second slot adds {added:.0%} latency; a third tells whether that goes on"
    gains = [after.latency - before.latency for before, after in itertools.pairwise(steps)]
    if gains[-1] > gains[0]:
        return "contention: each slot adds more latency than the one before (caches, locks, power or cores)"
    return "filling up: each slot adds less latency than the one before; the ceiling is not reached"


def _implausible(steps: Sequence[Step]) -> str:
    """More work at once never makes a device faster than alone: then something else slowed the baseline."""
    for step in steps[1:]:
        if step.p95 < PLAUSIBLE or step.latency < PLAUSIBLE or step.throughput * PLAUSIBLE > step.slots:
            return (
                f"{step.slots} slots read p95 {step.p95:.2f} × and throughput {step.throughput:.2f} × of one slot's: "
                "something else disturbed the measurement of one slot; measure again on a quiet machine"
            )
    return ""


def _best(steps: Sequence[Step]) -> int:
    best = steps[0]
    for step in steps[1:]:
        if step.throughput > best.throughput * 1.05:
            best = step
    return best.slots


def depth_for(overhead_share: float, wanted: int = 0) -> int:
    """Frames in flight per slot, so that no slot waits for the next one.

    Args:
        overhead_share: part of a lone attempt that was not inference.
        wanted: what the user asked for; 0 to decide here: one alone where the rest is below 3 %, else three, or more
            where the rest takes longer than the inference itself.
    """
    if wanted:
        return wanted
    if overhead_share < 0.03:
        return 1
    share = min(overhead_share, 0.9)
    return 3 + int(share / (1 - share))


def record(levels: Sequence[Level], findings: Findings) -> dict[str, Any]:
    """For the JSON file; ``framelane gate`` reads ``levels`` from it."""
    return {"levels": msgspec.to_builtins(list(levels)), "findings": msgspec.to_builtins(findings)}
