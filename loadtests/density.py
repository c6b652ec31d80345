"""Which density to run, and how many users to plan for, from measured curves. No I/O here.

Density is how many replicas (or slots, or containers) share the GPUs. It is not monotonic: of 48, 64 and 80 containers
on four cards, 64 was the worst. So nothing here interpolates between densities, drops one because its neighbour was
bad, or climbs a hill: every density of the grid is measured, and what is refined is refined around the best on both
sides. Nor is one good run believed: the count that decides needs ``confirmations`` runs, and so does the next count
above it, which must fail.

    capacity      most users that held the objective, confirmed
    collapse      fewest users above it that did not hold it, confirmed
    comfortable   most measured users that would still be held with a part of the capacity gone (``spare``), which is
                  what to plan for: capacity itself is one bad night away from the collapse
    hole          a count below the capacity that missed the objective: more users may do better than fewer, too
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, Self

import msgspec
from msgspec import Meta

from framelane.loadtests.sweep import student

Share = Annotated[float, Meta(ge=0, le=1)]


class DensityError(ValueError):
    """A density or a trial that cannot be read; the message says what is expected."""


class Layout(msgspec.Struct, frozen=True, order=True):
    """A density: so many replicas per device, each with so many workers and active slots; 0 is the server's choice."""

    replicas: Annotated[int, Meta(ge=1)]
    workers: Annotated[int, Meta(ge=0)] = 0
    slots: Annotated[int, Meta(ge=0)] = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``REPLICAS``, ``REPLICASxWORKERS`` or ``REPLICASxWORKERSxSLOTS``. Raises DensityError."""
        try:
            numbers = [int(part) for part in text.strip().lower().split("x")]
            return msgspec.convert(dict(zip(cls.__struct_fields__, numbers, strict=len(numbers) > 3)), cls)
        except ValueError:  # msgspec's errors are ValueErrors, too
            raise DensityError(f"density {text!r}: write it as REPLICAS, or REPLICASxWORKERSxSLOTS") from None

    def __str__(self) -> str:
        numbers = [self.replicas, self.workers, self.slots]
        while not numbers[-1]:
            numbers.pop()
        return "x".join(map(str, numbers))

    @property
    def processes(self) -> int:
        """Gateways, workers and slots; what is the server's choice counts as one."""
        return self.replicas * (1 + max(self.workers, 1) + max(self.slots, 1))


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold: a delivery ratio of at least, and ages of at most so many milliseconds. None: not asked."""

    delivery: Share = 0.979
    p50_ms: float | None = 259.0
    p95_ms: float | None = None

    def misses(self, trial: Trial) -> list[str]:
        """What the trial fell short of, in words; empty if it holds the objective."""
        if trial.void:
            return [f"void: {trial.void}"]
        missed = []
        if not trial.delivery >= self.delivery:
            missed.append(f"delivery {trial.delivery:.1%} < {self.delivery:.1%}")
        for name in ("p50_ms", "p95_ms"):
            limit, value = getattr(self, name), getattr(trial, name)
            if limit is not None and (value is None or not value <= limit):
                shown = "unknown" if value is None else f"{value:.0f} ms"
                missed.append(f"{name.removesuffix('_ms')} {shown} > {limit:g} ms")
        return missed


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run: so many users at this density. A p50 that was not measured is None, and holds no objective on it.

    ``void`` says why a run proves nothing (its load generator was late): it holds no objective either.
    """

    density: Layout
    users: Annotated[int, Meta(ge=1)]
    delivery: Share
    p50_ms: float | None = None
    p95_ms: float | None = None
    void: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials say of one density; counts are None while no trial decides them."""

    density: Layout
    capacity: int | None
    collapse: int | None
    comfortable: int | None
    confirmed: bool
    holes: tuple[int, ...] = ()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The best density for an objective."""

    best: Layout | None
    capacity: int | None
    plan_for: int | None
    collapse: int | None
    reasons: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    monotonic: bool
    """Whether the densities, in order, got only better or only worse."""


def merged(trials: Sequence[Trial]) -> Trial:
    """Runs of one density and count as one: the medians, of those that prove something where there are any."""
    trials = [trial for trial in trials if not trial.void] or trials
    first = trials[0]

    def median(name: str) -> float | None:
        values = [value for trial in trials if (value := getattr(trial, name)) is not None]
        return statistics.median(values) if values else None

    delivery = statistics.median(trial.delivery for trial in trials)
    return msgspec.structs.replace(first, delivery=delivery, p50_ms=median("p50_ms"), p95_ms=median("p95_ms"))


