"""How much to run for so many users, from stage times that were measured. Arithmetic; no I/O.

    frames per second   users × frames per second of each
    slots               frames per second × device time per frame × tax ÷ (1 − headroom)
    cores               frames per second × processor time per frame (gateway + worker) ÷ (1 − headroom)
    replicas            what the gateways (one core each) and the slots per replica allow
    machines            what GPUs, cores and GPU memory each ask for; the largest decides, and is named

The tax is what slots that share a device cost each other (``framelane probe``): with n active slots each run takes
tax(n) times as long, so a device gives n ÷ tax(n) times what one slot gives.

A headroom of 0.3 leaves 30 % unused at the planned load: bursts, a lost replica, and a queue that stays short.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from framelane.loadtests.cost import Price, cost_per_month, cost_per_user_hour
from framelane.models.devices import DeviceError
from framelane.models.providers import CONTEXT_BYTES, MPS_CLIENTS, arena_budget

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]

MAX_GATEWAY = 0.7
"""Share of its one core that a gateway may be busy before its delays show."""


class PlanError(ValueError):
    """A plan that cannot be made; the message says what would have to change."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What users want."""

    users: Annotated[int, Meta(ge=1)]
    fps: Positive = 0.75

    @property
    def per_second(self) -> float:
        """Frames per second, all users together."""
        return self.users * self.fps


