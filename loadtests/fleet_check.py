"""What clients of a fleet notice: replicas that die, a rolling restart, and what more replicas bring.

\b
  kill     SIGKILL of an active replica, with 300 clients: its clients are back in time, the others notice nothing
  roll     a rolling restart of all under load: no admitted frame is lost
  scale    1, 2 and 4 replicas on a simulated device: goodput beside what one brings
  redis    what goes through Redis while frames do, and what clients notice when it is away for a minute
  hosts    deploy/haproxy on hosts of their own (network namespaces; needs root): one vanishes without a word

\b
  python -m framelane.loadtests.fleet_check
  python -m framelane.loadtests.fleet_check --only kill --clients 60 --quick

The devices are SIMULATED (sim:8: one run takes 8 ms, so a replica can do 125 a second). Needs haproxy. The exit status
is 1 if a bar is missed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from framelane.loadtests.bench import machine
from framelane.loadtests.faults.lab import sharpness_options
from framelane.loadtests.faults.pictures import told_apart
from framelane.loadtests.faults.report import Report, at_least, at_most
from framelane.loadtests.faults.table import show
from framelane.loadtests.fleet_hosts import cable_pulled
from framelane.loadtests.fleet_lab import FleetServer
from framelane.loadtests.fleet_load import Crowd
from framelane.loadtests.fleet_redis import RedisServer, away, nothing_per_frame
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.processes import Process, StartFailed, busy_seconds, cores
from framelane.loadtests.tally import Tally

_BEFORE_S = 5.0
_AFTER_S = 6.0
_BACK_S = 3.0
_BEYOND_HINT_S = 1.0
_FULL_CPU = 0.9
_BALANCER = Path("deploy/haproxy/haproxy.cfg")  # of the checkout that this runs in


class Lab(NamedTuple):
    """Where it happens."""

    folder: Path
    clients: int
    fps: float
    quick: bool
    say: Callable[[str], None]

    def fleet(self, name: str, *options: str) -> FleetServer:
        """A fleet of the default shape, or as the options say."""
        return FleetServer((*sharpness_options(), "--device", "sim:8", *options), self.folder / f"{name}.log")

    def crowd(self, fleet: FleetServer) -> Crowd:
        """The clients, whose pictures are small: this machine shall not be what limits."""
        return Crowd(fleet.url, told_apart(15, 64, 48), self.clients, self.fps)


async def killed(lab: Lab) -> Report:
    """SIGKILL of an active replica's gateway."""
    fleet = await asyncio.to_thread(lab.fleet, "kill")
    try:
        async with lab.crowd(fleet) as crowd:
            await asyncio.sleep(_BEFORE_S)
            victim = (await asyncio.to_thread(fleet.replicas, "active"))[0]
            had = victim["status"]["lanes"]["connected"]
            fault = time.monotonic()
            os.kill(victim["status"]["pid"], signal.SIGKILL)
            await asyncio.sleep(_AFTER_S)
            status = await asyncio.to_thread(fleet.status)
            await crowd.stop()
        end = fault + _AFTER_S
        out = crowd.out(fault - 0.1, end)
        hit = frozenset(outage.client for outage in out)
        others = crowd.outcomes(fault, end, without=hit)
        before = crowd.percentile(0.99, fault - _BEFORE_S, fault)
        after = crowd.percentile(0.99, fault, end, without=hit)
        return Report(
            fault="kill",
            lost={k: n for k, n in crowd.outcomes(fault, end).items() if k != "result"},
            recover_s=max((outage.ended - fault for outage in out), default=None),
            connections=len(out),
            figures=(
                at_least("clients that the dead replica had", had, 1),
                at_most("slowest of them served again", max(outage.ended - fault for outage in out), _BACK_S, "s"),
                at_most("others that lost their connection", len(out) - had, 0),
                at_most("frames of others without a result", others.total() - others["result"], 0),
                at_most("p99 of the others, before", before, None, "ms"),
                at_most("p99 of the others, in the 6 s after", after, None, "ms"),
                at_least("spares that took over", status["takeovers"], 1),
            ),
        )
    finally:
        await asyncio.to_thread(fleet.stop)


async def rolled(lab: Lab) -> Report:
    """SIGHUP: all three are restarted under load."""
    fleet = await asyncio.to_thread(lab.fleet, "roll")
    try:
        async with lab.crowd(fleet) as crowd:
            await asyncio.sleep(_BEFORE_S)
            pids = {replica["status"]["pid"] for replica in (await asyncio.to_thread(fleet.status))["replicas"]}
            began = time.monotonic()
            fleet.roll()
            await asyncio.sleep(1.0)
            took = await asyncio.to_thread(fleet.wait_for, fleet.is_whole, "the rolling restart is over", 120.0)
            await asyncio.sleep(_AFTER_S)
            after = {replica["status"]["pid"] for replica in (await asyncio.to_thread(fleet.status))["replicas"]}
            await crowd.stop()
        out = crowd.out(began, time.monotonic())
        outcomes = crowd.outcomes(began, time.monotonic())
        return Report(
            fault="roll",
            lost={k: n for k, n in outcomes.items() if k != "result"},
            recover_s=took + 1.0,
            connections=len(out),
            figures=(
                at_most("replicas that were not restarted", len(pids & after), 0),
                at_most("frames that nobody answered", outcomes["lost"], 0),
                at_most("admitted frames dropped", outcomes["failed"] + outcomes["expired"], 0),
                at_least(
                    "clients that were asked to move", sum(each.reason == "draining" for each in out), lab.clients
                ),
                at_most("connections cut instead", sum(each.reason != "draining" for each in out), 0),
                at_most("longest without service", max(each.ended - each.began for each in out), None, "s"),
                at_most("… beyond its hint", max(each.beyond_hint_s for each in out), _BEYOND_HINT_S, "s"),
            ),
        )
    finally:
        await asyncio.to_thread(fleet.stop)


