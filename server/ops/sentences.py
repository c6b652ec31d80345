"""A diagnosis in words: the evidence in a sentence, and what to change next. One function per limit."""

from __future__ import annotations

import math

from framelane.preprocess.stages import Stage

from .pressure import CORES_FULL, Facts, Pressures, headroom, unread
from .window import Window

_WORTH_SAYING = 0.2
_LEAST_WAIT_S = 0.001

Told = tuple[str, str]


def gpu(window: Window, facts: Facts, found: Pressures) -> Told:
    """The device itself is busy."""
    busy = found.slots if window.gpu is None else window.gpu
    sentence = (
        f"GPU-bound: {facts.device} is {_percent(busy)} busy{_waits(window, Stage.SLOT_WAIT)}, while the event loop is "
        f"{_percent(found.gateway)} and the workers are {_percent(found.workers)} busy"
    )
    return sentence, "more compute: a replica on another GPU, a lighter model, or half precision"


def slots(window: Window, facts: Facts, found: Pressures) -> Told:
    """The slots are busy, though perhaps not their device."""
    count = len(window.of("slot"))
    sentence = (
        f"slot-bound: {_many(count, 'active slot')} {_percent(found.slots)} busy{_waits(window, Stage.SLOT_WAIT)}, "
        f"while the event loop is {_percent(found.gateway)} and the workers are {_percent(found.workers)} busy"
    )
    if facts.on_cores:
        sentence += _cores(window, found, found.slot_cpu, "models")
        return sentence, _cores_advice(window) + "a GPU (--device cuda), or a lighter model"
    if window.gpu is not None:
        sentence += f"; {facts.device} itself is only {_percent(window.gpu)} busy"
        return sentence, f"another active slot (--active-slots {count + 1}): the device has room for it"
    return sentence, (
        f"another active slot (--active-slots {count + 1}) where `framelane probe` shows that {facts.device} runs them "
        "at once; otherwise a replica on another device"
    )


def preprocess(window: Window, _facts: Facts, found: Pressures) -> Told:
    """The workers are busy."""
    count = len(window.of("worker"))
    sentence = (
        f"preprocess-bound: {_many(count, 'worker')} {_percent(found.workers)} busy with decoding, pre- and "
        f"postprocessing{_waits(window, Stage.WORKER_WAIT)}, while the slots are {_percent(found.slots)} and the event "
        f"loop is {_percent(found.gateway)} busy"
    )
    if found.cores >= CORES_FULL or count >= window.cores:
        sentence += _cores(window, found, found.worker_cpu, "workers")
        return sentence, _cores_advice(window) + "smaller pictures from the clients, or less work per frame"
    free = window.cores * (1 - found.cores)
    more = min(math.ceil(window.cores), count + max(1, round(free)))
    return sentence, f"more workers (--workers {more}): {free:.1f} of {window.cores:g} cores are idle"


def gateway(window: Window, _facts: Facts, found: Pressures) -> Told:
    """The event loop is busy: the interpreter limits."""
    lag = window.lag_s(0.99) or 0.0
    sentence = (
        f"gateway-bound: the event loop is {_percent(found.gateway)} busy with {window.received_fps:.0f} messages/s, "
        f"its timers are up to {1000 * lag:.0f} ms late, while the slots are {_percent(found.slots)} and the workers "
        f"are {_percent(found.workers)} busy"
    )
    advice = (
        f"a second replica: the event loop is {_percent(found.gateway)} busy while the slots are "
        f"{_percent(found.slots)} busy; more compute would not help"
    )
    return sentence + _cores(window, found, found.gateway_cpu, "the event loop"), advice


def fan_out(window: Window, _facts: Facts, found: Pressures) -> Told:
    """The event loop is busy with telling clients things that are no results."""
    ratio = window.told_fps / max(window.received_fps, 1.0)
    sentence = (
        f"fan-out-bound: the event loop is {_percent(found.gateway)} busy with telling {window.clients} clients "
        f"{window.told_fps:.0f} notices/s, {ratio:.0f} for each message that came, while the slots are "
        f"{_percent(found.slots)} busy"
    )
    return sentence, "a second replica, so that each has fewer clients to tell; more compute would not help"


def network(window: Window, _facts: Facts, found: Pressures) -> Told:
    """Clients do not read what they are sent."""
    shed = f"{_percent(unread(window))} of the results are shed, " if window.shed_fps else ""
    sentence = (
        f"network-bound: {window.blocked:.0f} of {window.clients} clients do not read what they are sent; {shed}while "
        f"the slots are {_percent(found.slots)} and the event loop is {_percent(found.gateway)} busy"
    )
    return sentence, (
        "smaller or fewer results for these clients: their links or pages are slow, and more compute would not help"
    )


def admission(window: Window, facts: Facts, found: Pressures) -> Told:
    """Clients want a place that compute would allow."""
    without = f"{window.waiting} clients wait" if window.waiting else f"{window.turned_away} clients were turned away"
    busy = (
        f"while the slots are {_percent(found.slots)}, the workers {_percent(found.workers)} and the event loop is "
        f"{_percent(found.gateway)} busy"
    )
    if facts.max_clients is not None:
        sentence = f"admission-limited: {without} since all {facts.max_clients} places are taken, {busy}"
        return sentence, f"raise --max-clients (now {facts.max_clients}): compute is not the limit"
    sentence = (
        f"admission-limited: {without} and {window.admitted} have a place, with {facts.client_fps:g} frames/s promised "
        f"to each of the {window.capacity_fps:.0f} that were measured, {busy}"
    )
    return sentence, "lower --client-fps, if clients send less than they are promised"


def idle(window: Window, facts: Facts, found: Pressures) -> Told:
    """Nothing limits."""
    more = headroom(window, facts, found)
    sentence = (
        f"idle: headroom about {more} {'user' if more == 1 else 'users'}; the slots are {_percent(found.slots)}, the "
        f"workers {_percent(found.workers)} and the event loop is {_percent(found.gateway)} busy"
    )
    missed = {reason: fps for reason, fps in window.dropped_fps.items() if fps > 0.1 * max(window.ended_fps, 1.0)}
    if not missed:
        return sentence, "nothing: all that comes is served"
    reason = max(missed, key=lambda key: missed[key])
    share = _percent(missed[reason] / window.ended_fps)
    sentence += f"; but {share} of the frames are dropped as {reason}"
    return sentence, "look at what these clients send: it is not for want of compute"


def _cores(window: Window, found: Pressures, cpu: float, who: str) -> str:
    """Who uses the cores, where they are full."""
    if found.cores < CORES_FULL:
        return ""
    others = window.others / window.cores
    beside = f", other programs {_percent(others)}" if others > _WORTH_SAYING else ""
    return f"; the {window.cores:g} cores are full: {who} use {_percent(cpu / window.cores)}{beside}"


def _cores_advice(window: Window) -> str:
    """What to do for cores: others may have taken them."""
    taken = window.others / window.cores > _WORTH_SAYING
    return "cores of its own (other programs use them), " if taken else "more cores, "


def _waits(window: Window, stage: Stage) -> str:
    """How long frames wait in that stage and in their mailbox, if it can be felt."""
    seconds = window.stages.get(Stage.QUEUE, 0.0) + window.stages.get(stage, 0.0)
    return f" and frames wait {1000 * seconds:.0f} ms for that" if seconds >= _LEAST_WAIT_S else ""


def _many(count: int, noun: str) -> str:
    return f"the {noun} is" if count == 1 else f"the {count} {noun}s are"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
