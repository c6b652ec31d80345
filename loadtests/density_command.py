"""The command ``framelane density``."""

from __future__ import annotations

import importlib.resources
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from framelane.loadtests import tools
from framelane.loadtests.cost import CostError, Price, choose_price, parse_prices
from framelane.loadtests.density import DensityError, Layout, Objective, Search
from framelane.loadtests.density_report import Money, Searched, make_report, show
from framelane.loadtests.density_run import Machine, Measuring
from framelane.loadtests.density_trials import Measured, Notebook, Question, read_trials
from framelane.loadtests.processes import StartFailed

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHARE = click.FloatRange(0, 1)
_TRIALS = "density-trials.jsonl"


@click.command(name="density")
@click.option("-d", "--density", "densities", multiple=True, default=("1,2",), show_default=True,
              metavar="REPLICAS[xWORKERS[xSLOTS]]", help="per device; commas, or repeated")  # fmt: skip
@click.option("-u", "--users", default="50:800:50", show_default=True, metavar="FROM:TO:STEP", help="counts to try")
@click.option("-f", "--fps", type=click.FloatRange(0, min_open=True), default=0.75, show_default=True, help="per user")
@click.option("--delivery", type=_SHARE, default=0.979, show_default=True, help="objective: share of frames answered")
@click.option("--p50", type=float, default=259.0, show_default=True, help="objective: median age in ms; 0: none")
@click.option("--p95", type=float, default=0.0, help="objective: 95th percentile of the age in ms  [default: none]")
@click.option("-c", "--confirmations", type=click.IntRange(1), default=3, show_default=True,
              help="runs that the last count that holds, and the first that does not, need")  # fmt: skip
