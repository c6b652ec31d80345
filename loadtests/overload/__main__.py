"""Offers a server more than it can, and tells what becomes of it: full, but never slow?

\b
Scenarios:
  curve         goodput, delivery, age at 0.5 to 3 × capacity, product and legacy
  fairness      the same share for all, also beside clients that send ten times as much
  recovery      3 × for half a minute; how soon latency is as before
  health        /livez, event loop and pings at 1.6 ×
  slow-readers  one client in twenty does not read
  idle          2,000 connected of whom 100 send
  mailboxes     2,000 clients fill a mailbox with 1 MiB each
  restart       800 clients dropped at once
  admission     1.6 × as many users as there is capacity for
  broadcast     the legacy server with and without its broadcast

The load is an open loop: frames are due at their time whether or not the server keeps up, and a frame's age counts
from that time. Generators are processes of their own; they report their lag and processor time, and a run whose p99
lag is over 50 ms is void and repeated. In every run the books are checked: each message has exactly one fate, at the
server and at the clients.

With a simulated device the capacity is known: sim:8 answers 125 frames per second and slot, whatever the machine.
With a real one it is measured first, by a closed loop on the same cores.

\b
  python -m framelane.loadtests.overload                          all, about 40 minutes
  python -m framelane.loadtests.overload curve fairness --quick   a look
  python -m framelane.loadtests.overload curve --device cpu --pipeline face_mesh --slots 0

Results go to a folder: overload.json with everything, curve.png and curve.svg. Ctrl-C keeps what was measured. The exit
status is 1 if a figure misses its bar or could not be measured.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from framelane.loadtests.bench import machine
from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.processes import StartFailed
from framelane.loadtests.rfc6455 import HandshakeFailed

from .lab import Effort, Lab, Void
from .plot import plot
from .scenarios.admission import Admission
from .scenarios.base import Scenario
from .scenarios.broadcast import Broadcast
from .scenarios.curve import Curve
from .scenarios.fairness import Fairness
from .scenarios.health import Health
from .scenarios.idle import Idle
from .scenarios.mailboxes import Mailboxes
from .scenarios.recovery import Recovery
from .scenarios.restart import Restart
from .scenarios.slow_readers import SlowReaders
from .targets import RUNS_PER_FRAME, Target

SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "curve": Curve,
    "fairness": Fairness,
    "recovery": Recovery,
    "health": Health,
    "slow-readers": SlowReaders,
    "idle": Idle,
    "mailboxes": Mailboxes,
    "restart": Restart,
    "admission": Admission,
    "broadcast": Broadcast,
}
QUICK = {"seconds": 6.0, "scale": 0.2}
_PIPE_WIDTH = 120
_COLOURS = {"goal": "green", "pass": "green", "miss": "bold red", "not measured": "yellow"}


class Session:
    """Scenarios, one after another, in rounds.

    Args:
        scenarios: what to measure.
        rounds: how often.
        console: where progress and tables go.
    """

    def __init__(self, scenarios: Sequence[Scenario], rounds: int, console: Console) -> None:
        self.scenarios = scenarios
        self.complete = False
        self._rounds = rounds
        self._console = console
        self._failures: list[str] = []

    def run(self, folder: Path, target: Target, effort: Effort) -> None:
        """Measure all; Ctrl-C ends it early."""
        clip = moving_face()
        lab = Lab(folder, FrameFile(clip.fps, list(clip.frames)), target, effort, self.say, self.wait)
        try:
            for number in range(self._rounds):
                for scenario in self.scenarios:
                    self.say(f"round {number + 1} of {self._rounds}: {scenario.name}")
                    self._measure(lab, scenario)
            self.complete = True
        except KeyboardInterrupt:
            self.say("interrupted; what was measured so far:")

    def _measure(self, lab: Lab, scenario: Scenario) -> None:
        try:
            scenario.measure(lab)
        except (StartFailed, Void, HandshakeFailed, OSError) as error:
            self._failures.append(f"{scenario.name}: {error}")
            self.say(f"FAILED: {error}")

    def say(self, text: str) -> None:
        """Tell what is going on."""
        self._console.out(f"{time.strftime('%H:%M:%S')} {text}", style="dim", highlight=False)

    def wait(self, what: str, until: float) -> None:
        """Sleep until a moment of ``time.monotonic``, with a bar where somebody looks."""
        seconds = until - time.monotonic()
        if not self._console.is_terminal or seconds < 1:
            time.sleep(max(0.0, seconds))
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(what, total=seconds)
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(0.25, left))
                progress.update(task, completed=seconds - left)

    @property
    def missed(self) -> bool:
        """Whether a figure misses its bar, or could not be measured."""
        figures = [figure for scenario in self.scenarios for figure in scenario.figures()]
        return bool(self._failures) or any(figure.verdict == "miss" for figure in figures)

    def record(self) -> dict[str, Any]:
        """Everything, for the JSON file."""
        found = {
            scenario.name: {"figures": [f.record() for f in scenario.figures()], "details": scenario.details()}
            for scenario in self.scenarios
        }
        return {"complete": self.complete, "failures": self._failures, "scenarios": found}

    def show(self) -> None:
        """Print a table per scenario."""
        for scenario in self.scenarios:
            table = Table("", "median", "min – max", "bar", "", title=scenario.title, title_justify="left")
            for figure in scenario.figures():
                name, value, spread, bar, _goal, verdict = figure.row()
                table.add_row(name, value, spread, bar, f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict else "")
            self._console.print(table)


def draw(session: Session, target: Target, folder: Path) -> list[Path]:
    """The picture of the curve, if it was measured."""
    curves = [scenario for scenario in session.scenarios if isinstance(scenario, Curve)]
    details = curves[0].details() if curves else {}
    points = {name: details[name] for name in ("product", "legacy") if details.get(name)}
    if not points:
        return []
    simulated = " (SIMULATED)" if target.capacity is not None else ""
    title = f"{target.pipeline} on {target.device}{simulated}, capacity {details['capacity']:.0f} fps"
    return plot(points, details["capacity"], title, folder)


@click.command(help=__doc__)
@click.argument("scenarios", nargs=-1, type=click.Choice(list(SCENARIOS)), metavar="[SCENARIO]...")
@click.option("--device", default="sim:8", show_default=True, help="as in `framelane serve`")
@click.option("--pipeline", type=click.Choice(list(RUNS_PER_FRAME)), default="sharpness", show_default=True,
              help="sharpness runs one model per frame, face_mesh two")  # fmt: skip
@click.option("--workers", default=2, show_default=True, help="of the product; 0 for its own choice")
@click.option("--slots", default=2, show_default=True, help="active slots; 0 for the server's own choice")
@click.option("--serve", multiple=True, metavar="ARG", help="further argument for `framelane serve`")
@click.option("--clients", default=100, show_default=True, help="where a scenario leaves it open")
@click.option("--arrivals", "kind", type=click.Choice(["poisson", "fixed"]), default="poisson", show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="of each window")
@click.option("--scale", default=1.0, show_default=True, help="of scenarios with a length or size of their own")
@click.option("-r", "--rounds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--patience", default=1, show_default=True, help="repetitions of a void run")
@click.option("--legacy/--no-legacy", default=True, show_default=True, help="measure the legacy server's curve too")
@click.option("--precedence", is_flag=True, help="let the servers, too, go before other programs of a shared machine")
@click.option("--quick", is_flag=True, help="short windows and small crowds; a look, too short to judge by")
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("out/overload"),
              show_default=True, help="folder for JSON and pictures")  # fmt: skip
@click.pass_context
def main(context: click.Context, /, scenarios: tuple[str, ...], quick: bool, output: Path, **given: Any) -> None:
    """Entry point of the process."""
    if quick:
        default = click.core.ParameterSource.DEFAULT
        given |= {key: value for key, value in QUICK.items() if context.get_parameter_source(key) is default}
    facts = machine()
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    target = Target(
        device=given["device"],
        pipeline=given["pipeline"],
        workers=given["workers"],
        slots=given["slots"],
        arguments=given["serve"],
        precedence=given["precedence"],
    )
    effort = Effort(**{name: given[name] for name in Effort.__struct_fields__})
    session = Session([SCENARIOS[name]() for name in scenarios or SCENARIOS], given["rounds"], console)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_average'][0]:.2f}; {target.device}")
    with tempfile.TemporaryDirectory(prefix="framelane-overload-") as folder:
        session.run(Path(folder), target, effort)
    session.show()
    output.mkdir(parents=True, exist_ok=True)
    record = {"machine": facts, "command": sys.argv[1:], **session.record()}
    (output / "overload.json").write_text(json.dumps(record, indent=1) + "\n")
    for path in [output / "overload.json", *draw(session, target, output)]:
        console.print(f"written to {path}")
    sys.exit(session.missed)


if __name__ == "__main__":
    main()
