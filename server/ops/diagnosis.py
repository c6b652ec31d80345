"""What limits a replica, told from what it did in the last seconds: more compute, or a way to reach the compute.

A resource (``pressure.py``) is a limit when it is taken for ``_FULL`` of the time, or for ``_HIGH`` of it while frames
are lost or clients are held back. Where the cores are full, perhaps of other programs, everybody waits for them and
looks busy: then what counts is who is busiest without that waiting, unless others have taken most of the cores and so
slow all down alike. Slow clients go before, since results that nobody reads cost compute, too; places that are all
taken come after: they limit only what compute would allow.

``diagnose`` is pure: a window in, a diagnosis out. The names of the limits are part of the interface: of /v1/status,
/metrics, /ops, `framelane top` and reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from . import sentences
from .pressure import CORES_FULL, Facts, Pressures, headroom, lost, pressures, unread
from .window import Window

_FULL = 0.87
_HIGH = 0.7
_LOST = 0.02
_SHED = 0.05
_UNREAD = 0.2
_FAN_OUT = 3.0
_MOSTLY = 0.5


class Limit(StrEnum):
    """What a replica can be limited by."""

    GPU = "gpu"
    SLOTS = "slots"
    PREPROCESS = "preprocess"
    GATEWAY = "gateway"
    FAN_OUT = "fan_out"
    NETWORK = "network"
    ADMISSION = "admission"
    IDLE = "idle"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The principal limit, the evidence in a sentence, and what to change next.

    ``evidence`` are the shares behind it (0 to 1): `slots`, `workers`, `gateway`, `cores`, `others`, `lost`, `unread`,
    and `gpu` where it is known. ``headroom_users``: how many more clients like those of now there is room for; only
    when nothing limits.
    """

    limit: Limit
    sentence: str
    advice: str
    evidence: Mapping[str, float]
    window_s: float
    headroom_users: int | None = None


def diagnose(window: Window, facts: Facts) -> Diagnosis:
    """Name the principal limit of a window."""
    found = pressures(window, facts)
    limit = _limit(window, facts, found)
    sentence, advice = _SENTENCES[limit](window, facts, found)
    return Diagnosis(
        limit=limit,
        sentence=sentence,
        advice=advice,
        evidence={key: round(value, 3) for key, value in _evidence(window, found).items()},
        window_s=round(window.seconds, 1),
        headroom_users=headroom(window, facts, found) if limit is Limit.IDLE else None,
    )


def _limit(window: Window, facts: Facts, found: Pressures) -> Limit:
    if unread(window) > _SHED or (window.clients and window.blocked / window.clients > _UNREAD):
        return Limit.NETWORK
    resource = _fullest(window, facts, found)
    if resource is not None:
        return resource
    if window.waiting or window.turned_away:
        return Limit.ADMISSION
    return Limit.IDLE


def _fullest(window: Window, facts: Facts, found: Pressures) -> Limit | None:
    """The resource that is full; None if none is."""
    taken = {Limit.SLOTS: found.slots, Limit.PREPROCESS: found.workers, Limit.GATEWAY: found.gateway}
    wanting, cores_full = lost(window) > _LOST or window.held_back, found.cores >= CORES_FULL
    if max(taken.values()) < (_HIGH if wanting else _FULL) and not (wanting and cores_full):
        return None
    if cores_full and window.others < _MOSTLY * window.cores:
        taken = {
            Limit.SLOTS: found.slots_running,
            Limit.PREPROCESS: found.workers_running,
            Limit.GATEWAY: found.gateway_cpu,
        }
    most = max(taken, key=lambda limit: taken[limit])
    if most is Limit.SLOTS and _device_full(window, facts):
        return Limit.GPU
    if most is Limit.GATEWAY and window.told_fps > _FAN_OUT * max(window.received_fps, 1.0):
        return Limit.FAN_OUT
    return most


def _device_full(window: Window, facts: Facts) -> bool:
    """Whether it is the device that is full, rather than the processes that give it work."""
    if facts.on_cores:
        return False
    return window.gpu >= _FULL if window.gpu is not None else facts.shared_device


def _evidence(window: Window, found: Pressures) -> dict[str, float]:
    evidence = {
        "slots": found.slots,
        "workers": found.workers,
        "gateway": found.gateway,
        "cores": found.cores,
        "others": window.others / window.cores,
        "lost": lost(window),
        "unread": unread(window),
    }
    return evidence if window.gpu is None else {**evidence, "gpu": window.gpu}


_SENTENCES = {
    Limit.GPU: sentences.gpu,
    Limit.SLOTS: sentences.slots,
    Limit.PREPROCESS: sentences.preprocess,
    Limit.GATEWAY: sentences.gateway,
    Limit.FAN_OUT: sentences.fan_out,
    Limit.NETWORK: sentences.network,
    Limit.ADMISSION: sentences.admission,
    Limit.IDLE: sentences.idle,
}
