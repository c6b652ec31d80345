"""The command ``framelane plan``."""

from __future__ import annotations

import datetime as dt
import importlib.resources
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from rich.table import Table as RichTable

from framelane.loadtests import tools
from framelane.loadtests.charts import Limit, LineChart, Series
from framelane.loadtests.cost import CostError, Price, choose_price, parse_prices
from framelane.loadtests.plan import Demand, Layout, Plan, PlanError, Projection, Stages, make_plan, per_gpu, project
from framelane.loadtests.plan_calibration import Calibration, Effortful, calibrate
from framelane.loadtests.plan_simulation import Load, Outcome, Replica, simulate
from framelane.loadtests.report import Finding, Report, Section, Table
from framelane.loadtests.windows import Vanished

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHARES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_OBJECTIVE = 0.979
_SIMULATED = "Simulated: the frame's path as discrete events, from the stage times below."


class _Data(msgspec.Struct, frozen=True):
    calibration: Calibration


class _File(msgspec.Struct, frozen=True):
    data: _Data


@click.command(name="plan")
@click.option("-u", "--users", type=click.IntRange(1), default=500, show_default=True)
@click.option("-f", "--fps", type=click.FloatRange(0, min_open=True), default=0.75, show_default=True, help="per user")
@click.option("-p", "--price", default="aws-g6e-xlarge", show_default=True,
              help="dollars per machine-hour, or a name from the price file")  # fmt: skip
@click.option("--prices", type=_FILE, help="TOML file of prices  [default: built in, dated; prices are inputs]")
@click.option("--measure", is_flag=True, help="measure a replica on this machine for the stage times")
@click.option("--serve", multiple=True, metavar="ARGS", help="with --measure: arguments for `framelane serve`")
@click.option("--calibration", type=_FILE, help="JSON of an earlier `framelane plan --measure`")
@click.option("--gateway-ms", type=click.FloatRange(0), default=0.2, show_default=True, help="CPU per frame")
@click.option("--worker-ms", type=click.FloatRange(0), default=3.0, show_default=True, help="CPU per frame")
@click.option("--slot-ms", type=click.FloatRange(0, min_open=True), default=6.7, show_default=True,
              help="of the device per frame, alone on it")  # fmt: skip
@click.option("--tax", default="1", show_default=True, help="factors with 1, 2, 3 … slots, from `framelane probe`")
@click.option("--slots-per-gpu", type=click.IntRange(1), default=2, show_default=True)
@click.option("--standby-per-gpu", type=click.IntRange(0), default=1, show_default=True)
@click.option("--model-mib", type=click.FloatRange(0), default=300.0, show_default=True, help="GPU memory per slot")
@click.option("--headroom", type=click.FloatRange(0, 1, max_open=True), default=0.3, show_default=True)
@click.option("--project", "projected", metavar="SECONDS:SHARE:TAX[:LIMIT]",
              help="end-to-end p95 now, its inference share, the tax; e.g. 22:0.64:1.48:45")  # fmt: skip
@tools.output_option("plan")
def main(price: str, prices: Path | None, tax: str, projected: str | None, output: Path, **given: Any) -> None:
    """Say how many replicas, GPUs and dollars so many users take, and what they would see.

    The stage times are yours (--worker-ms …), measured here (--measure), or from an earlier measurement
    (--calibration). A discrete-event simulation of the frame's path then says what users of one such replica see, below
    and above the plan; with --measure its error against a run that it did not see is printed.

    \b
      framelane plan --users 700 --slot-ms 6.67 --price 1.861
      framelane plan --users 2000 --measure --serve "--device cpu"
      framelane plan --tax 1,1.44,2.08 --slots-per-gpu 2
      framelane plan --project 22:0.64:1.48:45      what a taxed inference does to a whole workflow

    Prices are inputs; the built-in file only saves typing and says how old each entry is.
    """
    out = tools.console()
    with tools.failing(CostError, PlanError, Vanished, OSError, ValueError, msgspec.MsgspecError):
        listed = parse_prices(prices.read_text() if prices else _built_in())
        chosen = choose_price(price, listed)
        demand, layout = Demand(users=given["users"], fps=given["fps"]), _layout(given)
        projection = _projection(projected)
        measured = _measured(given["measure"], given["calibration"], given["serve"])
        factors = tuple(float(part) for part in tax.split(","))
        stages = msgspec.structs.replace(measured.stages, tax=factors) if measured else _stages(given, factors)
        plan = make_plan(demand, stages, layout, chosen)
    curve: list[tuple[float, Outcome]] = []
    with tools.interruptible(out) as interrupted, tools.steps(out, len(_SHARES)) as steps:
        for share in _SHARES:
            steps.say(f"simulating {share:.0%} of the users of one replica")
            curve.append(_simulated(share, demand, stages, layout, plan, measured))
            steps.done()
    _show(plan)
    planned = Planned(demand, stages, layout, chosen, plan, measured, curve, projection)
    report = make_report(planned, complete=not interrupted())
    tools.finish(out, report, output, tools.FAILED if projection and not projection.holds else 0)