class Interval(NamedTuple):
    """A mean and the ends of its 95 % interval (Student's); one run alone could be anything."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Of the same figure in several runs."""
    if len(values) < 2:
        return Interval(values[0] if values else math.nan, -math.inf, math.inf)
    mean = statistics.fmean(values)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def certain(trials: Sequence[Trial], objective: Objective) -> bool:
    """Whether the runs of one count say more than their scatter: every asked figure's interval lies on the good side
    of its limit, or one's lies on the bad side."""
    proving = [trial for trial in trials if not trial.void]
    sides = [_side(interval([trial.delivery for trial in proving]), objective.delivery, at_least=True)]
    for name in ("p50_ms", "p95_ms"):
        limit, values = getattr(objective, name), [getattr(trial, name) for trial in proving]
        if limit is not None:
            known = [value for value in values if value is not None]
            sides.append(_side(interval(known), limit, at_least=False))
    return "bad" in sides or all(side == "good" for side in sides)


def _side(found: Interval, limit: float, at_least: bool) -> str:
    low, high = (found.low, found.high) if at_least else (-found.high, -found.low)
    limit = limit if at_least else -limit
    return "good" if low >= limit else "bad" if high < limit else "open"


Groups = dict[Layout, dict[int, list[Trial]]]


def grouped(trials: Iterable[Trial]) -> Groups:
    """Trials by density and then by users, both rising."""
    found: Groups = {}
    for trial in sorted(trials, key=lambda t: (t.density, t.users)):
        found.setdefault(trial.density, {}).setdefault(trial.users, []).append(trial)
    return found


def judge(
    by_users: Mapping[int, Sequence[Trial]], objective: Objective, spare: float = 0.25, confirmations: int = 1
) -> Verdict:
    """What the trials of one density say.

    Args:
        by_users: the runs at each count of users.
        objective: what must hold.
        spare: share of the capacity that may be lost and the users still be held: 0.25 is one card of four.
        confirmations: runs that a count needs to be believed.
    """
    holds = {users: not objective.misses(merged(trials)) for users, trials in by_users.items()}
    density = next(iter(by_users.values()))[0].density
    held = [users for users, ok in holds.items() if ok]
    capacity = max(held, default=None)
    above = [users for users, ok in holds.items() if not ok and users > (capacity or 0)]
    collapse = min(above, default=None)
    limit = (capacity or 0) * (1 - spare)
    comfortable = max((users for users in held if users <= limit), default=None)
    deciding = [users for users in (capacity, collapse) if users is not None]
    confirmed = len(deciding) == 2 and all(len(by_users[users]) >= confirmations for users in deciding)
    holes = tuple(users for users, ok in holds.items() if not ok and users < (capacity or 0))
    return Verdict(
        density=density, capacity=capacity, collapse=collapse, comfortable=comfortable, confirmed=confirmed,
        holes=holes,
    )  # fmt: skip


def choose(
    trials: Iterable[Trial], objective: Objective, users: int | None = None, spare: float = 0.25, confirmations: int = 1
) -> Choice:
    """The best density: the one that holds most users, or does best at exactly ``users``; and what to plan for.

    Between densities that hold equally many, the higher delivery there decides, then the lower p50, then fewer
    processes. Without ``users`` they are compared at the largest count that any of them held.
    """
    groups = grouped(trials)
    verdicts = tuple(judge(by_users, objective, spare, confirmations) for by_users in groups.values())
    at = users or max((verdict.capacity for verdict in verdicts if verdict.capacity), default=None)
    if at is None:
        return Choice(
            best=None, capacity=None, plan_for=None, collapse=None, verdicts=verdicts, monotonic=True,
            reasons=("no density held the objective at any count",),
        )  # fmt: skip
    measured = [merged(by_users[at]) for by_users in groups.values() if at in by_users]
    able = sorted((trial for trial in measured if not objective.misses(trial)), key=_goodness, reverse=True)
    reasons = tuple(_reason(trial, objective) for trial in sorted(measured, key=_goodness, reverse=True))
    if not able:
        return Choice(
            best=None, capacity=None, plan_for=None, collapse=None, reasons=reasons, verdicts=verdicts,
            monotonic=_monotonic(measured),
        )  # fmt: skip
    best = able[0].density
    verdict = next(verdict for verdict in verdicts if verdict.density == best)
    return Choice(
        best=best, capacity=verdict.capacity, plan_for=verdict.comfortable, collapse=verdict.collapse,
        reasons=reasons, verdicts=verdicts, monotonic=_monotonic(measured),
    )  # fmt: skip


