"""One client in twenty stops reading and is then stopped (SIGSTOP): what that costs the server and the others.

A round is a run with them and one in which they read, in turns, so that what drifts on the machine meets both; what is
sent is the same. They send at the rate of a video for half of the time, in a process of their own, and nothing after
that, when it is stopped. The pipeline is face_mesh, whose results are large, and a simulated device is so fast that
they add up to more than the kernel keeps for a connection (some megabytes): only then has the server to deal with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from framelane.loadtests.figures import Figure, ratios
from framelane.loadtests.overload.arrivals import Phase
from framelane.loadtests.overload.crowd import Orders
from framelane.loadtests.overload.lab import WARM_UP_S, Lab, Run
from framelane.loadtests.overload.probes import Sample, sample, watch
from framelane.loadtests.overload.targets import Running, Target, roomy

from .base import honesty

SLOW_EVERY = 20
_FPS, _SLOW_FPS = 1.5, 60.0
_DEVICE = "sim:1"
_MB = 1e6


class Round(NamedTuple):
    """A calm run, one with slow readers, what the server looked like meanwhile and after it, and how many were slow."""

    calm: Run
    slow: Run
    samples: list[Sample]
    after: Sample
    clients: int

    def p99(self, run: Run) -> float:
        """Of the clients that read in both runs."""
        return run.summary(below=self.clients - slow_count(self.clients)).age.p99

    @property
    def growth_mb(self) -> float:
        """Of the PSS of all processes, at most."""
        return (max(one.pss for one in self.samples) - self.samples[0].pss) / _MB

    @property
    def kept_mb(self) -> float:
        """PSS that was not returned."""
        return (self.after.pss - self.samples[0].pss) / _MB

    def left(self, what: str) -> float:
        """Lanes or descriptors that slow readers have left behind."""
        before = getattr(self.samples[0], what) - slow_count(self.clients)
        return max(0.0, float(getattr(self.after, what) - before))


class SlowReaders:
    """Rounds of a calm run and one with slow readers; every other round the other way round."""

    name = "slow-readers"
    title = "One client in twenty does not read"

    def __init__(self) -> None:
        self._rounds: list[Round] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        if len(self._rounds) % 2:
            disturbed = _disturbed(lab)
            calm = lab.valid(lambda: _calm(lab))
        else:
            calm = lab.valid(lambda: _calm(lab))
            disturbed = _disturbed(lab)
        self._rounds.append(Round(calm, *disturbed, lab.effort.clients))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        rounds = self._rounds
        calm, slow = [r.p99(r.calm) for r in rounds], [r.p99(r.slow) for r in rounds]
        return [
            _figure("growth of PSS, all processes", [r.growth_mb for r in rounds], "MB", 20),
            _figure("the others' p99 over that without slow readers", ratios(slow, calm), "×", 1.25),
            _figure("lanes of slow readers that are left", [r.left("lanes") for r in rounds], "", 0),
            _figure("open files of slow readers that are left", [r.left("descriptors") for r in rounds], "", 0),
            _figure("PSS that is not returned", [r.kept_mb for r in rounds], "MB", 5),
            _figure("  p99 without slow readers", calm, "ms"),
            _figure("  clients cut by the server", [_cut(r.slow) for r in rounds]),
            _figure("  results shed", [_counted(r.slow, "results_shed") for r in rounds]),
            *honesty([r.calm for r in rounds]),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [
            {
                "calm": found.calm.record(),
                "slow": found.slow.record(),
                "samples": [one._asdict() for one in (*found.samples, found.after)],
            }
            for found in self._rounds
        ]


def _figure(name: str, values: Sequence[float], unit: str = "", bar: float | None = None) -> Figure:
    return Figure(name=name, unit=unit, rounds=tuple(values), bar=bar)


def _cut(run: Run) -> float:
    return float(sum(run.cut.values()))


def slow_count(clients: int) -> int:
    """How many of so many clients do not read."""
    return max(1, clients // SLOW_EVERY)


def _target(lab: Lab) -> Target:
    device = _DEVICE if lab.target.capacity is not None else lab.target.device
    return roomy(msgspec.structs.replace(lab.target, pipeline="face_mesh", device=device), lab.effort.clients)


def _half(lab: Lab) -> float:
    return WARM_UP_S + lab.effort.seconds / 2


def _orders(lab: Lab, server: Running) -> tuple[Orders, Orders]:
    """Those of the clients that are well, and of the others while they are well too."""
    slow = slow_count(lab.effort.clients)
    well = lab.orders(server, _FPS, lab.effort.seconds, clients=lab.effort.clients - slow)
    phases = (Phase(_half(lab), _SLOW_FPS), Phase(lab.effort.seconds / 2, 0.0))
    return well, msgspec.structs.replace(well, clients=slow, first=well.clients, seed=2, phases=phases)


def _calm(lab: Lab) -> Run:
    with lab.server(_target(lab)) as server:
        return lab.run(server, *_orders(lab, server))


def _disturbed(lab: Lab) -> tuple[Run, list[Sample], Sample]:
    with lab.server(_target(lab)) as server:
        well, slow = _orders(lab, server)
        deaf = msgspec.structs.replace(slow, deaf=True, returns=False, drain_s=0.1)
        samples: list[Sample] = []

        def during(start: float, generators: Sequence[int]) -> None:
            samples.extend(watch(server, _half(lab)))
            os.kill(generators[1], signal.SIGSTOP)
            samples.extend(watch(server, lab.effort.seconds / 2 - 1))
            samples.append(sample(server))
            os.kill(generators[1], signal.SIGCONT)

        run = lab.run(server, well, deaf, during=during)
        return run, samples[:-1], samples[-1]


def _counted(run: Run, name: str, label: str = "") -> float:
    return run.counted.get((f"framelane_{name}_total", label), 0.0)
