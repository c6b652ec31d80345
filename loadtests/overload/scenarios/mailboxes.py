"""2,000 clients that each fill a mailbox with 1 MiB, before a device that hardly answers: the byte budget holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from framelane.loadtests.figures import Figure
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.overload.arrivals import Phase
from framelane.loadtests.overload.lab import Lab, Run
from framelane.loadtests.overload.probes import Sample, sample, watch
from framelane.loadtests.overload.targets import roomy

from .base import honesty

CLIENTS = 2000
BUDGET = 256 * 2**20
"""The default of ``--mailbox-bytes``."""
_FRAME_BYTES = 2**20
_SECONDS = 30.0
_DEADLINE_MS = 20_000
_MB = 1e6


class Filled(NamedTuple):
    """A run, and what the server looked like before and in it."""

    run: Run
    before: Sample
    samples: list[Sample]


class Mailboxes:
    """One run."""

    name = "mailboxes"
    title = "2,000 mailboxes of 1 MiB"

    def __init__(self) -> None:
        self._found: list[Filled] = []

    def measure(self, lab: Lab) -> None:
        """See ``Scenario``."""
        clients = round(CLIENTS * max(lab.effort.scale, 0.3))
        large = lab.save(FrameFile(lab.clip.fps, [data.ljust(_FRAME_BYTES, b"\0") for data in lab.clip.frames[:1]]))
        target = msgspec.structs.replace(lab.target, device="sim:400", deadline_ms=_DEADLINE_MS)
        with lab.server(roomy(target, clients)) as server:
            samples: list[Sample] = []
            phases = (Phase(_SECONDS, 2 / _SECONDS),)
            orders = lab.orders(server, phases, clients=clients, frames=large, kind="fixed", drain_s=25.0)

            def during(start: float, generators: Sequence[int]) -> None:
                samples.extend(watch(server, _SECONDS, every=0.5))

            before = sample(server)
            run = lab.run(server, orders, during=during)
        self._found.append(Filled(run, before, samples))

    def figures(self) -> list[Figure]:
        """See ``Scenario``."""
        found = self._found
        most = [max(one.mailbox_bytes for one in f.samples) for f in found]
        growth = [(max(one.gateway_pss for one in f.samples) - f.before.gateway_pss) / _MB for f in found]
        return [
            Figure(name="most bytes in mailboxes", unit="MB", rounds=tuple(n / _MB for n in most), bar=BUDGET / _MB),
            Figure(name="growth of the gateway's PSS over the budget", unit="×", rounds=tuple(_over(growth)), bar=1.5),
            Figure(name="  growth of the gateway's PSS", unit="MB", rounds=tuple(growth)),
            Figure(name="  frames refused for want of room", unit="", rounds=tuple(_refused(f.run) for f in found)),
            *honesty([f.run for f in found]),
        ]

    def details(self) -> Any:
        """See ``Scenario``."""
        return [f.run.record() | {"samples": [one._asdict() for one in (f.before, *f.samples)]} for f in self._found]


def _over(growth: list[float]) -> list[float]:
    return [value * _MB / BUDGET for value in growth]


def _refused(run: Run) -> float:
    return run.counted.get(("framelane_frames_dropped_total", "rate_limited"), 0.0)
