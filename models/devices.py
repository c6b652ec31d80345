"""Devices by name: what ``--device`` accepts, parsed once into a frozen value.

    auto | cpu | cuda[:N,…] | tensorrt[:N,…] | sim:MS[:batch=N][:item=MS][:group=NAME:tax=1,1.44,2.08][:serial]

Several cards (``cuda:0,1,2,3``) are one device to ``serve``, which spreads its slots over them; a slot has one of them.

A simulated device waits instead of computing, so that its capacity is known exactly; everything that shows it says
SIMULATED. A device that was named and cannot be had is an error at start, never a silent fallback.
"""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from .errors import FramelaneError


class DeviceError(FramelaneError):
    """A device that does not exist, cannot be used, or whose name cannot be read."""

    code = "bad_device"


class Simulation(msgspec.Struct, frozen=True):
    """How a simulated device behaves.

    Attributes:
        run_ms: milliseconds that a run waits.
        batch: largest batch of one run.
        item_ms: milliseconds more per item of the batch.
        group: slots of the same group, also those of other replicas on this machine, share one simulated card
            ("default" where ``tax`` or ``serial`` is given alone; empty: each slot has a card of its own).
        tax: factors on a run's time with 1, 2, 3 … slots of the group running; beyond the list the last step goes on.
        serial: the group's slots take turns instead.
    """

    run_ms: float
    batch: int = 1
    item_ms: float = 0.0
    group: str = ""
    tax: tuple[float, ...] = (1.0,)
    serial: bool = False


class Device(msgspec.Struct, frozen=True):
    """A device. ``kind`` is "auto", "cpu", "cuda", "tensorrt" or "sim"; ``index`` is the card's number.

    ``cards`` are the numbers of all cards where there are several; then ``index`` is the first.
    """

    kind: Literal["auto", "cpu", "cuda", "tensorrt", "sim"]
    index: int = 0
    simulation: Simulation | None = None
    name: str = ""
    cards: tuple[int, ...] = ()

    def of_slot(self, slot: int) -> Device:
        """The one card of a slot, by the slot's number: slots take turns over the cards."""
        if not self.cards:
            return self
        index = self.cards[slot % len(self.cards)]
        return Device(self.kind, index, name=f"{self.kind}:{index}")

    @property
    def is_card(self) -> bool:
        """Whether a card is named; ``auto`` may become one."""
        return self.kind in ("cuda", "tensorrt")

    @property
    def simulated(self) -> bool:
        """Whether nothing is computed there."""
        return self.simulation is not None


_HELP = "use auto, cpu, cuda[:N,…], tensorrt[:N,…] or sim:MS[:batch=N][:item=MS][:group=NAME:tax=1,1.44,2.08][:serial]"


def parse_device(text: str) -> Device:
    """Parse a device's name.

    Raises:
        DeviceError: naming the part that cannot be read and the grammar.
    """
    kind, _, rest = text.partition(":")
    match kind:
        case "auto" | "cpu" if not rest:
            return Device(kind, name=kind)
        case "cuda" | "tensorrt" if re.fullmatch(r"\d*", rest):
            return Device(kind, int(rest or 0), name=f"{kind}:{int(rest or 0)}")
        case "cuda" | "tensorrt" if re.fullmatch(r"\d+(,\d+)+", rest):
            cards = tuple(map(int, rest.split(",")))
            if len(set(cards)) < len(cards):
                raise DeviceError(f"device {text!r} names a card twice")
            return Device(kind, cards[0], name=text, cards=cards)
        case "sim" if rest:
            return Device(kind, simulation=_simulation(text, rest.split(":")), name=text)
    raise DeviceError(f"device {text!r}: {_HELP}")


def _simulation(text: str, parts: list[str]) -> Simulation:
    try:
        fields: dict[str, object] = {"run_ms": float(parts[0])}
        if any(part == "serial" or part.startswith("tax=") for part in parts):
            fields["group"] = "default"
        for part in parts[1:]:
            key, separator, value = part.partition("=")
            fields.update(_simulation_field(key, value if separator else None))
        simulation = msgspec.convert(fields, Simulation)
        if not all(map(math.isfinite, (simulation.run_ms, simulation.item_ms, *simulation.tax))):
            raise ValueError("times and factors must be finite")
        if simulation.run_ms < 0 or simulation.item_ms < 0 or simulation.batch < 1 or min(simulation.tax) <= 0:
            raise ValueError("times and factors must be positive, batch at least 1")
    except (ValueError, msgspec.ValidationError) as error:
        raise DeviceError(f"device {text!r}: {error}; {_HELP}") from None
    return simulation


def _simulation_field(key: str, value: str | None) -> dict[str, object]:
    match key, value:
        case "serial", None:
            return {"serial": True}
        case "batch", str():
            return {"batch": int(value)}
        case "item", str():
            return {"item_ms": float(value)}
        case "group", str() if re.fullmatch(r"[A-Za-z0-9_-]{1,32}", value):
            return {"group": value}
        case "tax", str():
            return {"tax": tuple(float(factor) for factor in value.split(","))}
    raise ValueError(f"cannot read {key + ('' if value is None else '=' + value)!r}")
