"""The gateway's side of the slots: starts them, introduces them to the workers, routes, and replaces the dead.

Workers talk to slots directly; this module only brings them together. For each pair of a worker and a slot it makes a
socketpair and hands one end to each (and the worker's slab to the slot). Which slots may be used is a *route*: a bit
mask with an epoch, sent to the slots first and then to the workers. A slot is taken out of the routes before anything
takes its place: when its process has ended there is nothing to wait for; otherwise every worker has to acknowledge
that nothing of it is in flight there any more. So at most ``active`` runs go on at any time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from framelane.models.devices import Device
from framelane.models.registry import ModelSpec
from framelane.preprocess.children import Child, restart_delay, watch
from framelane.preprocess.memory import Memory, ModelCells
from framelane.preprocess.messages import Kind, Message, PeerGone, PeerStuck, pack
from framelane.preprocess.pool import Worker

from .states import State, follow

log = logging.getLogger("framelane.slots")

_MODULE = "framelane.server.slots.process"
_SHORT_LIFE_S = 10.0


class SlotsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots, and what they run."""

    active: int
    standby: int
    device: Device
    models: list[ModelSpec]
    cells: list[ModelCells]
    log_level: str = "INFO"


class Slot:
    """One slot process, this incarnation of it."""

    def __init__(self, index: int, generation: int, child: Child) -> None:
        self.index = index
        self.generation = generation
        self.child = child
        self.state = State.STARTING
        self.born = time.monotonic()
        self.report: dict[str, Any] = {}

    def become(self, state: State) -> None:
        """Change the state.

        Raises:
            IllegalTransition: see ``states.py``.
        """
        self.state = follow(self.state, state)


class Supervisor:
    """All slots of the replica, and the routes to them. Implements ``pool.Watcher``.

    Args:
        config: see ``SlotsConfig``.
        pages: the memory of the progress pages; slot *n* has page *n*.
    """

    def __init__(self, config: SlotsConfig, pages: Memory) -> None:
        self._config = config
        self._pages = pages
        self._workers: dict[int, Worker] = {}
        self._epoch = 0
        self._failures = [0] * self.count
        self._stopping = False
        self._ended = asyncio.Event()
        self._started: list[asyncio.Future[None]] = []
        self.slots: dict[int, Slot] = {}
        self.restarts = 0
        self.on_change: Callable[[], None] = lambda: None

    @property
    def count(self) -> int:
        """How many slots there are, of all kinds."""
        return self._config.active + self._config.standby

    @property
    def active(self) -> list[Slot]:
        """The slots that workers use now."""
        return [slot for slot in self.slots.values() if slot.state is State.ACTIVE]

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all slots and wait until each has proven itself.

        Raises:
            StartFailed: one could not start; the message says why (a bad model, a missing device …).
        """
        loop = asyncio.get_running_loop()
        self._started = [loop.create_future() for _ in range(self.count)]
        for index in range(self.count):
            self._spawn(index, 0)
        await asyncio.gather(*self._started)

    async def stop(self, limit_s: float) -> None:
        """Let the slots finish what they run, then end them; those that take longer are killed."""
        self._stopping = True
        for slot in self.slots.values():
            self._send(slot, pack(Kind.STOP))
        try:
            async with asyncio.timeout(limit_s):
                await self._all_ended()
        except TimeoutError:
            for slot in self.slots.values():
                slot.child.kill()
            await self._all_ended()

    async def _all_ended(self) -> None:
        while self.slots:
            self._ended.clear()
            await self._ended.wait()

    def _spawn(self, index: int, generation: int) -> None:
        config = self._config
        settings = {
            "slot": index,
            "device": config.device,
            "models": config.models,
            "cells": config.cells,
            "log_level": config.log_level,
        }
        slot = Slot(index, generation, Child(_MODULE, f"slot-{index}", settings, self._pages, index))
        self.slots[index] = slot
        watch(slot.child, lambda message: self._hear(slot, message), lambda status: self._died(slot, status))
        for worker in self._workers.values():
            self._introduce(worker, slot)

    def _hear(self, slot: Slot, message: Message) -> None:
        if message.kind == Kind.READY:
            slot.report = slot.child.report()
            slot.become(State.STANDBY)
            log.info("slot-%d (pid %d) is ready on %s", slot.index, slot.child.pid, slot.report["device"])
            self._fill()
            if not self._started[slot.index].done():
                self._started[slot.index].set_result(None)

    def _died(self, slot: Slot, status: int) -> None:
        suspect = slot.child.progress.read().request
        slot.become(State.FAILED)
        del self.slots[slot.index]
        if not self._stopping:
            self._fill()
        for worker in self._workers.values():
            self._send(worker, pack(Kind.GONE, cell=slot.index, generation=slot.generation, request=suspect))
        if self._stopping:
            self._ended.set()
        elif not self._started[slot.index].done():
            self._started[slot.index].set_exception(slot.child.failure())
        else:
            self._replace(slot, status)
        slot.child.close()

    def _replace(self, slot: Slot, status: int) -> None:
        lived = time.monotonic() - slot.born
        self._failures[slot.index] = 0 if lived > _SHORT_LIFE_S else self._failures[slot.index] + 1
        delay = restart_delay(self._failures[slot.index] - 1)
        self.restarts += 1
        log.warning(
            "slot-%d (pid %d) ended with status %d; a new one starts in %.2f s",
            slot.index,
            slot.child.pid,
            status,
            delay,
        )
        asyncio.get_running_loop().call_later(delay, self._respawn, slot.index, slot.generation + 1)

    def _respawn(self, index: int, generation: int) -> None:
        if not self._stopping:
            self._spawn(index, generation)

    # -- routes ------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Promote standbys until ``active`` slots are active, and tell everybody the new routes."""
        for slot in sorted(self.slots.values(), key=lambda slot: slot.index):
            if len(self.active) >= self._config.active:
                break
            if slot.state is State.STANDBY:
                slot.become(State.ACTIVE)
        self._epoch += 1
        routes = self._routes()
        for slot in self.slots.values():
            self._send(slot, routes)
        for worker in self._workers.values():
            self._send(worker, routes)
        self.on_change()

    def _routes(self) -> bytes:
        mask = sum(1 << slot.index for slot in self.active)
        return pack(Kind.ROUTES, epoch=self._epoch, request=mask)

    # -- workers (pool.Watcher) --------------------------------------------------------------------------------------

    def worker_started(self, worker: Worker) -> None:
        """Introduce a new worker to all slots."""
        self._workers[worker.index] = worker
        for slot in self.slots.values():
            self._introduce(worker, slot)
        self._send(worker, self._routes())

    def worker_ended(self, worker: Worker) -> None:
        """Forget a worker; the slots see the end of its sockets themselves."""
        del self._workers[worker.index]

    def worker_routed(self, worker: Worker, epoch: int) -> None:
        """A worker has drained what the routes of ``epoch`` no longer name."""

    def _introduce(self, worker: Worker, slot: Slot) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            to_slot = pack(Kind.PEER, cell=worker.index, generation=worker.generation)
            to_worker = pack(Kind.PEER, cell=slot.index, generation=slot.generation, length=slot.index)
            self._send(slot, to_slot, (ours.fileno(), worker.slab.fd))
            self._send(worker, to_worker, (theirs.fileno(),))

    def _send(self, process: Slot | Worker, message: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            process.child.channel.send(message, descriptors)
        except PeerGone:
            pass  # its end is about to be noticed
        except PeerStuck:
            log.error("%s does not read its messages; it is put down", process.child.name)
            process.child.kill()
