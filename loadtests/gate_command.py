"""The command ``framelane gate``."""

from __future__ import annotations

import datetime as dt
import importlib.resources
import math
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from framelane.loadtests import tools
from framelane.loadtests.charts import Limit, LineChart, Series
from framelane.loadtests.gate import (
    Day,
    Decision,
    GateError,
    Gates,
    Outcome,
    Promoted,
    Reading,
    decide,
    decide_promotion,
    parse_gates,
    whole_days,
)
from framelane.loadtests.history import Prometheus, read_file, step_of
from framelane.loadtests.report import Finding, Report, Section, Table, Tone

_TONES: dict[str, Tone] = {"pass": "good", "borderline": "open", "fail": "bad"}
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Levels(msgspec.Struct, frozen=True):
    levels: list[Reading]


class _ProbeFile(msgspec.Struct, frozen=True):
    data: _Levels


@click.command(name="gate")
@click.option("--probe", "probe_file", type=_FILE, help="JSON of `framelane probe`")
@click.option("--reading", "readings", multiple=True, metavar="SLOTS:P95_MS:THROUGHPUT[:OK/ATTEMPTS]",
              help="a reading by hand instead, for example 2:2223:1.35:20/20")  # fmt: skip
@click.option("--gates", "gates_file", type=_FILE, help="TOML file of gates  [default: built in, see --show-gates]")
@click.option("--prometheus", metavar="URL", help="take production's history from this Prometheus")
@click.option("--selector", default="", metavar="LABELS", help='its series, e.g. instance="replica-1:8000"')
@click.option("--history", type=_FILE, help="take it from this CSV instead: time,p95_ms,per_second")
@click.option("--today", type=click.DateTime(["%Y-%m-%d"]), help="decide as on this day  [default: today, UTC]")
@click.option("--step", type=click.IntRange(60), default=3600, show_default=True, help="seconds per step of history")
@click.option("--show-gates", is_flag=True, help="print the built-in gates as TOML, to copy and change")
@tools.output_option("gate")
def main(
    probe_file: Path | None, readings: tuple[str, ...], gates_file: Path | None, show_gates: bool, output: Path,
    **where: Any,
) -> None:  # fmt: skip
    """Decide how many slots shall be active, and whether the spare one has earned its place.

    A probe's readings are held against gates: pass, borderline (let through, and said), or fail, each with its margin.
    As many slots become active as pass one after another; one more is kept warm.

    With production's history it also decides the promotion of that spare: p95 at most 1.5 times *and* throughput at
    least 2.0 times that of one slot, on each of the last 7 whole days (all of it in the gates file), or it says what
    is missing.

    \b
      framelane gate --probe out/probe/probe.json
      framelane gate --probe out/probe/probe.json --prometheus http://localhost:9090
      framelane gate --reading 1:1544:1 --reading 2:2223:1.35 --history production.csv

    A day's throughput is that of its busiest step, its p95 the worst of all its steps. The exit status is 1 if the
    spare is not promoted, or, without history, if a number of slots fails.
    """
    if show_gates:
        click.echo(_built_in())
        return
    out = tools.console()
    with tools.failing(GateError, OSError, msgspec.MsgspecError):
        gates = parse_gates(gates_file.read_text() if gates_file else _built_in())
        found = _readings(probe_file, readings)
        decision = decide(found, gates)
        days, promoted = _promotion(found, gates, **where)
    failed = any(ruling.outcome is Outcome.FAIL for ruling in decision.rulings)
    status = tools.FAILED if (not promoted.promote if promoted else failed) else 0
    tools.finish(out, make_report(found, decision, gates, days, promoted), output, status)


def _built_in() -> str:
    return importlib.resources.files("framelane.loadtests").joinpath("gates.toml").read_text()


def _readings(probe_file: Path | None, by_hand: tuple[str, ...]) -> list[Reading]:
    if probe_file:
        return msgspec.json.decode(probe_file.read_bytes(), type=_ProbeFile).data.levels
    if by_hand:
        return [_reading(text) for text in by_hand]
    raise GateError("give --probe FILE or --reading SLOTS:P95_MS:THROUGHPUT, one of them of one slot")


