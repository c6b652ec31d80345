"""What `framelane density` says: on the screen, and in its report."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.table import Table as RichTable

from framelane.loadtests import tools
from framelane.loadtests.charts import IntervalChart, Limit, LineChart, Row, Series
from framelane.loadtests.cost import Price, cost_per_user_hour
from framelane.loadtests.density import (
    Choice,
    Layout,
    Search,
    Trial,
    Verdict,
    certain,
    choose,
    grouped,
    interval,
    merged,
)
from framelane.loadtests.density_trials import Measured
from framelane.loadtests.report import Cell, Finding, Report, Section, Table, Tone

_EXPLAINED = (
    "Each line reaches from the count to plan for to the count at which the objective was first missed; the dot is the "
    "most users that held it. Every density was measured: more replicas are not always better."
)
_TONES: dict[str, Tone] = {"holds": "good"}


class Money(NamedTuple):
    """A price, and how many machines it is paid for."""

    price: Price
    machines: int

    def per_user_hour(self, users: int | None) -> float | None:
        """US dollars; None where no users are served."""
        return cost_per_user_hour(self.price.usd_per_hour, self.machines, users) if users else None


class Searched:
    """A search with what it measured.

    Args:
        search: what was asked.
        measured: all runs, in their order.
        failed: densities that could not be run, and why.
        at: users at which densities are compared; None: the most that any held.
        money: None where no price was given.
        simulated: whether the device was.
    """

    def __init__(
        self,
        search: Search,
        measured: Sequence[Measured],
        failed: Mapping[Layout, str],
        at: int | None = None,
        money: Money | None = None,
        simulated: bool = False,
    ) -> None:
        self.search = search
        self.measured = measured
        self.failed = failed
        self.at = at
        self.money = money
        self.simulated = simulated
        self.groups = grouped(found.trial for found in measured)

    @functools.cached_property
    def choice(self) -> Choice:
        """The best density, and what is to be said of each."""
        trials = [found.trial for found in self.measured]
        return choose(trials, self.search.objective, self.at, self.search.spare, self.search.confirmations)

    def runs(self, density: Layout, users: int | None) -> list[Trial]:
        """The trials of a density at a count."""
        return self.groups.get(density, {}).get(users or 0, [])

    def of(self, density: Layout) -> list[Measured]:
        """All runs of a density."""
        return [found for found in self.measured if found.trial.density == density]


def show(searched: Searched) -> None:
    """The verdicts as a table on the screen."""
    columns, rows = _verdict_rows(searched)
    table = RichTable(*columns)
    for row in rows:
        table.add_row(
            *("–" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row)
        )
    tools.console().print(table)


def make_report(searched: Searched, facts: dict[str, Any], complete: bool) -> Report:
    """The report of a search."""
    return Report(
        name="density",
        title="Density: how many users, on how many replicas",
        facts=facts,
        findings=tuple(_findings(searched)),
        sections=(_choice_section(searched), _curves(searched), _machine_section(searched), _runs_section(searched)),
        data={
            "choice": _plain(searched.choice),
            "search": _plain(searched.search),
            "runs": [_plain(found) for found in searched.measured],
            "failed": {str(density): why for density, why in searched.failed.items()},
            "money": {"price": searched.money.price, "machines": searched.money.machines} if searched.money else None,
        },
        rows=_runs_table(searched, folded=""),
        simulated=searched.simulated,
        complete=complete,
    )


# -- findings --------------------------------------------------------------------------------------------------------


def _findings(searched: Searched) -> Iterator[Finding]:
    choice = searched.choice
    if choice.best is None:
        yield from (Finding(reason, "bad") for reason in choice.reasons)
    else:
        yield _best(searched, choice)
        yield from _cost(searched, choice)
        if not choice.monotonic:
            yield Finding(_not_monotonic(searched, choice), "open")
    for verdict in choice.verdicts:
        yield from _doubts(searched, verdict)
    for density, why in searched.failed.items():
        yield Finding(f"density {density} could not be run: {why}", "bad")
    yield from (Finding(note, "open") for note in dict.fromkeys(n for found in searched.measured for n in found.notes))
    yield from _diagnosis(searched, choice)


def _best(searched: Searched, choice: Choice) -> Finding:
    plan = (
        f"plan for {choice.plan_for} users"
        if choice.plan_for
        else "no count low enough to plan for was measured (begin --users lower)"
    )
    collapse = f", and misses it at {choice.collapse}" if choice.collapse else "; it was not brought to its collapse"
    text = f"density {choice.best}: {plan}; it holds the objective up to {choice.capacity} users{collapse}"
    runs = len(searched.runs(choice.best, choice.capacity)) if choice.best else 0
    return Finding(f"{text} ({runs} {'run' if runs == 1 else 'runs'} there)", "good")


def _not_monotonic(searched: Searched, choice: Choice) -> str:
    at = searched.at or choice.capacity or 0
    found = [(density, merged(by_users[at])) for density, by_users in searched.groups.items() if at in by_users]
    told = ", ".join(f"{trial.delivery:.1%} at {density}" for density, trial in found)
    return f"more replicas are not always better here: delivery with {at} users is {told}"


def _cost(searched: Searched, choice: Choice) -> Iterator[Finding]:
    money = searched.money
    if money is None:
        yield Finding("no price was given: --price says what a user-hour costs")
        return
    price = money.price
    costs = [
        f"${money.per_user_hour(users):.4f} per user-hour at {what} ({users} users)"
        for users, what in ((choice.capacity, "capacity"), (choice.plan_for, "the planned count"))
        if users
    ]
    total = f"{money.machines} × ${price.usd_per_hour:g} an hour, price as of {price.as_of}, {price.source}"
    yield Finding(f"{'; '.join(costs)}: {total}")


def _doubts(searched: Searched, verdict: Verdict) -> Iterator[Finding]:
    name, search = f"density {verdict.density}", searched.search
    if verdict.capacity and not verdict.collapse:
        yield Finding(f"{name} held every count that was tried: its capacity is at least {verdict.capacity}", "open")
    for users in verdict.holes:
        yield Finding(f"{name} missed the objective at {users} users, though it held it at {verdict.capacity}", "open")
    for users in filter(None, (verdict.capacity, verdict.collapse)):
        runs = searched.runs(verdict.density, users)
        if runs and all(trial.void for trial in runs):
            yield Finding(f"{name} at {users} users is void: {runs[0].void}; use more cores or fewer users", "bad")
        elif len(runs) > 1 and not certain(runs, search.objective):
            yield Finding(f"{name} at {users} users: {len(runs)} runs scatter across the objective's limit", "open")


def _diagnosis(searched: Searched, choice: Choice) -> Iterator[Finding]:
    """What the replicas of the best density say of themselves where they do not hold the objective any more."""
    if choice.best is None:
        return
    above = [f for f in searched.of(choice.best) if f.trial.users > (choice.capacity or 0) and f.limit]
    if above:
        found = max(above, key=lambda measured: measured.trial.users)
        text = f"at {found.trial.users} users the replicas say: {found.limit}"
        yield Finding(f"{text} Advice: {found.advice}" if found.advice else text)


# -- sections --------------------------------------------------------------------------------------------------------


def _choice_section(searched: Searched) -> Section:
    rows = tuple(_row(verdict, searched.choice.best) for verdict in searched.choice.verdicts)
    chart = IntervalChart(title="Users held, by density", x_name="users", rows=rows) if rows else None
    columns, cells = _verdict_rows(searched)
    return Section(
        title="Which density",
        text=(_objective(searched), _EXPLAINED),
        charts=(chart,) if chart else (),
        tables=(Table(columns=columns, rows=cells),),
    )


def _row(verdict: Verdict, best: Layout | None) -> Row:
    capacity = float(verdict.capacity or 0)
    low, high = float(verdict.comfortable or capacity), float(verdict.collapse or capacity)
    tone = "good" if verdict.density == best else "open" if verdict.capacity else "bad"
    return Row(name=f"density {verdict.density}", value=capacity, low=low, high=high, verdict=tone)


def _objective(searched: Searched) -> str:
    objective = searched.search.objective
    parts = [f"delivery of at least {objective.delivery:.1%}"]
    ages = (("p50", objective.p50_ms), ("p95", objective.p95_ms))
    parts += [f"{name} of at most {limit:g} ms" for name, limit in ages if limit is not None]
    return f"The objective: {' and '.join(parts)}."


def _verdict_rows(searched: Searched) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    columns = ["density", "plan for", "capacity", "collapse", "confirmed", "delivery (95 %)", "p50 ms", "PSS MiB"]
    rows = []
    for verdict in searched.choice.verdicts:
        runs = [trial for trial in searched.runs(verdict.density, verdict.capacity) if not trial.void]
        found = merged(runs) if runs else None
        row: list[Cell] = [str(verdict.density), verdict.comfortable, verdict.capacity, verdict.collapse]
        row += [verdict.confirmed, _delivery(runs), found.p50_ms if found else None]
        row.append(_mean(f.pss_mib or None for f in searched.of(verdict.density)))
        if searched.money:
            row += [searched.money.per_user_hour(users) for users in (verdict.capacity, verdict.comfortable)]
        rows.append(tuple(row))
    columns += ["$/user-hour", "as planned"] if searched.money else []
    return tuple(columns), tuple(rows)


def _delivery(runs: Sequence[Trial]) -> str | None:
    """The median, and the mean's 95 % interval where there are several runs."""
    if not runs:
        return None
    median, span = f"{merged(runs).delivery:.1%}", interval([trial.delivery for trial in runs])
    return f"{median} ({max(span.low, 0.0):.1%} – {min(span.high, 1.0):.1%})" if len(runs) > 1 else median


