"""The command ``framelane probe``."""

from __future__ import annotations

import importlib.resources
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table as RichTable

from framelane.loadtests import probe, tools
from framelane.loadtests.charts import LineChart, Series
from framelane.loadtests.clips import moving_face
from framelane.loadtests.gate import Decision, GateError, Outcome, decide, parse_gates
from framelane.loadtests.generator import NotServed
from framelane.loadtests.probe import Findings, Level
from framelane.loadtests.probe_run import GivenServer, OwnServers, Probing
from framelane.loadtests.processes import StartFailed
from framelane.loadtests.report import Finding, Report, Section, Table, Tone
from framelane.loadtests.rfc6455 import HandshakeFailed

_TONES: dict[str, Tone] = {"pass": "good", "borderline": "open", "fail": "bad"}
_DISTURBED = 0.2
_EXPLAINED = (
    "Latency and throughput with n slots kept busy, over those with one. Slots that did not disturb each other would "
    "read 1 × and n ×; serial queueing would read n × and 1 ×."
)


@click.command(name="probe")
@click.option("-n", "--slots", default="1,2,3", show_default=True, help="numbers of active slots, from 1")
@click.option("-a", "--attempts", type=click.IntRange(1), default=100, show_default=True, help="attempts per slot")
@click.option(
    "-r", "--rounds", type=click.IntRange(1), default=3, show_default=True, help="rounds; figures are medians"
)
@click.option(
    "--depth", type=click.IntRange(0, 16), default=0, help="frames in flight per slot  [default: by measuring]"
)
@click.option("--device", default="auto", show_default=True, help="as in `framelane serve`")
@click.option("--pipeline", default="face_mesh", show_default=True, help="as in `framelane serve`")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="workers of the server")
@click.option("--serve", multiple=True, metavar="ARGS", help="further arguments for `framelane serve`")
@click.option("--url", default="", help="probe this running server instead: http://host:port")
@click.option("--timeout", type=click.FloatRange(0.1), default=30.0, show_default=True, help="seconds for an attempt")
@click.option(
    "--gates", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="gates  [default: built in]"
)
@tools.output_option("probe")
def main(
    slots: str, gates: Path | None, output: Path, url: str, device: str, serve: tuple[str, ...],
    **given: Any,
) -> None:  # fmt: skip
    """Find out whether slots that share a device really run at the same time, and how many are worth having.

    Starts a server for 1, 2, 3 … active slots (or uses a running one), keeps that many slots busy, and times attempts.
    Reported per number of slots: success rate, p95 and throughput against one slot, what serial queueing would read,
    and the verdict of the gates. With your own model:

    \b
      framelane probe --device cuda:0 --pipeline my_module:MyPipeline -a 200
      framelane probe --device sim:8:group=a:tax=1,1.44,2.08     a device that is known
      framelane probe --url http://host:8000 --slots 1,2         a server that runs

    Slots are kept busy with more than one frame in flight each where a run is short, so that decoding, network and
    workers, which overlap with runs, do not dilute the ratio; it is then exactly that of the slots. A running server
    gets one frame per slot, since it cannot be told how many slots to use: expect lower ratios for short runs.

    The report's JSON is what `framelane gate --probe` reads. Ctrl-C keeps what was measured. The exit status is 1
    if a number of slots fails its gate, 2 if nothing can be decided.
    """
    out = tools.console()
    with tools.failing(ValueError, NotServed, HandshakeFailed, OSError), tempfile.TemporaryDirectory() as folder:
        numbers = _numbers(slots)
        limits = parse_gates(_gates_text(gates))
        arguments = tuple(tools.serve_arguments(serve))
        probing = Probing(slots=numbers, device=device, serve=arguments, **given)
        frames = moving_face(frames=20).frames
        target = GivenServer(url, probing, frames) if url else OwnServers(probing, frames, Path(folder))
        facts = tools.machine_facts()
        levels: list[Level] = []
        failed = False
        with tools.interruptible(out) as interrupted, tools.steps(out, len(numbers) * probing.rounds) as steps:

            def tell(text: str, share: float) -> None:
                if share == 0.0 or out.is_terminal:
                    steps.say(text)
                steps.part(share)

            try:
                for found in target.levels(tell):
                    levels.append(found)
                    steps.done()
            except (StartFailed, NotServed, OSError) as error:
                if not levels:
                    raise
                failed = True
                out.print(f"[red]{error}[/]; what was measured so far:")
        if not any(found.slots == 1 and found.successes for found in levels):
            raise GateError("no attempt with one slot succeeded: there is nothing to compare with")
        simulated = device.startswith("sim") and not url
        _conclude(levels, limits, facts, not (failed or interrupted()), simulated, output)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(sorted({int(part) for part in text.split(",")}))
    if numbers[0] != 1:
        raise ValueError(f"--slots {text}: the numbers start at 1, with which the others are compared")
    return numbers


def _gates_text(path: Path | None) -> str:
    return (
        path.read_text()
        if path
        else importlib.resources.files("framelane.loadtests").joinpath("gates.toml").read_text()
    )