def _reading(text: str) -> Reading:
    try:
        slots, p95, throughput, *rest = text.split(":")
        good, _, all_of_them = (rest[0] if rest else "10/10").partition("/")
        return Reading(
            slots=int(slots), attempts=int(all_of_them), successes=int(good), p95_ms=float(p95),
            per_second=float(throughput),
        )  # fmt: skip
    except ValueError:
        raise GateError(f"reading {text!r}: write it as SLOTS:P95_MS:THROUGHPUT[:OK/ATTEMPTS]") from None


def _promotion(
    readings: list[Reading], gates: Gates, prometheus: str | None, selector: str, history: Path | None,
    today: dt.datetime | None, step: int,
) -> tuple[list[Day], Promoted | None]:  # fmt: skip
    if not prometheus and not history:
        return [], None
    now = (today or dt.datetime.now(dt.UTC)).replace(tzinfo=dt.UTC)
    one = next(reading for reading in readings if reading.slots == 1)
    if history:
        samples = read_file(history)
        length = step_of(samples)
    else:
        length = dt.timedelta(seconds=step)
        samples = Prometheus(str(prometheus), selector).samples(now, gates.promotion.days, length)
    days = whole_days(samples, length)
    return days, decide_promotion(days, one, gates.promotion, now.date())


def make_report(
    readings: list[Reading], decision: Decision, gates: Gates, days: list[Day], promoted: Promoted | None
) -> Report:
    """The report of a gate."""
    rows = tuple((r.slots, r.figure, r.value, r.limit, f"{r.margin:+.1%}", str(r.outcome)) for r in decision.rulings)
    names = ("slots", "figure", "value", "limit", "margin", "verdict")
    sections = [Section(title="Gates", tables=(Table(columns=names, rows=rows, tones=_TONES),))]
    if promoted:
        sections.append(_promotion_section(readings, gates, days, promoted))
    return Report(
        name="gate",
        title="Gate: how many slots shall be active",
        findings=tuple([Finding(reason, _tone(reason)) for reason in decision.reasons] + _promotion_findings(promoted)),
        sections=tuple(sections),
        facts={"time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")},
        data={"readings": readings, "decision": decision, "gates": gates, "days": days, "promotion": promoted},
    )


def _tone(reason: str) -> Tone:
    return (
        "bad" if " fail: " in reason else "open" if "borderline" in reason else "good" if "pass every" in reason else ""
    )


def _promotion_findings(promoted: Promoted | None) -> list[Finding]:
    if promoted is None:
        return [Finding("production's history was not looked at: the spare stays what it is", "")]
    if promoted.promote:
        return [Finding("promote the spare slot to active: every day met the trigger", "good")]
    return [Finding("do not promote the spare slot", "bad"), *(Finding(text, "open") for text in promoted.missing)]


def _promotion_section(readings: list[Reading], gates: Gates, days: list[Day], promoted: Promoted) -> Section:
    one = next(reading for reading in readings if reading.slots == 1)
    x = tuple(float(number) for number in range(-len(days), 0))
    p95 = tuple(day.p95_ms / one.p95_ms for day in days)
    throughput = tuple(day.per_second / (one.per_second or math.nan) for day in days)
    chart = LineChart(
        title="Production over one slot",
        x_name="days before today",
        y_name="×",
        series=(Series(name="p95", x=x, y=p95), Series(name="throughput", x=x, y=throughput)),
        limits=(
            Limit(name="p95 at most", y=gates.promotion.p95),
            Limit(name="throughput at least", y=gates.promotion.throughput),
        ),
    )
    rows = tuple(zip((str(day.date) for day in days), p95, throughput, (d.coverage for d in days), strict=True))
    table = Table(columns=("day", "p95 ×", "throughput ×", "seen"), rows=rows)
    return Section(title="Promotion of the spare", text=promoted.days, charts=(chart,) if days else (), tables=(table,))


if __name__ == "__main__":
    sys.exit(main())
