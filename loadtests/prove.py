"""Runs the long harnesses, one after another: what ``make prove`` does after the tests marked ``prove``.

Each is a module with a command of its own that exits with 0 when all its bars are reached. To add one, add a line to
``HARNESSES``. Their output is shown as it comes; the summary at the end names what failed.

\b
  python -m framelane.loadtests.prove              all
  python -m framelane.loadtests.prove overload     one
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import NamedTuple

import click


class Harness(NamedTuple):
    """A command: the module below ``framelane.loadtests`` and its arguments, and what it proves."""

    module: str
    arguments: tuple[str, ...]
    proves: str


HARNESSES: dict[str, Harness] = {
    "overload": Harness("overload", (), "goodput, fairness, latency and memory when too much is offered"),
    "overload-real": Harness(
        "overload",
        ("curve", "--device=cpu", "--pipeline=face_mesh", "--slots=0", "--workers=0", "-o=out/overload-real"),
        "the same curve on real models",
    ),
    "faults": Harness(
        "faults", ("-o", "out/faults.json"), "what clients notice when processes die, hang or run out of something"
    ),
    "swarm": Harness(
        "swarm.command",
        ("-u=500", "--seconds=40", "--device=sim:8", "--pipeline=sharpness", "--slots=4", "--delivery=0.99"),
        "500 Locust users at 0.75 fps each get 99 % of their frames, and the generator is not late",
    ),
    "gpu-check": Harness(
        "gpu_check",
        ("-o", "out/gpu-check.json"),
        "a session's own cost, and all that is promised of a card where one is",
    ),
    "diagnose": Harness("diagnose", (), "five planted bottlenecks are named, and the headroom is right"),
    "fleet": Harness(
        "fleet_check",
        ("-o", "out/fleet.json"),
        "replicas die, are restarted in turn, share a Redis, and scale: what clients notice",
    ),
    "sweep": Harness("sweep_command", ("planted",), "planted bottlenecks are named, every other explanation falsified"),
}


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(HARNESSES)), metavar="[NAME]...")
def main(names: tuple[str, ...]) -> None:
    """Entry point of the process."""
    failed = []
    for name in names or HARNESSES:
        harness = HARNESSES[name]
        click.secho(f"== {name}: {harness.proves}", bold=True)
        started = time.monotonic()
        status = subprocess.call([sys.executable, "-m", f"framelane.loadtests.{harness.module}", *harness.arguments])
        click.echo(f"== {name}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s\n")
        failed += [name] if status else []
    if failed:
        sys.exit(f"not proven: {', '.join(failed)}")


if __name__ == "__main__":
    main()
