"""The command ``framelane sweep``."""

from __future__ import annotations

import importlib.resources
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.table import Table as RichTable

from framelane.loadtests import tools
from framelane.loadtests.charts import IntervalChart, Row
from framelane.loadtests.processes import StartFailed
from framelane.loadtests.report import Finding, Report, Section, Table, Tone
from framelane.loadtests.sweep import (
    Experiment,
    Measurement,
    Result,
    SweepError,
    Verdict,
    conclusion,
    judge,
    order,
    parse_sweep,
)
from framelane.loadtests.sweep_run import RealRunner, Runner
from framelane.loadtests.windows import Vanished

_TONES: dict[str, Tone] = {"survived": "good", "falsified": "bad", "undecided": "open"}
_COLOURS = {"survived": "green", "falsified": "red", "undecided": "yellow"}
_MARKS = {"survived": "✓", "falsified": "✗", "undecided": "?"}
_SATURATED = 0.85
_WIDEST = 100.0
_EXPLAINED = (
    "Each row is one explanation: the band is the ratio to the baseline that it predicts, the line what was measured "
    "(95 % interval), the dashed line no effect at all. An explanation survives (green) only inside its band; outside "
    "of it, it is falsified (red)."
)

Rounds = dict[str, list[dict[str, Measurement]]]


@click.command(name="sweep")
@click.argument("file", default="planted")
@click.option("--only", multiple=True, metavar="NAME", help="this experiment of the file (may be repeated)")
@click.option("-r", "--rounds", type=click.IntRange(2), default=3, show_default=True, help="rounds; two at least")
@click.option("-x", "--extra", type=click.IntRange(0), default=3, show_default=True, help="more, for what is undecided")
@click.option("-s", "--seconds", type=click.FloatRange(0.2), default=3.0, show_default=True, help="of each window")
@click.option("--list", "listed", is_flag=True, help="show what would be run, and run nothing")
@tools.output_option("sweep")
def main(file: str, only: tuple[str, ...], rounds: int, extra: int, seconds: float, listed: bool, output: Path) -> None:
    """Find what limits a server, by explanations that each predict one number.

    FILE is a TOML file, or the name of a built-in one: `planted` (five servers with a known bottleneck: the check of
    the method) or `campaign` (seven configurations that tell apart GPU, interpreter, fan-out, preprocessing, decoding,
    connections and the load generator, on the legacy server and the product, with simulated and with real models).

    A configuration moves exactly one variable of the baseline, or the file is refused. All configurations are measured
    in turn, round by round. A hypothesis survives if the measured ratio lies in its band and "no effect" is excluded;
    it is falsified if the whole interval lies outside; otherwise it is undecided, and repeated a
    few times more (-x).

    \b
      framelane sweep planted --list
      framelane sweep campaign --only product-sim -r 5
      framelane sweep my.toml

    Ctrl-C keeps what was measured. The exit status is 1 unless every experiment ends with exactly one explanation.
    """
    out = tools.console()
    with tools.failing(SweepError, OSError):
        experiments = _chosen(parse_sweep(_text(file)), only)
    if listed:
        for experiment in experiments:
            _list(experiment)
        return
    measured: Rounds = {experiment.name: [] for experiment in experiments}
    total = rounds * sum(len(experiment.configurations) + 1 for experiment in experiments)
    with (
        tempfile.TemporaryDirectory() as folder,
        tools.interruptible(out) as interrupted,
        tools.steps(out, total) as steps,
    ):
        sweeping = Sweeping(RealRunner(Path(folder), seconds), steps)
        for experiment in experiments:
            sweeping.run(experiment, rounds, extra, measured[experiment.name])
    results = {experiment.name: judge(experiment, measured[experiment.name]) for experiment in experiments}
    for experiment in experiments:
        _show(experiment, results[experiment.name])
    report = make_report(experiments, measured, results, sweeping.failures, complete=not interrupted())
    named = all(sum(r.verdict is Verdict.SURVIVED for r in found) == 1 for found in results.values())
    tools.finish(out, report, output, 0 if named else tools.FAILED)