def _built_in() -> str:
    return importlib.resources.files("framelane.loadtests").joinpath("prices.toml").read_text()


def _layout(given: dict[str, Any]) -> Layout:
    slots = given["slots_per_gpu"]
    names = ("standby_per_gpu", "model_mib", "headroom")
    return Layout(slots_per_gpu=slots, slots_per_replica=slots, **{name: given[name] for name in names})


def _stages(given: dict[str, Any], tax: tuple[float, ...]) -> Stages:
    return Stages(gateway_ms=given["gateway_ms"], worker_ms=given["worker_ms"], slot_ms=given["slot_ms"], tax=tax)


def _projection(text: str | None) -> Projection | None:
    if not text:
        return None
    parts = [float(part) for part in text.split(":")]
    if len(parts) not in (3, 4):
        raise PlanError(f"--project {text}: write it as SECONDS:SHARE:TAX[:LIMIT]")
    return project(*parts)


def _measured(measure: bool, calibration: Path | None, serve: tuple[str, ...]) -> Calibration | None:
    if calibration:
        return msgspec.json.decode(calibration.read_bytes(), type=_File).data.calibration
    if not measure:
        return None
    out = tools.console()
    arguments = tools.serve_arguments(serve)
    runs = 1 if "--pipeline" in arguments else 2  # face_mesh looks for a face, then for its landmarks
    with tempfile.TemporaryDirectory() as folder:
        effort = Effortful(serve=tuple(arguments), runs=runs)
        return calibrate(effort, Path(folder), lambda text: out.print(f"[dim]{text}[/]"))


