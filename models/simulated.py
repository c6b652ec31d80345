"""The simulated device: a run waits instead of computing, and returns what a real run once returned.

It exists for measuring the server, not the models: capacity is known exactly (``sim:8`` answers 125 items per second
and slot) and costs no CPU. Everything that shows it says SIMULATED. The outputs are recorded when the session is
opened, by a real run of the model on the CPU: of its ``recorded.npz`` input where its folder has one, else of noise in
the inputs' ranges (of zeros, many a network gives zeros, which nobody can tell from nothing).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .devices import Device, DeviceError, Simulation
from .locks import ByteLocks
from .registry import ModelSpec
from .session import Array, Batch, Bound, OnnxSession, sample

_CPU = Device("cpu", name="cpu")
_MAX_MEMBERS = 64
_STEPS = 8
_SEED = 8


class SimulatedSession:
    """A model on a simulated device; see ``Session``."""

    def __init__(self, spec: ModelSpec, device: Device) -> None:
        if device.simulation is None:
            raise DeviceError(f"device {device.name} is not a simulation")
        self.spec = spec
        self.device = f"{device.name} (SIMULATED)"
        self.best_batch = min(device.simulation.batch, spec.max_batch)
        self.overlaps = False
        self._simulation = device.simulation
        self._card = SharedCard(device.simulation) if device.simulation.group else None
        self._recorded = _recorded_outputs(spec)

    def bind(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> Bound:
        """See ``Session.bind``."""
        return Bound(inputs, outputs, None)

    def spare_items(self, count: int) -> list[Bound]:
        """See ``Session.spare_items``."""
        empty = tuple(np.zeros((1, *tensor.shape), tensor.dtype) for tensor in self.spec.inputs)
        return [self.bind(empty, tuple(np.zeros_like(array) for array in self._recorded)) for _ in range(count)]

    def gather(self, items: Sequence[Bound]) -> Batch:
        """See ``Session.gather``; nothing is copied."""
        return Batch(items, None)

    def execute(self, batch: Batch) -> None:
        """See ``Session.execute``: wait."""
        seconds = (self._simulation.run_ms + self._simulation.item_ms * len(batch.items)) / 1000
        if self._card is None:
            time.sleep(seconds)
        else:
            self._card.run(seconds)

    def scatter(self, batch: Batch) -> None:
        """See ``Session.scatter``: write what was recorded."""
        for item in batch.items:
            for own, recorded in zip(item.outputs, self._recorded, strict=True):
                own[...] = recorded

    def drop(self, batch: Batch) -> None:
        """See ``Session.drop``."""

    def run(self, items: Sequence[Bound]) -> None:
        """See ``Session.run``."""
        batch = self.gather(items)
        self.execute(batch)
        self.scatter(batch)

    def warm_up(self) -> dict[int, float]:
        """See ``Session.warm_up``; nothing needs warming."""
        return {n: self._simulation.run_ms + self._simulation.item_ms * n for n in (1, self.best_batch)}

    def enter_thread(self) -> None:
        """See ``Session.enter_thread``."""

    def watch_copies(self, copied: Callable[[float, float, int], None]) -> None:
        """See ``Session.watch_copies``; there are none."""

    def check_device(self) -> None:
        """See ``Session.check_device``; nothing can happen to it."""

    def facts(self) -> dict[str, Any]:
        """See ``Session.facts``."""
        return {"provider": "SIMULATED"}

    def close(self) -> None:
        """See ``Session.close``."""


class SharedCard:
    """One simulated card that several slots, also of other replicas, run on.

    Whoever runs holds a lock on one byte of a shared file (freed by the kernel when it dies), so that each can count
    how many run, and slow down accordingly, also when that changes in the middle of its run.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._locks = ByteLocks(f"sim-{simulation.group}")
        self._simulation = simulation

    def run(self, seconds: float) -> None:
        """Wait as long as ``seconds`` of work take on the card, given what else runs on it."""
        place = self._enter()
        try:
            if self._simulation.serial:
                time.sleep(seconds)
            else:
                self._advance(seconds)
        finally:
            self._locks.release(place)

    def _advance(self, seconds: float) -> None:
        """Do the work in steps, each at the speed that the number of runs allows at that time."""
        step = seconds / _STEPS
        due = time.monotonic()
        for _ in range(_STEPS):
            due += step * self._factor(1 + self._locks.held_by_others(_MAX_MEMBERS))
            time.sleep(max(0.0, due - time.monotonic()))

    def _factor(self, running: int) -> float:
        tax = self._simulation.tax
        if running <= len(tax):
            return tax[running - 1]
        growth = tax[-1] - tax[-2] if len(tax) > 1 else 0.0
        return tax[-1] + growth * (running - len(tax))

    def _enter(self) -> int:
        if self._simulation.serial:
            self._locks.acquire(0)
            return 0
        for place in range(_MAX_MEMBERS):
            if self._locks.try_acquire(place):
                return place
        raise DeviceError(f"more than {_MAX_MEMBERS} slots run in the simulated group {self._simulation.group!r}")


def _recorded_outputs(spec: ModelSpec) -> tuple[Array, ...]:
    """The outputs of one real run, each with a leading axis of 1."""
    recording = spec.path.with_name("recorded.npz")
    if recording.exists():
        with np.load(recording) as stored:
            inputs = tuple(stored[tensor.name][None] for tensor in spec.inputs)
    else:
        noise = np.random.default_rng(_SEED)
        inputs = tuple(sample(noise, tensor)[None] for tensor in spec.inputs)
    outputs = tuple(np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.outputs)
    session = OnnxSession(spec, _CPU)
    session.run([session.bind(inputs, outputs)])
    return outputs