def _curves(searched: Searched) -> Section:
    objective = searched.search.objective
    delivery = _series(searched, lambda trial: 100 * trial.delivery)
    p50 = _series(searched, lambda trial: trial.p50_ms)
    p95 = _series(searched, lambda trial: trial.p95_ms)
    limits = [
        (Limit(name=name, y=limit),) if limit else ()
        for name, limit in (("objective", objective.p50_ms), ("objective", objective.p95_ms))
    ]
    charts = (
        LineChart(title="Delivery", x_name="users", y_name="% of frames", series=delivery, from_zero=False,
                  limits=(Limit(name="objective", y=100 * objective.delivery),)),
        LineChart(title="Age of results, median", x_name="users", y_name="ms", series=p50, limits=limits[0]),
        LineChart(title="Age of results, 95th percentile", x_name="users", y_name="ms", series=p95, limits=limits[1]),
    )  # fmt: skip
    text = "Medians of the runs of each count, with the span between its best and worst run."
    return Section(title="Delivery and latency", text=(text,), charts=tuple(chart for chart in charts if chart.series))


def _series(searched: Searched, figure: Callable[[Trial], float | None]) -> tuple[Series, ...]:
    """A line per density through the medians; the band is from the worst run to the best."""
    lines = []
    for density, by_users in searched.groups.items():
        points = {
            float(users): [value for trial in trials if not trial.void and (value := figure(trial)) is not None]
            for users, trials in by_users.items()
        }
        points = {users: values for users, values in points.items() if values}
        if points:
            lines.append(
                Series(
                    name=f"density {density}",
                    x=tuple(points),
                    y=tuple(statistics.median(values) for values in points.values()),
                    low=tuple(min(values) for values in points.values()),
                    high=tuple(max(values) for values in points.values()),
                )
            )
    return tuple(lines)


