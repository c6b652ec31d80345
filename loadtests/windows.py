"""A window: so many seconds in which work is counted and processor time read, at the same two moments.

Other programs of the machine disturb a measurement; how much they used is part of every window, and a window that was
disturbed too much is measured again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from framelane.loadtests.processes import busy_seconds, cores, cpu_seconds, switches
from framelane.loadtests.tally import Counts, Tally, total

DISTURBED = 0.04
"""Share of the cores from which use by other programs disturbs a window."""

_CALM_WAIT_S = 15


class Use(NamedTuple):
    """What some processes used in a window: seconds of processor time, and context switches of both kinds."""

    cpu: float
    voluntary: int
    involuntary: int


class Window(NamedTuple):
    """What happened in one window. ``use`` is by group of processes; ``foreign`` is cores that others used."""

    seconds: float
    counts: Counts
    latencies: Sequence[float]
    use: Mapping[str, Use]
    foreign: float

    @property
    def fps(self) -> float:
        """Results per second."""
        return self.counts.results / self.seconds

    @property
    def cores(self) -> float:
        """The cores that other programs left to this window."""
        return cores() - self.foreign

    @property
    def disturbed(self) -> bool:
        """Whether other programs used so much that the window should not count."""
        return self.foreign > DISTURBED * cores()

    def cpu_ms(self, group: str) -> float:
        """Milliseconds of processor time that a group of processes used per result."""
        return 1000 * self.use[group].cpu / max(self.counts.results, 1)

    def percentile(self, percent: float) -> float:
        """Of the latencies, in milliseconds; not-a-number without any."""
        ordered = sorted(self.latencies)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else float("nan")

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        results = max(self.counts.results, 1)
        return {
            "seconds": round(self.seconds, 3),
            **self.counts._asdict(),
            "fps": round(self.fps, 2),
            "latency_ms": {f"p{percent}": round(self.percentile(percent), 3) for percent in (50, 95, 99)},
            "cpu_ms_per_frame": {group: round(self.cpu_ms(group), 4) for group in self.use},
            "switches_per_frame": {
                group: [round(use.voluntary / results, 2), round(use.involuntary / results, 2)]
                for group, use in self.use.items()
            },
            "foreign_cores": round(self.foreign, 3),
            "disturbed": self.disturbed,
        }


class _Moment(NamedTuple):
    at: float
    cpu: dict[int, float]
    switches: dict[int, tuple[int, int]]
    counts: list[Counts]
    busy: float


class Vanished(Exception):
    """A measured process ended in the window."""


def measure(groups: Mapping[str, Sequence[int]], tallies: Sequence[Tally], seconds: float) -> Window:
    """Watch the processes (by group) and the tallies for so many seconds.

    Raises:
        Vanished: a process ended.
    """
    pids = [pid for group in groups.values() for pid in group]
    before = _moment(pids, tallies)
    time.sleep(seconds)
    after = _moment(pids, tallies)
    spent = {pid: after.cpu[pid] - before.cpu[pid] for pid in pids}
    own = sum(spent.values()) + after.cpu[os.getpid()] - before.cpu[os.getpid()]
    elapsed = after.at - before.at
    spans = list(zip(tallies, before.counts, after.counts, strict=True))
    return Window(
        seconds=elapsed,
        counts=total([stop.since(start) for _, start, stop in spans]),
        latencies=[ms for tally, start, stop in spans for ms in tally.latencies(start.results, stop.results)],
        use={name: _use(group, spent, before, after) for name, group in groups.items()},
        foreign=max(0.0, (after.busy - before.busy - own) / elapsed),
    )


def _moment(pids: Sequence[int], tallies: Sequence[Tally]) -> _Moment:
    cpu = {pid: cpu_seconds(pid) for pid in (*pids, os.getpid())}
    if gone := [pid for pid, seconds in cpu.items() if seconds is None]:
        raise Vanished(f"process {gone[0]} ended while it was measured")
    counted = [tally.counts() for tally in tallies]
    at, busy = time.monotonic(), busy_seconds()
    return _Moment(at, {p: s for p, s in cpu.items() if s is not None}, {p: switches(p) for p in pids}, counted, busy)


def _use(group: Sequence[int], spent: Mapping[int, float], before: _Moment, after: _Moment) -> Use:
    voluntary, involuntary = (
        sum(after.switches[pid][kind] - before.switches[pid][kind] for pid in group) for kind in (0, 1)
    )
    return Use(sum(spent[pid] for pid in group), voluntary, involuntary)


def undisturbed(take: Callable[[float], Window], seconds: float, patience: int, say: Callable[[str], None]) -> Window:
    """Take a window of so many seconds, and again up to ``patience`` times while others disturb it; the least
    disturbed one counts. Before each further try it waits a while for the machine to become calm.
    """
    best = take(seconds)
    for _ in range(patience):
        if not best.disturbed:
            break
        say(f"others used {best.foreign:.2f} cores: once more")
        for _ in range(_CALM_WAIT_S):
            if not take(1.0).disturbed:
                break
        best = min(best, take(seconds), key=lambda window: window.foreign)
    return best
