"""Breaks a server that serves, in one way after another, and prints what its clients noticed.

\b
  slot-kill, slot-kill-real   SIGKILL of an active slot
  slot-hang                   SIGSTOP of one, SIGCONT later
  worker-kill                 SIGKILL of workers
  replica-kill                SIGKILL of the whole tree, of the gateway alone
  hostile-frames              a pipeline that raises, loops, eats memory, kills its process
  bad-inputs                  a model that raises, returns NaN or kills its slot on one input of a batch
  bad-pictures                frames that are no pictures
  audit, audit-gives-way      a long job beside clients; its slot is needed back
  drain                       SIGTERM with 200 clients, 20 of them stalled
  descriptors, full-disk      what a machine may run out of
  flood-…                     10,000 connections: handshakes, silent, slow-heads, half-open
  clock                       the wall clock jumps an hour ahead and back
  soak                        half an hour of churn

\b
  python -m framelane.loadtests.faults                       all, about an hour
  python -m framelane.loadtests.faults --only drain --quick  a look

The exit status is 1 if a bar is missed, something is left behind, or a fault could not be tried.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
from rich.console import Console

from framelane.loadtests.bench import machine
from framelane.loadtests.processes import StartFailed

from . import floods, hostile, long_jobs, processes, service
from .clock import clock
from .inputs import bad_inputs
from .lab import Lab
from .report import Report
from .soak import soak
from .table import show

FAULTS: dict[str, Callable[[Lab], Awaitable[Report]]] = {
    "slot-kill": processes.slot_killed,
    "slot-kill-real": processes.slot_killed_real,
    "slot-hang": processes.slot_hangs,
    "worker-kill": processes.worker_killed,
    "replica-kill": processes.replica_killed,
    "hostile-frames": hostile.hostile_frames,
    "bad-inputs": bad_inputs,
    "bad-pictures": hostile.bad_pictures,
    "audit": long_jobs.audit,
    "audit-gives-way": long_jobs.audit_gives_way,
    "drain": service.drain,
    "descriptors": service.descriptors,
    "full-disk": service.full_disk,
    "flood-handshakes": floods.handshakes,
    "flood-silent": floods.silent,
    "flood-slow-heads": floods.slow_heads,
    "flood-half-open": floods.half_open,
    "clock": clock,
    "soak": soak,
}


def run(names: tuple[str, ...], lab: Lab) -> tuple[list[Report], list[str]]:
    """Try the faults one after another; what came out, and what could not be tried."""
    reports: list[Report] = []
    failures: list[str] = []
    for name in names:
        lab.say(name)
        try:
            reports.append(asyncio.run(_one(name, lab)))
        except (StartFailed, TimeoutError, OSError, AssertionError) as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            lab.say(f"FAILED: {failures[-1]}")
        except KeyboardInterrupt:
            lab.say("interrupted; what was tried so far:")
            break
    return reports, failures


async def _one(name: str, lab: Lab) -> Report:
    return await FAULTS[name](lab)


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(list(FAULTS)), metavar="FAULT", help="may be repeated")
@click.option("--quick", is_flag=True, help="short and few; a look, too short to judge by")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file for the figures as JSON")
def main(only: tuple[str, ...], quick: bool, output: Path | None) -> None:
    """Entry point of the process."""
    console = Console(width=None if sys.stdout.isatty() else 140)

    def say(text: str) -> None:
        console.out(f"{time.strftime('%H:%M:%S')} {text}", highlight=False)

    facts = machine()
    with tempfile.TemporaryDirectory(prefix="framelane-faults-") as folder:
        reports, failures = run(only or tuple(FAULTS), Lab(Path(folder), quick, say))
    show(reports, console)
    for failure in failures:
        console.print(f"could not be tried: {failure}")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": facts, "quick": quick, "failures": failures, "faults": [r.record() for r in reports]}
        output.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(failures) or not all(report.passed for report in reports))


if __name__ == "__main__":
    main()
