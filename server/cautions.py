"""Settings that are valid each, and cannot work well together: said at start and by `config explain`. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .config import Settings
from .plan import Plan
from .protocol import MAX_RESULT_BYTES
from .slots.cards import OWN_STANDBYS, uses_cards


def cautions(settings: Settings, plan: Plan) -> list[str]:
    """What can be told before anything has been measured, each as a sentence with its cure."""
    return [*_processes(settings, plan), *_sizes(settings), *_simulated(settings, plan)]


def measured_cautions(settings: Settings, run_s: float, rate: float) -> list[str]:
    """What shows once the replica has proven itself.

    Args:
        settings: as configured.
        run_s: seconds of a frame that is alone.
        rate: frames per second that go through; infinity: not known.
    """
    return [*_deadline(settings, run_s, "a frame alone takes"), *_promises(settings, rate, "were measured")]


def _processes(settings: Settings, plan: Plan) -> Iterator[str]:
    cores = max(1, math.ceil(plan.cores))
    on_cores = plan.device.kind in ("auto", "cpu")
    if on_cores and plan.active_slots > cores:
        where = "where the device turns out to be the CPU, " if plan.device.kind == "auto" else ""
        yield (
            f"active_slots = {plan.active_slots} on {plan.cores:g} cores: {where}they take turns, and each run is "
            f"slower; active_slots = {cores} is as fast"
        )
    if plan.workers > cores:
        yield (
            f"workers = {plan.workers} on {plan.cores:g} cores: they cannot work at once, and each takes memory; "
            f"workers = {cores} is as fast"
        )
    if on_cores and settings.gpu_permits and plan.device.kind == "cpu":
        yield "gpu_permits has no use on the CPU: leave it out"
    elif 0 < settings.gpu_permits < plan.active_slots:
        yield (
            f"gpu_permits = {settings.gpu_permits} with active_slots = {plan.active_slots}: the other slots only wait; "
            f"let some of them be standby_slots"
        )
    crowded = settings.gpu_density > OWN_STANDBYS and uses_cards(plan.device, plan.gpu)
    if crowded and settings.standby_slots and settings.gpu_standbys is None:
        yield (
            f"gpu_density = {settings.gpu_density} with standby_slots = {settings.standby_slots}: if each replica has "
            f"them, a card holds {settings.gpu_density * settings.standby_slots} standbys; one replica's are enough: "
            f"give the others standby_slots = 0, and all of them gpu_standbys = {settings.standby_slots}"
        )
    held, least = plan.workers * plan.credits, plan.active_slots
    if held < least:
        yield (
            f"credits = {plan.credits} x workers = {plan.workers} are {held} frames in work: {least} active slots "
            f"cannot all have one; credits = {math.ceil(least / plan.workers)} would do"
        )

    if settings.in_work is not None and settings.in_work > held:
        yield (
            f"in_work = {settings.in_work}, but credits = {plan.credits} x workers = {plan.workers} are cells for "
            f"{held} frames: no more can be in work; raise credits, or lower in_work"
        )


def _sizes(settings: Settings) -> Iterator[str]:
    if settings.mailbox_bytes < settings.max_frame_bytes:
        yield (
            f"mailbox_bytes = {settings.mailbox_bytes} is less than max_frame_bytes = {settings.max_frame_bytes}: the "
            "largest frames are always refused as rate_limited; raise mailbox_bytes"
        )
    if settings.outbox_bytes < MAX_RESULT_BYTES:
        yield (
            f"outbox_bytes = {settings.outbox_bytes} is less than a result may have ({MAX_RESULT_BYTES}): the largest "
            "results are shed whenever a client is a little slow; raise outbox_bytes"
        )


def _simulated(settings: Settings, plan: Plan) -> Iterator[str]:
    simulation = plan.device.simulation
    if simulation is None or simulation.run_ms <= 0:
        return
    yield from _deadline(settings, simulation.run_ms / 1000, "a run takes")
    seconds = (simulation.run_ms + simulation.item_ms * simulation.batch) / 1000
    parallel = 1 if simulation.serial else plan.active_slots
    yield from _promises(settings, parallel * simulation.batch / seconds, f"are all that {plan.device.name} can run")


def _deadline(settings: Settings, seconds: float, what: str) -> Iterator[str]:
    if seconds * 1000 >= settings.deadline_ms:
        yield (
            f"deadline_ms = {settings.deadline_ms}, but {what} {1000 * seconds:.0f} ms: no result can be in time; "
            "raise deadline_ms, or use a faster device"
        )


def _promises(settings: Settings, rate: float, what: str) -> Iterator[str]:
    clients = settings.max_clients
    if math.isinf(rate) or rate <= 0:
        return
    if clients is not None and clients * settings.client_fps > rate:
        yield (
            f"max_clients = {clients} x client_fps = {settings.client_fps:g} are {clients * settings.client_fps:.0f} "
            f"frames per second, but {rate:.0f} {what}: if all send that much, frames are dropped; leave max_clients "
            f"out, or use {max(1, int(rate / settings.client_fps))}"
        )
    elif settings.client_fps > rate:
        yield (
            f"client_fps = {settings.client_fps:g}, but {rate:.0f} frames per second {what}: not one client can have "
            "what it is promised; lower client_fps"
        )
