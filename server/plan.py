"""What to run on this machine: settings that were left open, decided, each with its reason. No I/O here."""

from __future__ import annotations

import math

import msgspec

from framelane.models.devices import Device, parse_device
from framelane.models.gpu import GpuFacts, explain
from framelane.preprocess.memory import FrameCells

from .config import ConfigError, Settings
from .ops.machine import Machine
from .protocol import MAX_RESULT_BYTES
from .slots.cards import ACTIVE_PER_CARD, cards_of, check_cards, default_active, on_fullest, per_card, uses_cards

_CREDITS = 4
_TOO_MANY_WHEELS = 2
_PROCESS_BYTES = 80 * 2**20


class Choice(msgspec.Struct, frozen=True):
    """One line of the plan."""

    what: str
    value: str
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How many of what. ``choices`` are for people."""

    device: Device
    cores: float
    workers: int
    spare_workers: int
    credits: int
    active_slots: int
    standby_slots: int
    audit_slots: int
    choices: tuple[Choice, ...]
    gpu: GpuFacts | None = None

    @property
    def can_audit(self) -> bool:
        """Whether long jobs can be run: on an audit slot, or on a standby that is lent."""
        return self.audit_slots + self.standby_slots > 0

    @property
    def slots(self) -> int:
        """Slots of all kinds."""
        return self.active_slots + self.standby_slots + self.audit_slots

    @property
    def card_slots(self) -> int:
        """Slots of this replica on its fullest card."""
        return on_fullest(self.device, self.slots)

    @property
    def processes(self) -> int:
        """Workers and slots of all kinds."""
        return self.slots + self.workers + self.spare_workers


def needs_gpu_facts(settings: Settings) -> bool:
    """Whether the plan depends on what cards there are.

    Raises:
        DeviceError: the device's name cannot be read.
    """
    return parse_device(settings.device).kind in ("auto", "cuda", "tensorrt")


def make_plan(settings: Settings, machine: Machine, gpu: GpuFacts | None = None) -> Plan:
    """Decide what the settings left open.

    Args:
        settings: what was given.
        machine: cores and memory.
        gpu: the cards and what is needed to use them; None where nobody has looked.

    Raises:
        DeviceError: the device's name cannot be read, or its memory cannot hold the slots.
        ConfigError: what was asked for does not fit this machine.
    """
    device = parse_device(settings.device)
    cores = max(1, math.floor(machine.cores))
    workers, why_workers = _given(settings.workers) or (
        cores,
        f"one per core: {machine.cores:g} {machine.cores_from}; used while a core is free for it",
    )
    slots, why_slots = _given(settings.active_slots) or _slots(device, cores, gpu)
    credits, why_credits = _given(settings.credits) or (_CREDITS, "one in the worker, and one in or before each stage")
    on_cards = uses_cards(device, gpu)
    if on_cards:
        check_cards(settings, device, slots, gpu)
    all_slots = slots + settings.standby_slots + settings.audit_slots
    can_audit = settings.audit_slots + settings.standby_slots > 0
    processes = workers + settings.spare_workers + all_slots + 1 + can_audit
    all_workers = workers + settings.spare_workers
    cells = (all_workers + can_audit) * credits
    needed = processes * _PROCESS_BYTES + FrameCells.size(cells, settings.max_frame_bytes, MAX_RESULT_BYTES)
    if needed > machine.memory:  # a container would not refuse the memory: it would kill a process
        raise ConfigError(
            f"{all_workers} workers with {credits} credits for frames of {settings.max_frame_bytes >> 10} KiB and "
            f"{all_slots} slots need about {needed >> 20} MiB, but {machine.memory_from} is "
            f"{machine.memory >> 20} MiB; lower workers, active_slots, credits or max_frame_bytes"
        )
    choices = (
        Choice("device", device.name, _device_note(device, gpu)),
        Choice("workers", str(workers), why_workers),
        Choice("active slots", str(slots), why_slots),
        Choice("spare workers", str(settings.spare_workers), "parked and ready to take a dead one's place"),
        Choice("standby slots", str(settings.standby_slots), "warm spares that take over at once"),
        Choice("audit slots", str(settings.audit_slots), _audit_note(settings)),
        Choice("credits", f"{credits} per worker", why_credits),
        Choice("memory", f"{machine.memory / 2**30:.1f} GiB", machine.memory_from),
        *([_card_choice(settings, device, slots, gpu)] if on_cards else []),
    )
    return Plan(
        device=device,
        cores=machine.cores,
        workers=workers,
        spare_workers=settings.spare_workers,
        credits=credits,
        active_slots=slots,
        standby_slots=settings.standby_slots,
        audit_slots=settings.audit_slots,
        choices=choices,
        gpu=gpu,
    )


def _given(value: int | None) -> tuple[int, str] | None:
    return None if value is None else (value, "as configured")


def _slots(device: Device, cores: int, gpu: GpuFacts | None) -> tuple[int, str]:
    if device.simulated:
        return 1, "one run at a time on one device; raise it where `framelane probe` shows that it pays"
    if uses_cards(device, gpu):
        why = f"{ACTIVE_PER_CARD} per card fill each other's gaps; `framelane probe` tells what more would bring"
        return default_active(device), why
    return cores, "one per core: each runs its models on one thread; woken while a core is free for it"


def _card_choice(settings: Settings, device: Device, slots: int, gpu: GpuFacts | None) -> Choice:
    names = {card.index: f"{card.name}, {card.memory / 2**30:.1f} GiB" for card in gpu.driver.cards} if gpu else {}
    shown = "; ".join(dict.fromkeys(names.get(index, f"card {index}") for index in cards_of(device)))
    return Choice("slots per card", str(per_card(settings, device, slots)), f"of all replicas that share it: {shown}")


def _audit_note(settings: Settings) -> str:
    if settings.audit_slots:
        return "reserved for long jobs (POST /v1/audit)"
    if settings.standby_slots:
        return "long jobs (POST /v1/audit) borrow a standby"
    return "long jobs are refused; --audit-slots 1 or --standby-slots 1 allows them"


def _device_note(device: Device, gpu: GpuFacts | None) -> str:
    if device.simulated:
        return "SIMULATED: runs wait instead of computing, and answer with a recorded result"
    if device.kind == "auto" and gpu is not None and not gpu.providers and len(gpu.wheels) < _TOO_MANY_WHEELS:
        return "the CPU: this build of ONNX Runtime runs on nothing else"
    if device.kind == "auto" and gpu is not None and not uses_cards(device, gpu):
        return f"the CPU: {explain(gpu, 'cuda', 0)}"
    if device.kind == "auto":
        return "CUDA where it truly works, else the CPU; the log says which"
    return "as configured; an error if it cannot be had"