def _simulated(
    share: float, demand: Demand, stages: Stages, layout: Layout, plan: Plan, measured: Calibration | None
) -> tuple[float, Outcome]:
    """What the users of one replica see at a share of the planned load."""
    users = max(1, round(share * demand.users / plan.replicas))
    workers = max(1, round(plan.workers / plan.replicas))
    replica = Replica(
        workers=workers,
        slots=layout.slots_per_replica,
        credits=max(3, -(-2 * layout.slots_per_replica // workers)),
        cores=workers + 1,
        runs=measured.replica.runs if measured else 1,
    )
    return share * demand.users, simulate(stages, replica, Load(users=users, fps=demand.fps), seconds=20)


def _show(plan: Plan) -> None:
    table = RichTable(
        "machines", "GPUs", "replicas", "active slots", "workers", "limit", "$/hour", "$/user-hour", "$/month"
    )
    counts = (plan.machines, plan.gpus, plan.replicas, plan.active_slots, plan.workers)
    money = (f"{plan.usd_per_hour:.3f}", f"{plan.usd_per_user_hour:.4f}", f"{plan.usd_per_month:,.0f}")
    table.add_row(*map(str, counts), plan.limit, *money)
    tools.console().print(table)


class Planned(NamedTuple):
    """Everything that a report tells."""

    demand: Demand
    stages: Stages
    layout: Layout
    price: Price
    plan: Plan
    measured: Calibration | None
    curve: list[tuple[float, Outcome]]
    projection: Projection | None


def make_report(planned: Planned, complete: bool = True) -> Report:
    """The report of a plan."""
    measured = planned.measured
    columns = ("users", "delivery", "per second and replica", "p50_ms", "p95_ms", "slots busy")
    rows = tuple((u, o.delivery, o.per_second, o.p50_ms, o.p95_ms, o.slots_busy) for u, o in planned.curve)
    seen = Table(columns=columns, rows=rows)
    curve = [{"users": users, **msgspec.to_builtins(outcome)} for users, outcome in planned.curve]
    return Report(
        name="plan",
        title=f"Plan for {planned.demand.users} users",
        facts={"time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "command": " ".join(sys.argv[1:])},
        findings=tuple(_findings(planned)),
        sections=(
            Section(title="What asks for machines", tables=(_need_table(planned.plan),)),
            Section(title="What users would see", text=(_SIMULATED,), charts=_charts(planned.curve), tables=(seen,)),
            Section(
                title="Stage times",
                text=(planned.stages.source,),
                tables=(_stage_table(planned.stages, planned.layout), *_check_tables(measured)),
            ),
        ),
        data={**planned._asdict(), "calibration": measured, "curve": curve},
        rows=seen,
        simulated=bool(measured and measured.simulated_device),
        complete=complete,
    )


def _findings(planned: Planned) -> list[Finding]:
    demand, plan, price = planned.demand, planned.plan, planned.price
    return [
        Finding(
            f"{demand.users} users at {demand.fps:g} frames/s are {demand.per_second:.0f} frames/s. Machines: "
            f"{plan.machines}, GPUs: {plan.gpus}, replicas: {plan.replicas}. What decides: {plan.limit}",
            "good",
        ),
        Finding(
            f"${plan.usd_per_user_hour:.4f} per user-hour, ${plan.usd_per_hour:.2f} per hour "
            f"(price as of {price.as_of}: {price.source})"
        ),
        Finding(f"GPUs busy {plan.utilisation:.0%}; {plan.gpu_memory_gib:.1f} GiB of GPU memory per card"),
        *(Finding(text, "open") for text in plan.warnings),
        *_check_findings(planned.measured),
        *_projection_findings(planned.projection),
    ]


def _need_table(plan: Plan) -> Table:
    rows = tuple((need.resource, need.amount, need.machines, need.why) for need in plan.needs)
    return Table(columns=("resource", "amount", "machines", "why"), rows=rows)


def _check_findings(measured: Calibration | None) -> list[Finding]:
    if not measured:
        return [Finding("the simulation was not held against a measured run: add --measure", "open")]
    errors = ", ".join(f"{one.figure} {one.error:+.0%}" for one in measured.checks)
    text = f"the simulation's error against a run of {measured.clients} clients: {errors}"
    if measured.foreign_cores > 0.2:
        text += f" (other programs used {measured.foreign_cores:.1f} cores)"
    return [Finding(text, "open" if any(abs(one.error) > 0.2 for one in measured.checks[:2]) else "good")]


def _projection_findings(projection: Projection | None) -> list[Finding]:
    if not projection:
        return []
    text = (
        f"end to end: {projection.before_s:g} s become {projection.after_s:.1f} s, {projection.ratio:.2f} ×; "
        f"the limit of {projection.limit_s:g} s {'holds' if projection.holds else 'is broken'}"
    )
    return [Finding(text, "good" if projection.holds else "bad")]


def _charts(curve: list[tuple[float, Outcome]]) -> tuple[LineChart, ...]:
    if len(curve) < 2:
        return ()
    users = tuple(u for u, _ in curve)
    latency = (
        Series(name="p50", x=users, y=tuple(o.p50_ms for _, o in curve)),
        Series(name="p95", x=users, y=tuple(o.p95_ms for _, o in curve)),
    )
    delivery = (Series(name="delivery", x=users, y=tuple(o.delivery for _, o in curve)),)
    limits = (Limit(name="objective", y=_OBJECTIVE),)
    return (
        LineChart(title="Delivery by users", x_name="users", y_name="delivery", series=delivery, limits=limits),
        LineChart(title="Latency by users", x_name="users", y_name="ms", series=latency),
    )


def _stage_table(stages: Stages, layout: Layout) -> Table:
    rows = (
        ("gateway, CPU", stages.gateway_ms),
        ("worker, CPU", stages.worker_ms),
        ("slot, CPU", stages.slot_cpu_ms),
        ("device, alone", stages.slot_ms),
        ("network and wake-ups", stages.wait_ms),
        (f"frames/s per card with {layout.slots_per_gpu} slots", per_gpu(stages, layout.slots_per_gpu)),
    )
    return Table(columns=("stage", "ms per frame"), rows=rows)


def _check_tables(measured: Calibration | None) -> tuple[Table, ...]:
    if not measured:
        return ()
    rows = tuple((c.figure, c.measured, c.simulated, f"{c.error:+.1%}") for c in measured.checks)
    return (Table(columns=("figure", "measured", "simulated", "error"), rows=rows),)


if __name__ == "__main__":
    sys.exit(main())
