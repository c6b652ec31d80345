"""What the commands share: options, the machine's facts, progress, and an end that keeps what was measured."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from framelane.loadtests.processes import StartFailed
from framelane.loadtests.report import Report, coloured, write

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PIPE_WIDTH = 120

FAILED = 1
"""Exit status: what was checked does not hold."""
UNUSABLE = 2
"""Exit status: the question or its data cannot be used; click's own for wrong options."""
INTERRUPTED = 130


def output_option(name: str) -> Callable[[_Command], _Command]:
    """``--output``: the folder for the three files."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("out") / name,
        show_default=True,
        help="folder for the report: HTML (one file, works offline), JSON and CSV",
    )


def console() -> Console:
    """Where people read: wide enough for tables where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def machine_facts() -> dict[str, Any]:
    """What figures depend on, short enough for the head of a report."""
    from framelane.loadtests.bench import machine

    facts = machine()
    version = importlib.metadata.version("framelane")
    load = facts["load_average"][0]
    names = {"time": facts["time"], "cpu": facts["cpu"], "cores": facts["cores"], "python": facts["python"]}
    return {
        **names,
        "framelane": version,
        "kernel": facts["kernel"],
        "load before": f"{load:.2f}",
        "command": " ".join(sys.argv[1:]),
    }


class Steps:
    """A bar for steps of work that are known in number; plain lines where there is no terminal."""

    def __init__(self, progress: Progress | None, total: int, out: Console) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total) if progress else None
        self._total = total
        self._out = out
        self._done = 0

    def say(self, text: str) -> None:
        """What is being done now."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)
        else:
            self._out.print(f"[dim]{self._done + 1}/{self._total}[/] {text}")

    def more(self, count: int) -> None:
        """So many more steps are to come than was known."""
        self._total += count
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=self._total)

    def part(self, share: float) -> None:
        """How much of the current step is done, 0 to 1."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done + min(max(share, 0.0), 1.0))

    def done(self, text: str = "") -> None:
        """A step has ended; ``text`` stays on the screen."""
        self._done += 1
        self.part(0.0)
        if text:
            self._out.print(f"[dim]{text}[/]")


@contextlib.contextmanager
def steps(out: Console, total: int) -> Iterator[Steps]:
    """Show progress over so many steps."""
    if not out.is_terminal:
        yield Steps(None, total, out)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as progress:
        yield Steps(progress, total, out)


@contextlib.contextmanager
def interruptible(out: Console) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C end what is inside, and go on behind it; yields whether that happened."""
    interrupted = False
    try:
        yield lambda: interrupted
    except KeyboardInterrupt:
        interrupted = True
        out.print("[yellow]interrupted; what was measured so far:[/]")


@contextlib.contextmanager
def failing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn these errors, a server that does not start, and an early Ctrl-C into a message and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        click.secho("framelane: interrupted before anything was measured", fg="yellow", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if not isinstance(error, (StartFailed, *kinds)):
            raise
        click.secho(f"framelane: {error}", fg="red", err=True)
        sys.exit(UNUSABLE)


def finish(out: Console, report: Report, folder: Path, status: int = 0) -> None:
    """Print the findings, write the report, and exit with ``status`` (or that of an interruption)."""
    if report.simulated:
        out.print("[yellow]SIMULATED device[/]")
    for line in coloured(report.findings):
        out.print(line)
    paths = write(report, folder)
    out.print(f"[dim]written to {' '.join(str(path) for path in paths)}[/]")
    if status or not report.complete:
        sys.exit(status if report.complete else INTERRUPTED)


def serve_arguments(given: Sequence[str]) -> list[str]:
    """Arguments for ``framelane serve`` as given after ``--serve``: each may hold several, as a shell splits them."""
    import shlex

    return [part for text in given for part in shlex.split(text)]