async def scaled(lab: Lab) -> Report:
    """Closed-loop clients, twice as many as the slots can keep up with, against 1, 2 and 4 active replicas."""
    rates: dict[int, float] = {}
    busy: dict[int, float] = {}
    for count in (1, 2, 4):
        lab.say(f"scale: {count}")
        rates[count], busy[count] = await asyncio.to_thread(_goodput, lab, count)
    figures = [at_least("1 replica", rates[1], None, "fps"), at_most("CPU busy with 1", busy[1], None)]
    for count in (2, 4):
        share = rates[count] / (count * rates[1])
        full = busy[count] >= _FULL_CPU
        note = " (the CPU is full)" if full else ""
        figures.append(at_least(f"{count} replicas", rates[count], None, "fps"))
        figures.append(at_most(f"CPU busy with {count}", busy[count], None))
        figures.append(at_least(f"of {count} × one{note}", share, None if full else 0.95, "×"))
    return Report(fault="scale", figures=tuple(figures))


def _goodput(lab: Lab, count: int) -> tuple[float, float]:
    """Results per second of so many active replicas, and the share of all CPU time that was used."""
    seconds = 4.0 if lab.quick else 10.0
    options = ("--replicas", str(count), "--active", str(count))
    fleet = lab.fleet(f"scale-{count}", *options)
    frames, tally = lab.folder / "frames", Tally.create(lab.folder / f"tally-{count}")
    FrameFile(fps=10, frames=told_apart(15, 64, 48)).save(frames)
    arguments = ["-m", "framelane.loadtests.generator", "--port", str(fleet.port), "--frames", str(frames)]
    arguments += ["--tally", str(tally.path), "--clients", str(8 * count)]
    try:
        with Process(arguments, lab.folder / f"generator-{count}.log") as generator:
            time.sleep(3.0)
            generator.check()
            before, used, began = tally.counts(), busy_seconds(), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            generator.check()
            share = (busy_seconds() - used) / took / cores()
            return tally.counts().since(before).results / took, share
    finally:
        fleet.stop()


async def with_redis(lab: Lab) -> list[Report]:
    """What Redis is to a fleet."""
    server = RedisServer(lab.folder)
    await asyncio.to_thread(server.start)
    try:
        fleet = await asyncio.to_thread(lab.fleet, "redis", "--redis", server.url)
        try:
            async with lab.crowd(fleet) as crowd:
                await asyncio.sleep(_BEFORE_S)
                bytes_told = await nothing_per_frame(fleet, server, crowd, 5.0 if lab.quick else 20.0)
                return [bytes_told, await away(fleet, server, crowd, 6.0 if lab.quick else 60.0)]
        finally:
            await asyncio.to_thread(fleet.stop)
    finally:
        await asyncio.to_thread(server.stop)


async def on_hosts(lab: Lab) -> Report:
    """A host of three vanishes."""
    return await cable_pulled(lab.folder, _BALANCER, min(lab.clients, 30), lab.quick)


CHECKS: dict[str, Callable[[Lab], Awaitable[Report | list[Report]]]] = {
    "kill": killed,
    "roll": rolled,
    "scale": scaled,
    "redis": with_redis,
    "hosts": on_hosts,
}


async def _one(name: str, lab: Lab) -> list[Report]:
    found = await CHECKS[name](lab)
    return found if isinstance(found, list) else [found]


def run(names: tuple[str, ...], lab: Lab) -> tuple[list[Report], list[str]]:
    """One check after another: what came out, and what could not be tried."""
    reports: list[Report] = []
    failures: list[str] = []
    for name in names:
        lab.say(name)
        try:
            reports += asyncio.run(_one(name, lab))
        except (StartFailed, TimeoutError, OSError) as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
        except KeyboardInterrupt:
            lab.say("interrupted; what was tried so far:")
            break
    return reports, failures


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(list(CHECKS)), metavar="CHECK", help="may be repeated")
@click.option("--clients", default=300, show_default=True)
@click.option("--fps", default=0.5, show_default=True, help="of each client")
@click.option("--quick", is_flag=True, help="shorter; a look, too short to judge by")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file for the figures as JSON")
def main(only: tuple[str, ...], clients: int, fps: float, quick: bool, output: Path | None) -> None:
    """Entry point of the process."""
    console = Console(width=None if sys.stdout.isatty() else 140)

    def say(text: str) -> None:
        console.out(f"{time.strftime('%H:%M:%S')} {text}", highlight=False)

    with tempfile.TemporaryDirectory(prefix="framelane-fleet-") as folder:
        reports, failures = run(only or tuple(CHECKS), Lab(Path(folder), clients, fps, quick, say))
    show(reports, console)
    for failure in failures:
        console.print(f"could not be tried: {failure}")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": machine(), "quick": quick, "failures": failures, "checks": [r.record() for r in reports]}
        output.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(failures) or not all(report.passed for report in reports))


if __name__ == "__main__":
    main()
