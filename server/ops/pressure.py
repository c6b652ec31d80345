"""How much of each resource a window shows to be taken, and how many more clients there would be room for.

slots        seconds of runs per active slot
workers      seconds of work per worker that a core can be found for
gateway      processor time of the event loop, and its waiting for a core
cores        processor time of everything, other programs included
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from .window import Load, Window

CORES_FULL = 0.93
_KNOWN = 0.2  # of a resource: below it, what it would take for more says little


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while a replica runs.

    Attributes:
        device: its name as people know it: "cpu", "cuda:0", "sim:8".
        on_cores: whether slots use the cores that workers use.
        shared_device: whether slots take turns on one device, as far as that is known.
        max_clients: as configured; None: as many as the capacity allows.
        client_fps: what a client is promised.
    """

    device: str = "cpu"
    on_cores: bool = True
    shared_device: bool = False
    max_clients: int | None = None
    client_fps: float = 10.0


class Pressures(NamedTuple):
    """The share of the time in which each resource was taken, and who uses how many cores.

    ``…_running`` leaves the time out in which its processes waited for a core.
    """

    slots: float
    workers: float
    gateway: float
    cores: float
    slot_cpu: float
    worker_cpu: float
    gateway_cpu: float
    slots_running: float
    workers_running: float


def pressures(window: Window, facts: Facts) -> Pressures:
    """How much of each resource is taken."""
    slots, workers = window.of("slot"), window.of("worker")
    gateway = next((load for load in window.loads if load.kind == "gateway"), Load("gateway", "", "active", 0.0, 0.0))
    slot_cpu, worker_cpu = _sum(slots, "cpu"), _sum(workers, "cpu")
    usable = max(1, min(len(workers), math.ceil(window.cores)))
    own = sum(load.cpu for load in window.loads)
    return Pressures(
        slots=_sum(slots, "busy") / max(1, len(slots)),
        workers=min(1.0, _sum(workers, "busy") / usable),
        gateway=min(1.0, gateway.cpu + gateway.core_wait),
        cores=min(1.0, (own + window.others) / window.cores),
        slot_cpu=slot_cpu if facts.on_cores else 0.0,
        worker_cpu=worker_cpu,
        gateway_cpu=gateway.cpu,
        slots_running=_running(slots) / max(1, len(slots)),
        workers_running=_running(workers) / usable,
    )


def lost(window: Window) -> float:
    """The share of frames that compute, had there been more of it, would have answered."""
    ended = window.ended_fps
    missed = sum(window.dropped_fps.get(reason, 0.0) for reason in ("superseded", "expired", "rate_limited"))
    return missed / ended if ended > 0 else 0.0


def unread(window: Window) -> float:
    """The share of results that were shed since their clients do not read."""
    made = window.delivered_fps + window.shed_fps
    return window.shed_fps / made if made > 0 else 0.0


def headroom(window: Window, facts: Facts, found: Pressures) -> int:
    """How many more clients could be served like those of now; like those that are promised, if there are none."""
    per_client = window.received_fps / window.senders if window.senders and window.received_fps else facts.client_fps
    ceiling = window.capacity_fps
    tightest = max(found.slots, found.workers, found.gateway, _cores_taken(found, window))
    if tightest >= _KNOWN and window.ended_fps > 0:
        ceiling = min(ceiling, window.ended_fps / tightest)
    if math.isinf(ceiling):
        ceiling = window.ended_fps / max(tightest, 0.01)
    more = max(0, math.floor((ceiling - window.ended_fps) / per_client))
    return more if facts.max_clients is None else min(more, max(0, facts.max_clients - window.admitted))


def _cores_taken(found: Pressures, window: Window) -> float:
    """Of the cores that other programs leave."""
    own = found.slot_cpu + found.worker_cpu + found.gateway_cpu
    return min(1.0, own / max(window.cores - window.others, own, 0.01))


def _running(loads: list[Load]) -> float:
    return sum(max(0.0, load.busy - load.core_wait) for load in loads)


def _sum(loads: list[Load], name: str) -> float:
    return sum(float(getattr(load, name)) for load in loads)