def _goodness(trial: Trial) -> tuple[float, float, int]:
    p50 = trial.p50_ms if trial.p50_ms is not None else float("inf")
    return trial.delivery, -p50, -trial.density.processes


def _reason(trial: Trial, objective: Objective) -> str:
    missed = objective.misses(trial)
    p50 = "" if trial.p50_ms is None else f", p50 {trial.p50_ms:.0f} ms"
    fate = "holds the objective" if not missed else "misses it: " + ", ".join(missed)
    return f"density {trial.density} at {trial.users} users: delivery {trial.delivery:.1%}{p50}; {fate}"


def _monotonic(trials: Sequence[Trial]) -> bool:
    ratios = [trial.delivery for trial in sorted(trials, key=lambda trial: trial.density)]
    return ratios == sorted(ratios) or ratios == sorted(ratios, reverse=True)


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure next. It keeps no state: the same trials give the same answer, so a search can be resumed.

    Attributes:
        densities: the grid; all of them are measured.
        ladder: the counts of users that may be tried, rising.
        objective: what must hold.
        confirmations: runs that the deciding counts need; twice as many where they contradict each other.
        spare: see ``judge``; the comfortable count is measured, too.
        refine: the gap between numbers of replicas below which no density between two is tried; 0 tries none at all.
        excluded: densities that cannot be run.
    """

    densities: tuple[Layout, ...]
    ladder: tuple[int, ...]
    objective: Objective = Objective()
    confirmations: int = 2
    spare: float = 0.25
    refine: int = 0
    excluded: tuple[Layout, ...] = ()

    def next(self, trials: Iterable[Trial]) -> tuple[Layout, int] | None:
        """The density and the count of users to run next; None when everything is decided."""
        groups = grouped(trials)
        for densities in (lambda: self.densities, lambda: self._between(groups)):
            for density in densities():
                users = None if density in self.excluded else self._next_users(groups.get(density, {}))
                if users is not None:
                    return density, users
        return None

    def at_most(self) -> int:
        """Runs that one density may take, if none contradicts another and the first comfortable count holds."""
        return math.ceil(math.log2(len(self.ladder) + 1)) + 2 * (self.confirmations - 1) + 1

    def _next_users(self, by_users: Mapping[int, Sequence[Trial]]) -> int | None:
        """Halve the ladder between what held and what did not, confirm both ends of the step, then look below it."""
        held, failed = -1, len(self.ladder)
        for index, users in enumerate(self.ladder):
            if users in by_users:
                if self._holds(by_users[users]):
                    held = index
                elif index > held:
                    failed = min(failed, index)
        failed = failed if failed > held else len(self.ladder)
        if failed - held > 1:
            return self.ladder[(held + failed) // 2]
        for index in (held, failed):
            if 0 <= index < len(self.ladder) and not self._settled(by_users.get(self.ladder[index], ())):
                return self.ladder[index]
        return self._comfortable(by_users, self.ladder[held]) if held >= 0 else None

    def _holds(self, trials: Sequence[Trial]) -> bool:
        return not self.objective.misses(merged(trials))

    def _settled(self, trials: Sequence[Trial]) -> bool:
        agree = len({not self.objective.misses(trial) for trial in trials}) == 1
        return len(trials) >= self.confirmations * (1 if agree else 2)

    def _comfortable(self, by_users: Mapping[int, Sequence[Trial]], capacity: int) -> int | None:
        """The largest count that a part of the capacity would still hold, if nothing is known of it."""
        for users in reversed([users for users in self.ladder if users <= capacity * (1 - self.spare)]):
            if users not in by_users:
                return users
            if self._holds(by_users[users]):
                return None
        return None

    def _between(self, groups: Groups) -> list[Layout]:
        """Numbers of replicas half-way to the neighbours of the best one, on both sides."""
        best = choose([t for runs in groups.values() for found in runs.values() for t in found], self.objective).best
        if best is None or self.refine <= 0:
            return []
        alike = {d for d in (*self.densities, *groups) if (d.workers, d.slots) == (best.workers, best.slots)}
        known = sorted(alike)
        place = known.index(best)
        neighbours = known[max(place - 1, 0) : place] + known[place + 1 : place + 2]
        unfinished = [density for density in groups if density not in self.densities]
        middles = [
            msgspec.structs.replace(best, replicas=(best.replicas + other.replicas) // 2)
            for other in neighbours
            if abs(other.replicas - best.replicas) > self.refine
        ]
        return [*unfinished, *middles]