@click.option("-s", "--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="of each run")
@click.option("--spare", type=click.FloatRange(0, 1, max_open=True), default=0.25, show_default=True,
              help="part of the capacity that may fail and the planned users still be served")  # fmt: skip
@click.option("--refine", type=click.IntRange(0), default=0, metavar="GAP",
              help="also try numbers of replicas between the best and its neighbours, down to this gap")  # fmt: skip
@click.option("--at", type=click.IntRange(1), help="compare densities at this count  [default: the most any held]")
@click.option("--device", "devices", multiple=True, default=("auto",), show_default=True,
              help="as in `framelane serve`; repeated: each card gets the density's replicas")  # fmt: skip
@click.option("--pipeline", default="face_mesh", show_default=True, help="as in `framelane serve`")
@click.option("--image", default="640x480", show_default=True, help="size of the frames")
@click.option("--pin/--no-pin", default=True, show_default=True, help="hold each replica to its share of the cores")
@click.option("--reserve", type=click.IntRange(0), default=0, help="cores kept for the load generator  [default: none]")
@click.option("--memory", "memory_mib", type=click.IntRange(0), default=0, help="MiB per replica  [default: no limit]")
@click.option("--serve", multiple=True, metavar="ARGS", help="further arguments for `framelane serve`")
@click.option("-p", "--price", default="", help="dollars per machine-hour, or a name from the price file")
@click.option("--prices", type=_FILE, help="TOML file of prices  [default: built in, dated; prices are inputs]")
@click.option("--machines", type=click.IntRange(1), help="that the price is paid for  [default: by cards, or 1]")
@click.option("--trials", "trials_file", type=_FILE, help="decide from a CSV of trials, measure nothing")
@click.option("--restart", is_flag=True, help="throw away the runs of an earlier call instead of going on")
@tools.output_option("density")
def main(trials_file: Path | None, restart: bool, output: Path, **given: Any) -> None:
    """Find how many users a machine holds, at which density, and what one of them costs.

    A density is a number of replicas per device, each with so many workers and active slots (0 or left out: the
    server's own choice). More is not always better, so every density given is measured: real replicas are started,
    held to their cores, card and memory; users send at a fixed rate (an open loop); the largest count that holds the
    objective is found by halving, and it and the next one up are run again until they are confirmed.

    \b
      framelane density -d 1,2,4 --users 50:400:25 --price aws-g6e-xlarge
      framelane density -d 1x4x1,2x2x1,4x1x1 --device cuda:0 --device cuda:1
      framelane density -d 1,2 --device sim:8:group=card:tax=1,1.44,2.08     a card that is known
      framelane density --trials measured.csv --at 700 --price 1.861 --machines 4

    Reported per density: the capacity, the comfortable count to plan for, the collapse, both curves, memory per
    replica, what the replicas themselves name as their limit, and dollars per user-hour. The CSV of trials has the
    columns density,users,delivery,p50_ms,p95_ms.

    Every run is kept in OUTPUT/density-trials.jsonl: after Ctrl-C the same command goes on where it was. The exit
    status is 1 if no density holds the objective.
    """
    out = tools.console()
    failed: dict[Layout, str] = {}
    with tools.failing(DensityError, CostError, OSError, ValueError):
        search, price = _asked(given), _price(given["price"], given["prices"])
        facts: dict[str, Any] = {"trials": str(trials_file)} if trials_file else tools.machine_facts()
        question = _question(facts.get("cpu", ""), given)
        if trials_file:
            measured, complete = read_trials(trials_file.read_text()), True
        else:
            notebook = Notebook(output / _TRIALS, question)
            measured = _earlier(notebook, restart)
            complete = _search(out, search, question, notebook, measured, failed)
    searched = Searched(
        search=search,
        measured=measured,
        failed=failed,
        at=given["at"],
        money=Money(price, _machines(given["machines"], price, question.devices)) if price else None,
        simulated=not trials_file and any(device.startswith("sim") for device in question.devices),
    )
    show(searched)
    tools.finish(out, make_report(searched, facts, complete), output, 0 if searched.choice.best else tools.FAILED)


def _asked(given: dict[str, Any]) -> Search:
    return Search(
        densities=_layouts(given["densities"]),
        ladder=_ladder(given["users"]),
        objective=Objective(delivery=given["delivery"], p50_ms=given["p50"] or None, p95_ms=given["p95"] or None),
        **{name: given[name] for name in ("confirmations", "spare", "refine")},
    )


def _earlier(notebook: Notebook, restart: bool) -> list[Measured]:
    if restart:
        notebook.restart()
    measured = notebook.read()
    if measured:
        tools.console().print(f"[dim]{len(measured)} runs are there already; going on[/]")
    return measured


def _search(
    out: Console,
    search: Search,
    question: Question,
    notebook: Notebook,
    measured: list[Measured],
    failed: dict[Layout, str],
) -> bool:
    """Measure what the search asks for; returns whether it came to its end."""
    expected = max(1, len(search.densities) * search.at_most() - len(measured))
    with (
        tempfile.TemporaryDirectory() as folder,
        tools.interruptible(out) as interrupted,
        tools.steps(out, expected) as steps,
        Measuring(question, search.ladder[-1], Path(folder)) as machine,
    ):
        run_search(search, machine, notebook, measured, failed, steps)
    return not interrupted()


def run_search(
    search: Search,
    machine: Machine,
    notebook: Notebook,
    measured: list[Measured],
    failed: dict[Layout, str],
    steps: tools.Steps,
) -> None:
    """Run what the search asks for until it is decided; a density that cannot be started goes to ``failed``."""

    def tell(text: str, share: float) -> None:
        if text != told[0]:
            told[0] = text
            steps.say(text)
        steps.part(share)

    told = [""]
    while step := search.next(found.trial for found in measured):
        density, users = step
        try:
            found = machine.measure(density, users, tell)
        except StartFailed as error:
            failed[density] = str(error)
            search = _without(search, density)
            steps.done(f"{density}: cannot be run: {error}")
            continue
        notebook.add(found)
        measured.append(found)
        steps.done(_line(found, search.objective))


def _without(search: Search, density: Layout) -> Search:
    return msgspec.structs.replace(search, excluded=(*search.excluded, density))


def _line(found: Measured, objective: Objective) -> str:
    trial = found.trial
    p50 = "" if trial.p50_ms is None else f", p50 {trial.p50_ms:.0f} ms"
    missed = objective.misses(trial)
    fate = "holds" if not missed else "; ".join(missed)
    return f"{trial.density}: {trial.users} users: delivery {trial.delivery:.1%}{p50}: {fate}"


def _layouts(texts: Sequence[str]) -> tuple[Layout, ...]:
    return tuple(dict.fromkeys(Layout.parse(part) for text in texts for part in text.split(",")))


def _ladder(text: str) -> tuple[int, ...]:
    try:
        first, last, step = (int(part) for part in text.split(":"))
        ladder = tuple(range(first, last + 1, step))
    except ValueError:
        ladder = ()
    if not ladder or ladder[0] < 1:
        raise DensityError(f"--users {text}: write it as FROM:TO:STEP, for example 50:800:50")
    return ladder


def _question(cpu: str, given: dict[str, Any]) -> Question:
    names = ("devices", "pipeline", "image", "fps", "seconds", "pin", "reserve", "memory_mib")
    serve = tuple(tools.serve_arguments(given["serve"]))
    return Question(**{name: given[name] for name in names}, serve=serve, machine=cpu)


def _price(given: str, file: Path | None) -> Price | None:
    if not given:
        return None
    built_in = importlib.resources.files("framelane.loadtests").joinpath("prices.toml")
    return choose_price(given, parse_prices(file.read_text() if file else built_in.read_text()))


def _machines(given: int | None, price: Price, devices: Sequence[str]) -> int:
    cards = sum(device.startswith(("cuda", "tensorrt")) for device in devices)
    return given or max(1, math.ceil(cards / max(1, price.gpus)))


if __name__ == "__main__":
    sys.exit(main())