class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """What one frame takes, in milliseconds.

    Attributes:
        gateway_ms: processor time of the gateway.
        worker_ms: processor time of a worker: decoding, pre- and postprocessing.
        slot_ms: time of the device for all runs of the frame, alone on it.
        slot_cpu_ms: processor time of a slot's process; the same as ``slot_ms`` where the device is the CPU.
        wait_ms: what is left of a lone frame's round trip: network, wake-ups.
        tax: factor on ``slot_ms`` with 1, 2, 3 … slots at once.
        source: where the figures come from.
    """

    gateway_ms: NotNegative = 0.2
    worker_ms: NotNegative
    slot_ms: Positive
    slot_cpu_ms: NotNegative = 0.1
    wait_ms: NotNegative = 0.5
    tax: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (1.0,)
    source: str = "given by you"

    @property
    def cpu_ms(self) -> float:
        """Processor time of a frame, all processes together."""
        return self.gateway_ms + self.worker_ms + self.slot_cpu_ms

    def slowed(self, factor: float) -> Stages:
        """The same on processors that are so many times slower."""
        return msgspec.structs.replace(
            self,
            gateway_ms=self.gateway_ms * factor,
            worker_ms=self.worker_ms * factor,
            slot_ms=self.slot_ms + self.slot_cpu_ms * (factor - 1),
            slot_cpu_ms=self.slot_cpu_ms * factor,
        )

    def tax_at(self, slots: int) -> float:
        """The tax with so many slots; beyond what is known its last step goes on."""
        if slots <= len(self.tax):
            return self.tax[slots - 1]
        step = self.tax[-1] - self.tax[-2] if len(self.tax) > 1 else 0.0
        return self.tax[-1] + step * (slots - len(self.tax))


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How replicas are built, and how full they may be."""

    slots_per_gpu: Annotated[int, Meta(ge=1)] = 2
    standby_per_gpu: Annotated[int, Meta(ge=0)] = 1
    slots_per_replica: Annotated[int, Meta(ge=1)] = 2
    model_mib: NotNegative = 300.0
    headroom: Annotated[float, Meta(ge=0, lt=1)] = 0.3

    @property
    def processes(self) -> int:
        """Slots of all kinds on one card; above a density of two, standbys are the card's and no replica's."""
        return self.slots_per_gpu + self.standby_per_gpu


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What one resource asks for."""

    resource: str
    amount: float
    machines: int
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. ``limit`` is the resource that decides the number of machines."""

    machines: int
    gpus: int
    replicas: int
    active_slots: int
    workers: int
    limit: str
    needs: tuple[Need, ...]
    gpu_memory_gib: float
    utilisation: float
    usd_per_hour: float
    usd_per_user_hour: float
    usd_per_month: float
    warnings: tuple[str, ...]


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """An end-to-end latency under an inference tax."""

    before_s: float
    after_s: float
    ratio: float
    limit_s: float
    holds: bool


def make_plan(demand: Demand, stages: Stages, layout: Layout, price: Price) -> Plan:
    """Replicas, GPUs and cost for a demand.

    Raises:
        PlanError: one card cannot hold the slots, or the machine has no card or no cores to plan with.
    """
    cards = max(price.gpus, 1)
    _check_card(layout, price.gpu_memory_gib)
    free = 1 - layout.headroom
    per_card = per_gpu(stages, layout.slots_per_gpu) * free
    gpus = math.ceil(demand.per_second / per_card - 1e-9)
    needs = [_gpu_need(gpus, cards, per_card, stages, layout)]
    cores = demand.per_second * stages.cpu_ms / 1000 / free
    if price.cores:
        needs.append(_core_need(cores, price.cores, stages))
    deciding = max(needs, key=lambda need: need.machines)
    machines = deciding.machines
    slots = machines * cards * layout.slots_per_gpu
    by_gateway = math.ceil(demand.per_second * stages.gateway_ms / 1000 / (MAX_GATEWAY * free) - 1e-9)
    replicas = max(machines, by_gateway, math.ceil(slots / layout.slots_per_replica))
    return Plan(
        machines=machines,
        gpus=machines * cards,
        replicas=replicas,
        active_slots=slots,
        workers=max(replicas, math.ceil(demand.per_second * stages.worker_ms / 1000 / free)),
        limit=deciding.resource,
        needs=tuple(needs),
        gpu_memory_gib=layout.processes * (CONTEXT_BYTES / 2**20 + layout.model_mib) / 1024,
        utilisation=demand.per_second / (per_gpu(stages, layout.slots_per_gpu) * machines * cards),
        usd_per_hour=price.usd_per_hour * machines,
        usd_per_user_hour=cost_per_user_hour(price.usd_per_hour, machines, demand.users),
        usd_per_month=cost_per_month(price.usd_per_hour, machines),
        warnings=_warnings(stages, layout, price),
    )


def per_gpu(stages: Stages, slots: int) -> float:
    """Frames per second of one card with so many active slots."""
    return slots / (stages.slot_ms / 1000 * stages.tax_at(slots))


def _check_card(layout: Layout, memory_gib: float) -> None:
    """Refuse what ``serve`` would refuse: more processes than MPS serves on a card, or than its memory holds."""
    slots = f"{layout.slots_per_gpu} active and {layout.standby_per_gpu} standby slots"
    if layout.processes > MPS_CLIENTS:
        raise PlanError(f"{slots} on a card: MPS serves at most {MPS_CLIENTS} processes of one; plan fewer")
    if not memory_gib:
        return
    try:
        budget = arena_budget(int(memory_gib * 2**30), layout.processes, 1) / 2**20
    except DeviceError as error:
        raise PlanError(error.message) from None
    if budget < layout.model_mib:
        raise PlanError(
            f"{slots} on a card of {memory_gib:g} GiB leave {budget:.0f} MiB for each one's model, which takes "
            f"{layout.model_mib:g}: fewer slots, or a smaller model"
        )


def _gpu_need(gpus: int, cards: int, per_card: float, stages: Stages, layout: Layout) -> Need:
    return Need(
        resource="GPU",
        amount=gpus,
        machines=math.ceil(gpus / cards),
        why=(
            f"{per_card:.0f} frames/s per card: {layout.slots_per_gpu} slots of {stages.slot_ms:g} ms under a tax of "
            f"{stages.tax_at(layout.slots_per_gpu):g} ×, {layout.headroom:.0%} left free"
        ),
    )


def _core_need(cores: float, per_machine: int, stages: Stages) -> Need:
    return Need(
        resource="cores",
        amount=round(cores, 2),
        machines=max(1, math.ceil(cores / per_machine - 1e-9)),
        why=f"{stages.cpu_ms:.2f} ms of processor time per frame; {per_machine} cores per machine",
    )


def _warnings(stages: Stages, layout: Layout, price: Price) -> tuple[str, ...]:
    said = []
    if layout.slots_per_gpu > len(stages.tax):
        said.append(
            f"the tax of {layout.slots_per_gpu} slots was not measured ({len(stages.tax)} are known): "
            "run `framelane probe`"
        )
    if not price.cores:
        said.append("the machine's cores are unknown, so only its GPUs were planned for")
    if not price.gpu_memory_gib:
        said.append("the card's memory is unknown, so it was not checked")
    return tuple(said)


def project(before_s: float, inference_share: float, tax: float, limit_s: float = 45.0) -> Projection:
    """End-to-end latency when inference takes ``tax`` times as long, and all the rest goes on beside it as before.

    Args:
        before_s: end-to-end p95 now, in seconds.
        inference_share: part of it that is inference, 0 to 1.
        tax: factor on the inference.
        limit_s: what it must not exceed.

    Raises:
        PlanError: a share outside of 0 to 1, or times and taxes that are none.
    """
    if not 0 <= inference_share <= 1 or before_s <= 0 or tax <= 0:
        raise PlanError(f"{before_s:g} s, a share of {inference_share:g} and a tax of {tax:g} ×: no such latency")
    inference = before_s * inference_share
    after = inference * tax + before_s - inference
    return Projection(before_s=before_s, after_s=after, ratio=after / before_s, limit_s=limit_s, holds=after <= limit_s)


def error_of(simulated: float, measured: float) -> float:
    """How far a simulated figure lies from the measured one, as a share of it; not-a-number of nothing measured."""
    return (simulated - measured) / measured if measured else math.nan
