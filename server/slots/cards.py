"""Which slots go on which card, and whether they fit: decided from facts of the driver, without I/O.

Slots take turns over the cards of a device (``cuda:0,1,2,3``). All slots of all replicas that share a card (its
*density*) divide its memory, and MPS serves only so many processes of a card. Unless somebody says how many standbys
there are on a card, each of its replicas is taken to have as many as this one. A fleet says it: with more than two
replicas on a card one of them keeps the standbys, for all.
"""

from __future__ import annotations

import math
from collections.abc import Set

from framelane.models.devices import Device
from framelane.models.gpu import GpuFacts, explain
from framelane.models.providers import MPS_CLIENTS, Tuning, arena_budget
from framelane.server.config import ConfigError, Settings

ACTIVE_PER_CARD = 2
"""Two fill each other's gaps between runs; more are slower each, and rarely more in total: `framelane probe` tells."""
OWN_STANDBYS = 2
"""Up to so many replicas on a card each have standbys of their own; above that, one replica has them for all."""


def uses_cards(device: Device, gpu: GpuFacts | None) -> bool:
    """Whether slots will run on a card: it was named, or ``auto`` finds that it works."""
    if device.kind == "auto":
        return gpu is not None and not explain(gpu, "cuda", device.index)
    return device.is_card


def cards_of(device: Device) -> tuple[int, ...]:
    """The numbers of the cards that a device names."""
    return device.cards or (device.index,)


def on_fullest(device: Device, count: int) -> int:
    """How many of so many slots come on the fullest card: they take turns over the cards."""
    return math.ceil(count / len(cards_of(device)))


def default_active(device: Device) -> int:
    """How many active slots a replica has on its cards where nobody says it."""
    return ACTIVE_PER_CARD * len(cards_of(device))


def per_card(settings: Settings, device: Device, active: int) -> int:
    """Processes on the fullest card, those of the other replicas that share it included."""
    own = active + settings.audit_slots
    if settings.gpu_standbys is None:
        return settings.gpu_density * on_fullest(device, own + settings.standby_slots)
    return settings.gpu_density * on_fullest(device, own) + settings.gpu_standbys


def check_cards(settings: Settings, device: Device, active: int, gpu: GpuFacts | None) -> None:
    """Refuse what no card can hold, before a process is started.

    Raises:
        DeviceError: more slots than fit the card's memory.
        ConfigError: more processes than MPS serves; a card that the driver does not list; fewer standbys on a card than
            this replica alone has.
    """
    own = on_fullest(device, settings.standby_slots)
    if settings.gpu_standbys is not None and settings.gpu_standbys < own:
        raise ConfigError(
            f"gpu_standbys = {settings.gpu_standbys}, but this replica alone has {own} standby slot(s) on a card: "
            "raise gpu_standbys, or leave it out"
        )
    processes = per_card(settings, device, active)
    if processes > MPS_CLIENTS:
        raise ConfigError(
            f"{processes} slots would share a card, and MPS serves at most {MPS_CLIENTS} processes of one; lower "
            "active_slots, standby_slots, audit_slots or gpu_density (the replicas that share the card)"
        )
    if gpu is None:
        return
    for index in cards_of(device):
        if why := explain(gpu, "cuda" if device.kind == "auto" else device.kind, index):
            raise ConfigError(f"device {device.name}: {why}")
    make_tuning(settings, device, active, gpu, models=1)


def make_tuning(settings: Settings, device: Device, active: int, gpu: GpuFacts | None, models: int) -> Tuning:
    """How sessions are set up, with each one's share of the smallest card's memory.

    Raises:
        DeviceError: the slots do not fit; the message says how many would.
    """
    known = {card.index: card.memory for card in gpu.driver.cards} if gpu is not None else {}
    sizes = [known[index] for index in cards_of(device) if index in known]
    memory = 0
    if sizes and uses_cards(device, gpu):
        memory = arena_budget(min(sizes), per_card(settings, device, active), max(1, models))
    return Tuning(
        memory=memory,
        nhwc=settings.gpu_nhwc,
        conv_search=settings.gpu_conv_search,
        graphs=settings.gpu_graphs,
        precision=settings.gpu_precision,
        cache=settings.gpu_cache,
    )


def cpus_near(local: str, allowed: Set[int]) -> set[int]:
    """The cores on the card's side of the machine that this process may use; all that it may where none is known.

    Args:
        local: the kernel's list of them, as "0-15,32-47" (``/sys/bus/pci/devices/…/local_cpulist``).
        allowed: cores that this process may use.
    """
    near: set[int] = set()
    for part in filter(None, local.strip().split(",")):
        first, _, last = part.partition("-")
        near.update(range(int(first), int(last or first) + 1))
    return (near & allowed) or set(allowed)
