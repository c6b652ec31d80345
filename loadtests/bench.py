"""Measures Framelane on this machine, against the bare loop and against its bars.

\b
Sections:
  speed     CPU per frame and throughput against the same pipeline run without a
            server, 16 clients on the same cores; latency with one client
  tracking  what scaled decoding and tracking bring on a moving face, and cost
  memory    PSS of each process, of idle connections; seconds from start to ready
  calls     Python calls per frame in the gateway
  peers     with --peers: other servers of the same pipeline, in the same rounds

Sections are measured round by round, one after another, so that whatever drifts over minutes meets all of them. Every
figure is the median of the rounds with their spread. A window in which other programs used more than 4 % of the cores
is measured again a few times; what they used is told. Leave the machine alone meanwhile.

\b
  python -m framelane.loadtests.bench                     about eight minutes
  python -m framelane.loadtests.bench --quick             a look, half a minute
  python -m framelane.loadtests.bench --only speed -r 8   one section, more rounds

Ctrl-C ends it and keeps what was measured. The exit status is 1 if a figure misses its bar.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from framelane.loadtests.bench_calls import Calls
from framelane.loadtests.bench_memory import MemoryUse
from framelane.loadtests.bench_peers import VERSIONS, Peers
from framelane.loadtests.bench_speed import Speed
from framelane.loadtests.bench_tracking import Tracking
from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.processes import StartFailed, cores
from framelane.loadtests.stage import Effort, Section, Stage
from framelane.loadtests.windows import Vanished

SECTIONS: dict[str, Callable[[], Section]] = {
    "speed": Speed,
    "tracking": Tracking,
    "memory": MemoryUse,
    "calls": Calls,
}
QUICK = {"rounds": 1, "seconds": 3.0, "patience": 0, "only": ("speed",)}
_LIBRARIES = (
    "numpy",
    "onnxruntime",
    "opencv-python-headless",
    "simplejpeg",
    "msgspec",
    "uvicorn",
    "uvloop",
    "websockets",
)
_PIPE_WIDTH = 130
_COLOURS = {"goal": "green", "pass": "green", "miss": "bold red", "not measured": "yellow"}


class Bench:
    """One run: sections, in rounds.

    Args:
        sections: what to measure.
        rounds: how often.
        console: where progress and tables go.
    """

    def __init__(self, sections: Sequence[Section], rounds: int, console: Console) -> None:
        self.sections = sections
        self.complete = False
        self._rounds = rounds
        self._console = console
        self._failures: list[str] = []

    def run(self, folder: Path, effort: Effort) -> None:
        """Measure all; Ctrl-C ends it early."""
        clip = moving_face()
        stage = Stage(folder, FrameFile(clip.fps, list(clip.frames)), effort, self._say)
        try:
            for number in range(self._rounds):
                self._round(stage, number)
            self.complete = True
        except KeyboardInterrupt:
            self._say("interrupted; what was measured so far:")

    def _round(self, stage: Stage, number: int) -> None:
        for section in self.sections:
            if number < section.most_rounds:
                self._say(f"round {number + 1} of {self._rounds}: {section.name}")
                try:
                    section.measure_round(stage, number)
                except (StartFailed, Vanished, OSError) as error:
                    self._failures.append(f"{section.name}: {error}")
                    self._say(f"FAILED: {error}")

    def _say(self, text: str) -> None:
        self._console.out(f"{time.strftime('%H:%M:%S')} {text}", style="dim", highlight=False)

    @property
    def missed(self) -> bool:
        """Whether a figure misses its bar, or could not be measured."""
        return bool(self._failures) or any(f.verdict == "miss" for s in self.sections for f in s.figures())

    def record(self) -> dict[str, Any]:
        """Everything, for the JSON file."""
        sections = {
            section.name: {"figures": [figure.record() for figure in section.figures()], "rounds": section.details()}
            for section in self.sections
        }
        return {"complete": self.complete, "failures": self._failures, "sections": sections}

    def show(self) -> None:
        """Print a table per section."""
        for section in self.sections:
            table = Table("", "median", "min – max", "bar", "goal", "", title=section.title, title_justify="left")
            for figure in section.figures():
                *cells, verdict = figure.row()
                table.add_row(*cells, f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict else "")
            self._console.print(table)


def machine() -> dict[str, Any]:
    """What the figures depend on: the machine, its load, Python and the libraries."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpu": models[0] if models else platform.machine(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "load_average": os.getloadavg(),
    }


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


class PeerNames(click.ParamType[tuple[str, ...]]):
    """``asyncio,mosec`` as a tuple of known peers."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> tuple[str, ...]:
        """See click."""
        names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        if unknown := [name for name in names if name not in VERSIONS]:
            self.fail(f"{unknown[0]!r} is no peer: {', '.join(VERSIONS)}", param, context)
        return names


def _sections(only: Sequence[str], peers: Sequence[str], environments: Path) -> list[Section]:
    """The sections asked for: with peers alone, only those."""
    chosen = [SECTIONS[name]() for name in only or (() if peers else SECTIONS)]
    return [*chosen, Peers(peers, environments)] if peers else chosen


@click.command(help=__doc__)
@click.option("-r", "--rounds", type=click.IntRange(1), default=4, show_default=True, help="rounds to measure")
@click.option("-s", "--seconds", type=click.FloatRange(1), default=8.0, show_default=True, help="length of a window")
@click.option("-c", "--clients", type=click.IntRange(1), default=16, show_default=True, help="closed-loop clients")
@click.option("--patience", type=click.IntRange(0), default=2, show_default=True, help="repeats of a disturbed window")
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True, help="this section (may be repeated)")
@click.option(
    "--peers", type=PeerNames(), default=(), help=f"comma-separated, of {', '.join(VERSIONS)}; these are installed"
)
@click.option("--serve", multiple=True, metavar="ARG", help="further argument for `framelane serve` (may be repeated)")
@click.option("--quick", is_flag=True, help="one short round of speed; only a look, too short to judge by")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("out/bench.json"),
    show_default=True,
    help="JSON with every round",
)
@click.pass_context
def main(context: click.Context, /, output: Path, quick: bool, **given: Any) -> None:
    """Entry point of the process."""
    if quick:
        default = click.core.ParameterSource.DEFAULT
        given |= {key: value for key, value in QUICK.items() if context.get_parameter_source(key) is default}
    facts = machine()
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    bench = Bench(_sections(given["only"], given["peers"], output.parent / "peers"), given["rounds"], console)
    effort = Effort(
        seconds=given["seconds"], clients=given["clients"], patience=given["patience"], serve=tuple(given["serve"])
    )
    console.print(
        f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, load {facts['load_average'][0]:.2f}"
    )
    with tempfile.TemporaryDirectory(prefix="framelane-bench-") as folder:
        bench.run(Path(folder), effort)
    bench.show()
    record = {"machine": facts, "command": sys.argv[1:], **bench.record()}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"written to {output}")
    sys.exit(bench.missed)


if __name__ == "__main__":
    main()
