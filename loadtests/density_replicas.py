"""The replicas of one density: real servers, each with its own port, cores, card and memory limit."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from framelane.loadtests.confine import MemoryGroup, NotConfined, core_sets, on_cores
from framelane.loadtests.density import Layout
from framelane.loadtests.density_trials import Question
from framelane.loadtests.overload.targets import Running, Target
from framelane.loadtests.processes import Diagnosis, cores

_START_LIMIT_S = 180.0
_PLACES_FREE = 8
_NO_CARD = "-1"
_DEVICE = re.compile(r"(cuda|tensorrt)(?::(\d+))?")

Tell = Callable[[str, float], None]
"""Told what is being done and how much of it is done, 0 to 1."""


class Replicas:
    """The replicas of one density, each on a port, with cores, a device and memory of its own."""

    def __init__(self, question: Question, layout: Layout, most_users: int, folder: Path) -> None:
        self.layout = layout
        self.running: list[Running] = []
        self.notes: list[str] = []
        self._question = question
        self._most_users = most_users
        self._folder = folder
        self._groups: list[MemoryGroup] = []

    def start(self, tell: Tell) -> None:
        """Start all, a few at a time. Raises StartFailed, and leaves nothing."""
        places = self._places()
        at_once = max(2, cores() // 2)
        try:
            for first in range(0, len(places), at_once):
                tell(f"{self.layout}: starting {len(places)} replicas", first / len(places))
                begun = [self._begin(first + number, place) for number, place in enumerate(places[first:][:at_once])]
                for replica in begun:
                    replica.wait_until_ready(_START_LIMIT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all, whatever state they are in."""
        for replica in self.running:
            replica.popen.terminate()
        for replica in self.running:
            replica.stop()
        for group in self._groups:
            group.remove()
        self.running.clear()
        self._groups.clear()

    def pids(self) -> list[list[int]]:
        """The processes of each replica."""
        return [replica.pids() for replica in self.running]

    def ended(self) -> str | None:
        """What the first replica that has ended said last; None while all live."""
        for number, replica in enumerate(self.running):
            if replica.popen.poll() is not None:
                return f"replica {number} ended under this load: {replica.tail()}"
        return None

    def diagnosis(self) -> Diagnosis:
        """What most of those replicas say that say anything."""
        said = [found for replica in self.running if (found := replica.diagnosis()).sentence]
        return statistics.mode(said) if said else Diagnosis()

    def _places(self) -> list[Place]:
        question = self._question
        count = self.layout.replicas * len(question.devices)
        available = sorted(os.sched_getaffinity(0))
        available = available[question.reserve :] or available
        sets = core_sets(available, count) if question.pin else [tuple(available)] * count
        return [Place(sets[n], question.devices[n % len(question.devices)]) for n in range(count)]

    def _begin(self, number: int, place: Place) -> Running:
        question = self._question
        places = -(-self._most_users // (self.layout.replicas * len(question.devices))) + _PLACES_FREE
        device, environment = visible_device(place.device, os.environ.get("CUDA_VISIBLE_DEVICES"))
        target = Target(
            pipeline=question.pipeline,
            device=device,
            slots=self.layout.slots,
            workers=self.layout.workers,
            arguments=("--max-clients", str(places), *shared_card(place.device, self.layout.replicas), *question.serve),
            precedence=True,
            environment=environment,
        )
        with on_cores(place.cores):
            replica = Running(target, self._folder / f"{number:03}.log", patience=0)
        self.running.append(replica)
        self._limit_memory(replica)
        return replica

    def _limit_memory(self, replica: Running) -> None:
        if not self._question.memory_mib:
            return
        try:
            group = MemoryGroup.make(f"framelane-{replica.pid}", self._question.memory_mib << 20)
            self._groups.append(group)
            group.take(replica.pid)
        except (NotConfined, OSError) as error:
            note = f"memory was not limited: {error}"
            self.notes += [note] if note not in self.notes else []


class Place(NamedTuple):
    """What one replica gets."""

    cores: tuple[int, ...]
    device: str


def shared_card(name: str, replicas: int) -> tuple[str, ...]:
    """What a replica is told of how many share its card: they divide its memory and the clients that MPS serves."""
    return ("--gpu-density", str(replicas)) if _DEVICE.fullmatch(name) else ()


def visible_device(name: str, visible: str | None) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The device as its replica knows it, and the environment that hides the other cards.

    Args:
        name: of the device; its number counts the cards that are visible here.
        visible: ``CUDA_VISIBLE_DEVICES`` as it is here: numbers or UUIDs; None where it is not set.
    """
    found = _DEVICE.fullmatch(name)
    if found is None:
        return name, ()
    number = int(found[2] or 0)
    seen = [str(number)] * (number + 1) if visible is None else [part.strip() for part in visible.split(",")]
    return f"{found[1]}:0", (("CUDA_VISIBLE_DEVICES", seen[number] if number < len(seen) else _NO_CARD),)