def _machine_section(searched: Searched) -> Section:
    """What the replicas used at the largest count that each density held."""
    columns = ("density", "users", "PSS MiB per replica", "GPU MiB per replica", "cores used", "generator cores",
               "results per second", "p99 ms", "they name as limit")  # fmt: skip
    rows = []
    for verdict in searched.choice.verdicts:
        runs = [
            found for found in searched.of(verdict.density) if found.trial.users == verdict.capacity and found.cores
        ]
        if runs:
            gpu = _mean(found.gpu_mib for found in runs)
            figures = (_mean(f.cores for f in runs), _mean(f.generator_cores for f in runs))
            rates = (_mean(f.delivered for f in runs), _mean(f.p99_ms for f in runs))
            pss = _mean(found.pss_mib for found in runs)
            named = next((found.limit for found in runs if found.limit), "")
            shown = gpu if gpu is not None else "not available"
            rows.append((str(verdict.density), verdict.capacity, pss, shown, *figures, *rates, named))
    tables = (Table(columns=columns, rows=tuple(rows)),) if rows else ()
    text = "At the capacity of each density." if rows else "Not measured here: the trials were given."
    return Section(title="What the replicas use", text=(text,), tables=tables)


def _runs_section(searched: Searched) -> Section:
    return Section(title="Runs", tables=(_runs_table(searched, folded="every run"),))


def _runs_table(searched: Searched, folded: str) -> Table:
    columns = ("density", "users", "delivery", "p50_ms", "p95_ms", "p99_ms", "offered_per_s", "delivered_per_s",
               "without_place", "lag_p99_ms", "cores", "generator_cores", "pss_mib", "gpu_mib", "verdict")  # fmt: skip
    rows = tuple(
        (str(f.trial.density), f.trial.users, f.trial.delivery, f.trial.p50_ms, f.trial.p95_ms, f.p99_ms, f.offered,
         f.delivered, f.without_place, f.lag_p99_ms, f.cores, f.generator_cores, f.pss_mib, f.gpu_mib,
         "; ".join(searched.search.objective.misses(f.trial)) or "holds")
        for f in searched.measured
    )  # fmt: skip
    return Table(columns=columns, rows=rows, tones=_TONES, folded=folded)


def _plain(value: msgspec.Struct) -> Any:
    """Builtins for the JSON file, with densities as they are written on the command line."""
    return _named(msgspec.to_builtins(value))


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == set(Layout.__struct_fields__):
            return str(Layout(**value))
        return {key: _named(part) for key, part in value.items()}
    return [_named(part) for part in value] if isinstance(value, list | tuple) else value


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