class Sweeping:
    """Measures experiments.

    Args:
        runner: measures a setup.
        steps: told what is going on.

    Attributes:
        failures: how many runs failed, by experiment. Such a run is missing from its round; the others go on.
    """

    def __init__(self, runner: Runner, steps: tools.Steps) -> None:
        self._runner = runner
        self._steps = steps
        self.failures: dict[str, int] = {}

    def run(self, experiment: Experiment, rounds: int, extra: int, measured: list[dict[str, Measurement]]) -> None:
        """Measure round by round; what was measured is in ``measured`` also when this is interrupted.

        Up to ``extra`` further rounds repeat the baseline and what is undecided by then.
        """
        for number in range(rounds + extra):
            names = order(experiment, number)
            if number >= rounds:
                results = judge(experiment, measured)
                open_ones = {result.configuration for result in results if result.verdict is Verdict.UNDECIDED}
                names = [name for name in names if not name or name in open_ones]
                if not open_ones:
                    return
                self._steps.more(len(names))
            measured.append({})
            for name in names:
                self._measure(experiment, name, number, measured[-1])

    def _measure(self, experiment: Experiment, name: str, number: int, into: dict[str, Measurement]) -> None:
        shown = f"{experiment.name}: {name or 'baseline'}"
        self._steps.say(f"{shown}, round {number + 1}")
        try:
            found = into[name] = self._runner.measure(experiment.configurations.get(name, experiment.baseline))
        except (StartFailed, Vanished, OSError) as error:
            self.failures[experiment.name] = self.failures.get(experiment.name, 0) + 1
            self._steps.done(f"{shown} FAILED: {error}")
        else:
            self._steps.done(f"{shown} {found.throughput:.1f}/s, p50 {found.p50_ms:.1f} ms")


def _text(file: str) -> str:
    path = Path(file)
    if path.suffix or path.exists():
        return path.read_text()
    folder = importlib.resources.files("framelane.loadtests") / "sweeps"
    built_in = folder / f"{file}.toml"
    if not built_in.is_file():
        names = ", ".join(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir()))
        raise SweepError(f"{file!r} is neither a file nor a built-in sweep; there are: {names}")
    return built_in.read_text()


def _chosen(experiments: list[Experiment], only: Sequence[str]) -> list[Experiment]:
    unknown = set(only) - {experiment.name for experiment in experiments}
    if unknown:
        names = ", ".join(experiment.name for experiment in experiments)
        raise SweepError(f"no experiment {', '.join(sorted(unknown))}; there are: {names}")
    return [experiment for experiment in experiments if not only or experiment.name in only]


def _list(experiment: Experiment) -> None:
    out = tools.console()
    table = RichTable("hypothesis", "moves", "predicts", "because", title=f"{experiment.name}: {experiment.says}")
    for name, hypothesis in experiment.hypotheses.items():
        prediction = f"{hypothesis.metric} {hypothesis.prediction}"
        table.add_row(name, experiment.moved(hypothesis.configuration), prediction, hypothesis.says)
    out.print(table)


def _show(experiment: Experiment, results: Sequence[Result]) -> None:
    table = RichTable("hypothesis", "moves", "predicts", "measured", "95 %", "margin", "", title=experiment.name)
    for result in results:
        verdict = f"[{_COLOURS[result.verdict]}]{result.verdict}[/]"
        span = "–" if result.high > _WIDEST else f"{result.low:.2f} – {result.high:.2f}"
        numbers = (result.prediction, f"{result.value:.2f} ×", span, f"{result.margin:+.0%}")
        table.add_row(result.hypothesis, experiment.moved(result.configuration), *numbers, verdict)
    tools.console().print(table)


def make_report(
    experiments: Sequence[Experiment],
    measured: Rounds,
    results: Mapping[str, Sequence[Result]],
    failures: Mapping[str, int],
    complete: bool,
) -> Report:
    """The report of a sweep."""
    said = []
    for experiment in experiments:
        found = results[experiment.name]
        survivors = [result.hypothesis for result in found if result.verdict is Verdict.SURVIVED]
        tone: Tone = "good" if len(survivors) == 1 else "open"
        if experiment.planted and survivors and survivors != [experiment.planted]:
            tone = "bad"
        said.append(Finding(conclusion(experiment, found), tone))
        said += _own_words(experiment.name, measured[experiment.name])
        said += _warnings(experiment.name, measured[experiment.name], failures.get(experiment.name, 0))
    simulated = any("sim" in one.baseline.device or "staged" in one.baseline.pipeline for one in experiments)
    return Report(
        name="sweep",
        title="Sweep: what limits the server",
        facts=tools.machine_facts(),
        findings=tuple(said),
        sections=(
            *([_overview(experiments, results)] if len(experiments) > 1 else []),
            *(_section(one, measured[one.name], results[one.name]) for one in experiments),
        ),
        data={
            one.name: {"experiment": one, "rounds": measured[one.name], "results": results[one.name]}
            for one in experiments
        },
        rows=_all_rows(results),
        simulated=simulated,
        complete=complete,
    )


def _own_words(name: str, rounds: Sequence[Mapping[str, Measurement]]) -> list[Finding]:
    """What the server says of itself in the baseline, most often."""
    said = [found[""].limit for found in rounds if "" in found and found[""].limit]
    return [Finding(f"{name}: the server says of itself: {statistics.mode(said)}")] if said else []


def _warnings(name: str, rounds: Sequence[Mapping[str, Measurement]], failures: int) -> list[Finding]:
    busiest = max((found.generator_busy for one in rounds for found in one.values()), default=0.0)
    errors = sum(found.errors for one in rounds for found in one.values())
    said = []
    if failures:
        said.append(Finding(f"{name}: {failures} runs failed", "bad"))
    if busiest > _SATURATED:
        said.append(Finding(f"{name}: a generator used {busiest:.2f} cores: it may have measured itself", "bad"))
    if errors:
        said.append(Finding(f"{name}: {errors} answers that no client should get", "bad"))
    return said


