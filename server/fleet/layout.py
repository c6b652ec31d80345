"""Which replica gets which device, CPUs and port, decided with the reason for each. No I/O here.

    --replicas N --active A --devices D1,D2 --density K

``A`` replicas serve at the same time, spread over the devices, at most ``K`` on each; the other ``N - A`` are warm
spares. CPUs are cut into ``A`` shares, since a spare uses hardly any until it takes a dead one's share over.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from framelane.models.devices import parse_device
from framelane.models.gpu import GpuFacts
from framelane.server.config import ConfigError, Settings
from framelane.server.plan import Choice
from framelane.server.slots.cards import OWN_STANDBYS, check_cards, default_active, on_fullest, uses_cards

DEFAULT_REPLICAS = 3
MOST_REPLICAS = 64


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's place: its number from 1, and what it is given."""

    number: int
    device: str
    port: int

    @property
    def name(self) -> str:
        """In logs, in /v1/status and in the balancer."""
        return f"r{self.number}"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The members, how many of them serve at once, and the sets of CPUs for those (empty: they share all)."""

    members: tuple[Member, ...]
    active: int
    shares: tuple[tuple[int, ...], ...]
    workers: int | None
    """For each replica, where the CPUs are shared; None where each decides by its own CPUs."""
    choices: tuple[Choice, ...]


def lay_out(
    *,
    replicas: int | None,
    active: int | None,
    devices: Sequence[str],
    density: int | None,
    cpus: Sequence[int],
    ports: Sequence[int],
) -> Layout:
    """Decide what was left open.

    Args:
        replicas, active, density: as given on the command line; None where they were not.
        devices: at least one.
        cpus: that this process may use, by number.
        ports: one per replica, ``MOST_REPLICAS`` or as many as there will be.

    Raises:
        ConfigError: what was asked for contradicts itself.
        DeviceError: the name of a device cannot be read.
    """
    names = [parse_device(device).name for device in devices]
    most = len(names) * density if density else None
    count, why_count = _replicas(replicas, active, most)
    serving, why_serving = _active(active, count, most)
    if most is not None and serving > most:
        raise ConfigError(
            f"{serving} active replicas on {len(names)} device(s) are more than --density {density} allows: "
            f"at most {most}; raise --density, name more --devices or lower --active"
        )
    members = tuple(
        Member(number=index + 1, device=names[index % len(names)], port=ports[index]) for index in range(count)
    )
    shares = share_cpus(cpus, serving)
    per_device = -(-serving // len(names))
    choices = (
        Choice("replicas", str(count), why_count),
        Choice("active", str(serving), why_serving),
        Choice("devices", ", ".join(dict.fromkeys(names)), f"at most {per_device} active replica(s) on each"),
        Choice("CPUs", _shown(shares, cpus), _why_cpus(shares, serving, len(cpus))),
        Choice("ports", f"{members[0].port}–{members[-1].port}", "one per replica, on this machine only"),
    )
    workers = None if shares else max(1, len(cpus) // serving)
    return Layout(members=members, active=serving, shares=shares, workers=workers, choices=choices)


def on_its_card(settings: Settings, members: Sequence[Member], member: Member) -> dict[str, int]:
    """The settings of one replica that follow from those which share its card.

    How many they are, since all slots of a card divide its memory; and who has the standbys. Up to two replicas have
    their own; of more, the first on each card has them for all.
    """
    neighbours = [other for other in members if other.device == member.device]
    density = settings.gpu_density if settings.gpu_density > 1 else len(neighbours)
    device = parse_device(member.device)
    standbys = settings.standby_slots
    if density <= OWN_STANDBYS or not standbys or settings.gpu_standbys is not None or not device.is_card:
        return {"gpu_density": density}
    return {
        "gpu_density": density,
        "standby_slots": standbys if member is neighbours[0] else 0,
        "gpu_standbys": on_fullest(device, standbys),
    }


def check_cards_of(settings: Settings, members: Sequence[Member], gpu: GpuFacts) -> None:
    """Refuse more replicas than a card holds, before one is started.

    Raises:
        DeviceError, ConfigError: see ``cards.check_cards``.
    """
    for member in members:
        device = parse_device(member.device)
        if uses_cards(device, gpu):
            own = msgspec.structs.replace(settings, **on_its_card(settings, members, member))
            check_cards(own, device, own.active_slots or default_active(device), gpu)


def share_cpus(cpus: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """The CPUs in ``count`` blocks of neighbours, whose sizes differ by at most one; none if there are too few.

    Neighbours, since CPUs with near numbers mostly share a cache and a memory node.
    """
    ordered = sorted(cpus)
    if count < 2 or len(ordered) < count:
        return ()
    edges = [len(ordered) * index // count for index in range(count + 1)]
    return tuple(tuple(ordered[start:end]) for start, end in itertools.pairwise(edges))


def _replicas(given: int | None, active: int | None, most: int | None) -> tuple[int, str]:
    if given is not None:
        return given, "as configured"
    if active is not None:
        return active + 1, f"{active} active and a spare"
    if most is not None:
        return most + 1, f"as many as the density allows, {most}, and a spare"
    return DEFAULT_REPLICAS, "two that serve and a spare"


def _active(given: int | None, count: int, most: int | None) -> tuple[int, str]:
    if given is not None:
        if given > count:
            raise ConfigError(f"--active {given} of {count} replica(s): raise --replicas, or lower --active")
        return given, f"as configured; {count - given} warm spare(s)"
    serving = max(1, count - 1)
    if most is not None and most < serving:
        return most, f"what the density allows; the other {count - most} are warm spares"
    spare = "; the last one is a warm spare, which takes over without a start" if count > 1 else ""
    return serving, f"all but one{spare}" if spare else "there is no other"


def _shown(shares: Sequence[Sequence[int]], cpus: Sequence[int]) -> str:
    return ", ".join(ranges(share) for share in shares) if shares else f"{len(cpus)} shared"


def _why_cpus(shares: Sequence[Sequence[int]], serving: int, cpus: int) -> str:
    if shares:
        return "a share for each active replica; a spare takes over the share of the one that it replaces"
    if serving < 2:
        return "one replica serves, with all of them"
    return f"not pinned: {serving} active replicas are more than {cpus} CPU(s)"


def ranges(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2,5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