def _conclude(
    rounds: Sequence[Level], gates: Any, facts: dict[str, Any], complete: bool, simulated: bool, output: Path
) -> None:
    by_slots: dict[int, list[Level]] = {}
    for one in rounds:
        by_slots.setdefault(one.slots, []).append(one)
    levels = [probe.merged(by_slots[slots]) for slots in sorted(by_slots)]
    findings = probe.read(levels)
    decision = decide([one.reading() for one in levels], gates)
    report = make_report(levels, rounds, findings, decision, facts, complete, simulated)
    _show(levels, findings)
    failed = any(ruling.outcome is Outcome.FAIL for ruling in decision.rulings)
    status = tools.UNUSABLE if findings.implausible else tools.FAILED if failed else 0
    tools.finish(tools.console(), report, output, status)


def _show(levels: Sequence[Level], findings: Findings) -> None:
    columns = (
        "slots",
        "attempts",
        "success",
        "p50 ms",
        "p95 ms",
        "p50 ×",
        "p95 ×",
        "serial ×",
        "per s",
        "throughput ×",
    )
    table = RichTable(*columns)
    for one, step in zip(levels, findings.steps, strict=True):
        cells = (one.p50_ms, one.p95_ms, step.latency, step.p95, step.serial_p95, one.per_second, step.throughput)
        table.add_row(str(one.slots), str(one.attempts), f"{step.success:.1%}", *(f"{cell:.4g}" for cell in cells))
    tools.console().print(table)


def make_report(
    levels: Sequence[Level], rounds: Sequence[Level], findings: Findings, decision: Decision, facts: dict[str, Any],
    complete: bool, simulated: bool,
) -> Report:  # fmt: skip
    """The report of a probe."""
    said = [Finding(f"concurrency is {findings.concurrency}; the ceiling: {findings.ceiling}"), *_warnings(levels)]
    if findings.implausible:
        said.append(Finding(f"nothing is decided: {findings.implausible}", "bad"))
    else:
        said += [Finding(reason, _tone(reason)) for reason in decision.reasons]
    return Report(
        name="probe",
        title=f"Probe: {levels[-1].slots} slots on one device",
        facts=facts,
        findings=tuple(said),
        sections=(
            Section(
                title="Against one slot",
                text=(_EXPLAINED,),
                charts=_charts(findings),
                tables=(_level_table(levels, findings),),
            ),
            Section(title="Gates", tables=(_gate_table(decision),)),
        ),
        data={**probe.record(levels, findings), "rounds": list(rounds), "decision": decision},
        simulated=simulated,
        complete=complete,
    )


def _warnings(levels: Sequence[Level]) -> list[Finding]:
    worst = max(one.foreign_cores for one in levels)
    said = []
    if worst > _DISTURBED:
        said.append(Finding(f"other programs used up to {worst:.1f} cores meanwhile: tails are rough", "open"))
    failures = {f"{one.slots} slots": one.failures for one in levels if one.failures}
    if failures:
        said.append(Finding(f"failed attempts: {failures}", "bad"))
    return said


def _tone(reason: str) -> Tone:
    return (
        "bad" if " fail: " in reason else "open" if "borderline" in reason else "good" if "pass every" in reason else ""
    )


def _charts(findings: Findings) -> tuple[LineChart, ...]:
    slots = tuple(float(step.slots) for step in findings.steps)
    if len(slots) < 2:
        return ()
    latency = (
        Series(name="p50", x=slots, y=tuple(step.latency for step in findings.steps)),
        Series(name="p95", x=slots, y=tuple(step.p95 for step in findings.steps)),
        Series(name="serial queueing", x=slots, y=slots, dashed=True),
    )
    throughput = (
        Series(name="measured", x=slots, y=tuple(step.throughput for step in findings.steps)),
        Series(name="undisturbed", x=slots, y=slots, dashed=True),
        Series(name="serial queueing", x=slots, y=(1.0,) * len(slots), dashed=True),
    )
    return (
        LineChart(title="Latency over one slot", x_name="active slots", y_name="×", series=latency),
        LineChart(title="Throughput over one slot", x_name="active slots", y_name="×", series=throughput),
    )


def _level_table(levels: Sequence[Level], findings: Findings) -> Table:
    names = ("slots", "in flight per slot", "attempts", "success", "p50_ms", "p95_ms", "per_second", "p50_ratio",
             "p95_ratio", "serial_ratio", "throughput_ratio", "concurrency")  # fmt: skip
    rows = tuple(
        (one.slots, one.depth, one.attempts, step.success, one.p50_ms, one.p95_ms, one.per_second, step.latency,
         step.p95, step.serial_p95, step.throughput, str(step.concurrency))
        for one, step in zip(levels, findings.steps, strict=True)
    )  # fmt: skip
    return Table(columns=names, rows=rows)


def _gate_table(decision: Decision) -> Table:
    rows = tuple((r.slots, r.figure, r.value, r.limit, f"{r.margin:+.1%}", str(r.outcome)) for r in decision.rulings)
    return Table(columns=("slots", "figure", "value", "limit", "margin", "verdict"), rows=rows, tones=_TONES)


if __name__ == "__main__":
    sys.exit(main())