def _overview(experiments: Sequence[Experiment], results: Mapping[str, Sequence[Result]]) -> Section:
    """A row per experiment, a column per explanation: the measured ratio, in the colour of the verdict."""
    names = list(dict.fromkeys(name for one in experiments for name in one.hypotheses))
    tones: dict[str, Tone] = {}
    rows = []
    for experiment in experiments:
        cells = {
            result.hypothesis: f"{result.value:.2f} × {_MARKS[result.verdict]}" for result in results[experiment.name]
        }
        tones |= {cells[result.hypothesis]: _TONES[str(result.verdict)] for result in results[experiment.name]}
        rows.append((experiment.name, *(cells.get(name) for name in names)))
    text = (
        "What was measured where each explanation's variable was moved, as a ratio to the baseline; "
        "✓ survived, ✗ falsified, ? undecided."
    )
    short = (name.removesuffix("-bound") for name in names)
    table = Table(columns=("limit", *short), rows=tuple(rows), tones=tones)
    return Section(title="Overview", text=(text,), tables=(table,))


def _section(experiment: Experiment, rounds: Sequence[Mapping[str, Measurement]], results: Sequence[Result]) -> Section:
    chart_rows = tuple(_row(result) for result in results)
    chart = IntervalChart(title="Predicted and measured", x_name="ratio to the baseline", rows=chart_rows, mark=1.0)
    text = [experiment.says, _EXPLAINED]
    if experiment.planted:
        text.append(f"True by construction: {experiment.planted}.")
    return Section(
        title=experiment.name,
        text=tuple(line for line in text if line),
        charts=(chart, _throughputs(experiment, rounds)),
        tables=(_result_table(experiment, results), _measurement_table(rounds)),
    )


def _throughputs(experiment: Experiment, rounds: Sequence[Mapping[str, Measurement]]) -> IntervalChart:
    """Every configuration's median, from its worst round to its best; ``mark`` is the baseline's."""
    found = {name: [one[name].throughput for one in rounds if name in one] for name in ("", *experiment.configurations)}
    rows = tuple(
        Row(name=name or "baseline", value=statistics.median(values), low=min(values), high=max(values))
        for name, values in found.items()
        if values
    ) or (Row(name="baseline", value=math.nan, low=math.nan, high=math.nan),)
    mark = rows[0].value if found[""] else None
    return IntervalChart(title="Throughput of each configuration", x_name="results per second", rows=rows, mark=mark)


def _row(result: Result) -> Row:
    tone = _TONES[str(result.verdict)]
    low, high = (min(max(end, 0.0), result.value * 2 if result.value == result.value else 2.0)
                 for end in (result.low, result.high))  # fmt: skip
    band = (result.band[0], min(result.band[1], max(result.band[0] * 1.5, result.value if result.value > 0 else 0)))
    return Row(name=result.hypothesis, value=result.value, low=low, high=high, band=band, verdict=tone)


def _result_table(experiment: Experiment, results: Sequence[Result]) -> Table:
    rows = tuple(
        (r.hypothesis, experiment.hypotheses[r.hypothesis].says, experiment.moved(r.configuration), r.prediction,
         r.value, f"{r.low:.2f} – {r.high:.2f}", f"{r.margin:+.0%}", str(r.verdict))
        for r in results
    )  # fmt: skip
    columns = ("hypothesis", "claim", "moves", "predicts", "measured ×", "95 %", "margin", "verdict")
    return Table(columns=columns, rows=rows, tones=_TONES)


def _measurement_table(rounds: Sequence[Mapping[str, Measurement]]) -> Table:
    rows = tuple(
        (
            number + 1,
            name or "baseline",
            one.throughput,
            one.p50_ms,
            one.p95_ms,
            one.dropped,
            one.generator_busy,
            one.limit,
        )
        for number, found in enumerate(rounds)
        for name, one in found.items()
    )
    names = (
        "round",
        "configuration",
        "per second",
        "p50 ms",
        "p95 ms",
        "dropped",
        "generator cores",
        "the server says",
    )
    return Table(columns=names, rows=rows, folded="every run")


def _all_rows(results: Mapping[str, Sequence[Result]]) -> Table:
    names = (
        "hypothesis",
        "configuration",
        "metric",
        "prediction",
        "value",
        "low",
        "high",
        "rounds",
        "margin",
        "verdict",
    )
    rows = tuple(
        (name, *(str(cell) if isinstance(cell, Verdict) else cell for cell in (getattr(result, n) for n in names)))
        for name, found in results.items()
        for result in found
    )
    return Table(columns=("experiment", *names), rows=rows)


if __name__ == "__main__":
    sys.exit(main())
