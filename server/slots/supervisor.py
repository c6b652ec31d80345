"""The gateway's side of the slots: starts them, introduces them to the workers, routes, and replaces the dead.

Workers talk to slots directly; this module only brings them together. For each pair of a worker and a slot it makes a
socketpair and hands one end to each (and the worker's slab to the slot). Which slots may be used is a *route*: a bit
mask with an epoch, sent to the slots first and then to the workers. A slot is taken out of the routes before anything
takes its place: when its process has ended there is nothing to wait for; otherwise every worker has to acknowledge
that nothing of it is in flight there any more. So at most ``active`` runs go on at any time.

Health is progress, not speed (``preprocess/health.py``): a slot that does not turn its loop is killed, and a standby
takes its place when its end is certain. One that cannot be killed is quarantined: workers send copies elsewhere, and
leave the cells that it might still write into alone until it has ended.

Long jobs (``/v1/audit``) have a worker of their own, whose routes lead to slots in the state "audit" only. Without such
a slot they borrow a standby. Clients go first: when an active slot is missing and there is no standby, an audit slot
takes its place at once (what it runs for the job at that moment, it finishes before), and the job waits for the next.
"""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from framelane.models.devices import Device
from framelane.models.errors import FramelaneError
from framelane.models.providers import Tuning
from framelane.models.registry import ModelSpec
from framelane.preprocess.children import Child
from framelane.preprocess.health import Heartbeat, Pulse, waited_for_cpu
from framelane.preprocess.keeper import Keeper
from framelane.preprocess.memory import Memory, ModelCells
from framelane.preprocess.messages import Kind, Message, pack
from framelane.preprocess.pool import Worker

from .states import State, follow

log = logging.getLogger("framelane.slots")

_MODULE = "framelane.server.slots.process"
_KILL_GRACE_S = 1.0
_REPLACE_AFTER_S = 1.0
_START_LIMIT_S = 300.0
_SLOW_RUNS = 8
"""A model whose run takes long by nature may take this many times the longest run of its warm-up."""


class SlotRefused(FramelaneError):
    """An operator's verb that cannot be carried out now; the message says why."""

    code = "refused"


class SlotsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots, and what they run. ``permits`` caps concurrent runs per device, over all replicas; 0: no cap."""

    active: int
    standby: int
    device: Device
    models: list[ModelSpec]
    cells: list[ModelCells]
    tuning: Tuning = Tuning()
    trace: str = ""
    audit: int = 0
    hang_s: float = 1.5
    permits: int = 0
    log_level: str = "INFO"


class Slot:
    """One slot process, this incarnation of it."""

    def __init__(self, index: int, generation: int, child: Child, hang_s: float) -> None:
        self.index = index
        self.generation = generation
        self.child = child
        self.state = State.STARTING
        self.held = False
        self.restarting = False
        self.quarantined = False
        self.born = time.monotonic()
        self.killed_at: float | None = None
        self.heartbeat = self.watched(hang_s)
        self.report: dict[str, Any] = {}
        self.shares_cores = False

    def watched(self, hang_s: float) -> Heartbeat:
        """A fresh heartbeat with this limit."""
        return Heartbeat(hang_s, time.monotonic(), functools.partial(waited_for_cpu, self.child.pid))

    def become(self, state: State) -> None:
        """Change the state.

        Raises:
            IllegalTransition: see ``states.py``.
        """
        self.state = follow(self.state, state)

    def kill(self) -> None:
        """End the process; it counts as failed from now on."""
        if self.state is not State.FAILED:
            self.become(State.FAILED)
        self.killed_at = time.monotonic()
        self.child.kill()


class Supervisor:
    """All slots of the replica, and the routes to them. Implements ``pool.Watcher``.

    Args:
        config: see ``SlotsConfig``.
        pages: the memory of the progress pages; slot *n* has page *n*.

    Attributes:
        keeper: keeps a process in each place; ``slots`` are those that live, by number.
        promotions, hangs: how often that happened.
        on_audit: called after every change of the routes; ``of(State.AUDIT)`` says what long jobs have now.
    """

    def __init__(self, config: SlotsConfig, pages: Memory) -> None:
        self._config = config
        self._pages = pages
        self._workers: dict[int, Worker] = {}
        self._epoch = 0
        self._unrouted: set[int] = set()
        self._preferred: int | None = None
        self._audit_wanted = False
        self.keeper = Keeper(
            "slot",
            spawn=self._spawn,
            introduce=self._introduce_to_all,
            hear=self._hear,
            bury=self._bury,
            rest=self._rest,
        )
        self.slots = self.keeper.living
        self.promotions = 0
        self.hangs = 0
        self.on_audit: Callable[[], None] = lambda: None

    @property
    def count(self) -> int:
        """How many slots there are, of all kinds."""
        return self._config.active + self._config.standby + self._config.audit

    @property
    def active(self) -> list[Slot]:
        """The slots that workers use now."""
        return self.of(State.ACTIVE)

    def of(self, state: State) -> list[Slot]:
        """The slots in a state, by number."""
        return sorted((slot for slot in self.slots.values() if slot.state is state), key=lambda slot: slot.index)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all slots and wait until each has proven itself.

        Raises:
            StartFailed: one could not start; the message says why (a bad model, a missing device …).
        """
        await self.keeper.start(self.count)

    async def stop(self, limit_s: float) -> None:
        """Let the slots finish what they run, then end them; those that take longer are killed."""
        await self.keeper.stop(limit_s)

    def check(self, now: float) -> None:
        """Ping silent slots, kill those that hang, and quarantine those that cannot be killed. Call it often."""
        for slot in list(self.slots.values()):
            if slot.killed_at is not None:
                if now - slot.killed_at > _KILL_GRACE_S and not slot.quarantined:
                    self._quarantine(slot)
            elif slot.state is State.STARTING:
                if now - slot.born > _START_LIMIT_S:
                    self._put_down(slot, now)
            else:
                pulse = slot.heartbeat.pulse(slot.child.progress.read().loops, now)
                if pulse is Pulse.HANGS:
                    self._put_down(slot, now)
                elif pulse is Pulse.SILENT:
                    slot.child.tell(pack(Kind.PING))

    def _put_down(self, slot: Slot, now: float) -> None:
        self.hangs += 1
        silent = slot.heartbeat.silent(slot.child.progress.read().loops, now)
        log.error("slot-%d (pid %d) hangs: no progress for %.1f s; it is put down", slot.index, slot.child.pid, silent)
        slot.kill()

    def _quarantine(self, slot: Slot) -> None:
        slot.quarantined = True
        log.error("slot-%d (pid %d) cannot be killed; its cells are quarantined", slot.index, slot.child.pid)
        self._fill()
        self._tell_workers(slot, Kind.QUARANTINE)

    def _spawn(self, index: int, generation: int) -> Slot:
        config = self._config
        settings = {
            "slot": index,
            "device": config.device.of_slot(index),
            "tuning": config.tuning,
            "trace": config.trace,
            "models": config.models,
            "cells": config.cells,
            "permits": config.permits,
            "quietly": generation > 0,
            "log_level": config.log_level,
        }
        return Slot(index, generation, Child(_MODULE, f"slot-{index}", settings, self._pages, index), config.hang_s)

    def _introduce_to_all(self, slot: Slot) -> None:
        for worker in self._workers.values():
            self._introduce(worker, slot)

    def _hear(self, slot: Slot, message: Message) -> None:
        if message.kind == Kind.READY and slot.state is State.STARTING:
            slot.report = slot.child.report()
            slot.shares_cores = slot.report["device"] == "cpu"
            slot.heartbeat = slot.watched(max(self._config.hang_s, _SLOW_RUNS * _slowest_run_s(slot)))
            slot.become(State.STANDBY)
            log.info("slot-%d (pid %d) is ready on %s", slot.index, slot.child.pid, slot.report["device"])
            self._fill()
            self.keeper.proven(slot)

    def _bury(self, slot: Slot) -> None:
        """A slot has ended: another one takes its place, and workers send again what it had."""
        if slot.state is not State.FAILED:
            slot.become(State.FAILED)
        if not self.keeper.stopping:
            self._fill()
        self._tell_workers(slot, Kind.GONE, slot.child.progress.read().request)

    def _rest(self) -> float:
        """Whoever took a dead slot's place has the machine for a little while."""
        return _REPLACE_AFTER_S if self.active else 0.0

    # -- routes ------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Promote until ``active`` slots are active, reserve slots for long jobs, and tell everybody the routes."""
        for slot in sorted(self.of(State.STANDBY), key=lambda slot: slot.index != self._preferred):
            if self._missing and not slot.held:
                self._activate(slot)
        for slot in self.of(State.AUDIT):
            if self._missing:
                slot.become(State.STANDBY)
                self._activate(slot)
        if not self.of(State.DRAINING):
            self._preferred = None
        self._reserve(max(self._config.audit, self._audit_wanted))
        self._route()

    @property
    def _missing(self) -> int:
        return max(0, self._config.active - len(self.active) - len(self.of(State.DRAINING)))

    def _activate(self, slot: Slot) -> None:
        slot.become(State.ACTIVE)
        self.promotions += self.keeper.complete

    def _reserve(self, wanted: int) -> None:
        """Let as many slots serve long jobs."""
        for slot in self.of(State.AUDIT)[wanted:]:
            slot.become(State.STANDBY)
        for slot in self.of(State.STANDBY):
            if len(self.of(State.AUDIT)) < wanted and not slot.held:
                slot.become(State.AUDIT)

    def _route(self) -> None:
        self._epoch += 1
        self._unrouted = set(self._workers)
        routes = self._routes(State.ACTIVE, State.AUDIT)
        for slot in self.slots.values():
            slot.child.tell(routes)
        for worker in self._workers.values():
            worker.child.tell(self._routes_of(worker))
        self.on_audit()

    def _routes_of(self, worker: Worker) -> bytes:
        return self._routes(State.AUDIT if worker.audit else State.ACTIVE)

    def _routes(self, *states: State) -> bytes:
        routed = [slot for slot in self.slots.values() if slot.state in states]
        share_cores = all(slot.shares_cores for slot in routed)
        mask = sum(1 << slot.index for slot in routed)
        return pack(Kind.ROUTES, epoch=self._epoch, request=mask, status=share_cores)

    def _drained(self) -> None:
        """Nothing is in flight any more on slots that are not routed to: draining ones are free."""
        draining = self.of(State.DRAINING)
        for slot in draining:
            slot.become(State.STANDBY)
            if slot.restarting:
                slot.kill()
        if draining:
            self._fill()

    # -- long jobs ---------------------------------------------------------------------------------------------------

    @property
    def can_audit(self) -> bool:
        """Whether there is, or will be, a slot that can serve long jobs."""
        return self._config.audit + self._config.standby > 0

    def want_audit(self, wanted: bool) -> None:
        """Long jobs begin, or the last one has ended: borrow a standby, unless a slot is reserved, or give it back."""
        self._audit_wanted = wanted
        if not self.keeper.stopping:
            self._fill()

    # -- operators ---------------------------------------------------------------------------------------------------

    def promote(self, index: int) -> None:
        """Make a standby active; where there are as many as there may be, another one steps back for it.

        Raises:
            SlotRefused: it is no standby.
        """
        slot = self._slot(index)
        if slot.state is not State.STANDBY:
            raise SlotRefused(f"slot-{index} is {slot.state.value}: only a standby can be promoted")
        slot.held = False
        self._preferred = index
        if len(self.active) >= self._config.active:
            self.active[0].become(State.DRAINING)
            self._route()
            self._settle()
        else:
            self._fill()

    def drain(self, index: int) -> None:
        """Take a slot out of service: it finishes what it has, and is not promoted until an operator does so.

        Raises:
            SlotRefused: it is not active, or nothing would be left to serve.
        """
        slot = self._slot(index)
        if slot.state is not State.ACTIVE:
            raise SlotRefused(f"slot-{index} is {slot.state.value}: only an active slot can be drained")
        self._refuse_to_be_without(slot, "drained")
        slot.held = True
        slot.become(State.DRAINING)
        self._route()
        self._settle()

    def restart(self, index: int) -> None:
        """Replace a slot's process; an active one finishes what it has first.

        Raises:
            SlotRefused: nothing would be left to serve meanwhile.
        """
        if index in self.keeper.given_up:
            self.keeper.retry(index)
            return
        slot = self._slot(index)
        if slot.state is State.DRAINING or slot.restarting:
            raise SlotRefused(f"slot-{index} is {slot.state.value} already: wait until it has finished")
        if slot.state is State.ACTIVE:
            self._refuse_to_be_without(slot, "restarted")
        slot.restarting = True
        self.keeper.forgive(index)
        if slot.state is State.ACTIVE:
            slot.become(State.DRAINING)
            self._route()
            self._settle()
        else:
            slot.kill()

    def _slot(self, index: int) -> Slot:
        if index not in self.slots:
            raise SlotRefused(f"there is no slot-{index} now; there are {', '.join(f'slot-{i}' for i in self.slots)}")
        return self.slots[index]

    def _refuse_to_be_without(self, slot: Slot, done: str) -> None:
        others = [other for other in self.active if other is not slot]
        spares = [other for other in self.of(State.STANDBY) if not other.held]
        if not others and not spares and not self.of(State.AUDIT):
            raise SlotRefused(f"slot-{slot.index} is the only one that serves: {done}, it would leave no active slot")

    # -- workers (pool.Watcher) --------------------------------------------------------------------------------------

    def worker_started(self, worker: Worker) -> None:
        """Introduce a new worker to all slots."""
        self._workers[worker.index] = worker
        for slot in self.slots.values():
            self._introduce(worker, slot)
        worker.child.tell(self._routes_of(worker))

    def worker_ended(self, worker: Worker) -> None:
        """Forget a worker; the slots see the end of its sockets themselves."""
        del self._workers[worker.index]
        self._unrouted.discard(worker.index)
        self._settle()

    def worker_routed(self, worker: Worker, epoch: int) -> None:
        """A worker has drained what the routes of ``epoch`` no longer name."""
        if epoch == self._epoch:
            self._unrouted.discard(worker.index)
            self._settle()

    def busy_slots(self) -> int:
        """How many slots keep one of the workers' cores busy at this moment."""
        busy = 0
        for slot in self.slots.values():
            if slot.state is State.ACTIVE and slot.shares_cores and slot.child.progress.load():
                busy += 1
        return busy

    def _settle(self) -> None:
        if not self._unrouted and not self.keeper.stopping:
            self._drained()

    def _introduce(self, worker: Worker, slot: Slot) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            to_slot = pack(Kind.PEER, cell=worker.index, generation=worker.generation, status=worker.audit)
            to_worker = pack(Kind.PEER, cell=slot.index, generation=slot.generation, length=slot.index)
            slot.child.tell(to_slot, (ours.fileno(), worker.slab.fd))
            worker.child.tell(to_worker, (theirs.fileno(),))

    def _tell_workers(self, slot: Slot, kind: Kind, suspect: int = 0) -> None:
        for worker in self._workers.values():
            worker.child.tell(pack(kind, cell=slot.index, generation=slot.generation, request=suspect))


def _slowest_run_s(slot: Slot) -> float:
    """The longest run that was measured at warm-up, in seconds."""
    runs = [ms for model in slot.report.get("models", {}).values() for ms in model["run_ms"].values()]
    return max(runs, default=0.0) / 1000
