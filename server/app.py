"""The composition root: constructs every part of one replica, runs it, and takes it down again.

    settings ─▶ plan ─▶ pages, registry ─▶ supervisor (slots) + pool (workers) ─▶ exchange (lanes) ─▶ doors ─▶ uvicorn

Only this module and the two children's mains construct things. The doors open at once, so that probes get an answer;
``/readyz`` says what is missing until a frame has gone all the way through a worker and an active slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.resources
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from framelane.models.registry import Registry
from framelane.preprocess.children import StartFailed
from framelane.preprocess.memory import Memory, ModelCells
from framelane.preprocess.pool import Pool, describe_pipeline
from framelane.preprocess.progress import PAGE_BYTES
from framelane.preprocess.trace import merge, open_trace, parts_of

from .cautions import measured_cautions
from .config import ConfigError, Settings
from .doors.admin import AdminDoor
from .doors.audit import AuditDoor
from .doors.entrance import Entrance, tls_options, warn_of_open_door
from .doors.ops import OpsDoor
from .doors.partial import PartialMessages
from .doors.routes import Doors
from .fleet.together import Together
from .fleet.verbs import VerbsDoor
from .lanes.exchange import Exchange
from .ops.gil import Gil
from .ops.gpu import Cards
from .ops.lag import LoopLag
from .ops.pressure import Facts
from .ops.recorder import RecordedExchange, Recorder
from .ops.tracing import Tracer, open_provider
from .ops.watch import Watch, Watched
from .plan import Plan
from .proof import Proof
from .protocol import max_message_bytes
from .signals import on_stop
from .slots.auditor import Auditor
from .slots.cards import uses_cards
from .slots.supervisor import SlotRefused, Supervisor
from .sockets import listen, raise_descriptor_limit
from .wiring import auditor_config, lane_limits, pool_config, slots_config, uvicorn_config

log = logging.getLogger("framelane")

_TICK_S = 0.1
_PAGES_FOR_AUDIT = 2  # its worker's and its clip reader's
_STOP_S = 0.5
_CLOSE_S = 0.5
_DRAIN_FIRST_MS = 500
_DRAIN_SPREAD_MS = 5000


class Replica:
    """One gateway with its workers and slots.

    Args:
        settings: checked settings.
        plan: how many of what.
    """

    def __init__(self, settings: Settings, plan: Plan) -> None:
        self._settings = settings
        self._plan = plan
        self._proven = False
        self._fatal: StartFailed | None = None
        self._draining = asyncio.Event()
        self._started = time.monotonic()
        self._lag = LoopLag()
        self._pages = Memory.create("pages", PAGE_BYTES * (plan.processes + _PAGES_FOR_AUDIT))
        self._pool: Pool | None = None
        self._slots: Supervisor | None = None
        self._exchange: Exchange | None = None
        self._auditor: Auditor | None = None
        self._watch: Watch | None = None
        self._entrance = Entrance(settings)
        self._recorder = Recorder(Path(settings.record)) if settings.record else None
        self._tracer = self._open_tracer()
        self._gil = Gil()
        self._together: Together | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then drain.

        Raises:
            FramelaneError: the replica could not start; nothing of it is left.
        """
        on_stop(self._draining.set)
        warn_of_open_door(self._settings)
        raise_descriptor_limit()
        tls = tls_options(self._settings)
        pool, slots, exchange = await self._build()
        long_jobs = auditor_config(self._settings, self._plan, exchange.limits.stateful)
        auditor = self._auditor = Auditor(pool, slots, long_jobs, self._pages)
        watch = self._watch = self._watch_over(exchange)
        together = self._together = self._join(exchange)
        sockets = listen(self._settings)
        if self._recorder is not None:
            self._recorder.start()
        self._gil.start()
        server = _Server(uvicorn_config(self._settings, self._doors(exchange, auditor, watch, together), tls))
        serving = asyncio.create_task(server.serve(sockets=sockets))
        auditing = asyncio.create_task(auditor.run())
        ticking = asyncio.create_task(self._tick(pool, slots, exchange, auditor, watch, server))
        together.start()
        pool.keeper.on_fatal = slots.keeper.on_fatal = self._give_up
        try:
            await self._start(pool, slots, exchange, sockets[-1])
            await asyncio.wait([serving, asyncio.create_task(self._draining.wait())], return_when="FIRST_COMPLETED")
            if self._fatal is None and not serving.done():
                await together.my_turn(self._settings.drain_wait)
            for listener in server.servers[1:]:  # the shared port: the kernel shall give new clients to the others
                listener.close()
            await self._drain(exchange, auditor, together)
            if self._fatal is not None:
                raise self._fatal
        finally:
            ticking.cancel()
            await auditor.stop()
            auditing.cancel()
            await self._take_down(server, serving, pool, slots)
            await together.left()
            auditor.close()
            for sock in sockets:
                sock.close()
            self._gil.stop()
            if self._tracer is not None:
                self._tracer.stop()
            if self._recorder is not None:
                self._recorder.stop()
            self._write_trace(pool)

    def _open_tracer(self) -> Tracer | None:
        settings = self._settings
        if not settings.otel_endpoint:
            return None
        provider = open_provider(settings.otel_endpoint, importlib.metadata.version("framelane"))
        return Tracer(settings.otel_ratio, provider)

    # -- building ----------------------------------------------------------------------------------------------------

    def _trace_parts(self) -> str:
        """The folder for the parts of a timeline, where one is wanted."""
        try:
            return parts_of(self._settings.trace)
        except OSError as error:
            raise ConfigError(f"trace {self._settings.trace}: {error.strerror}") from None

    def _write_trace(self, pool: Pool) -> None:
        """All processes have ended: make one timeline of what they wrote."""
        if pool.trace is None:
            return
        pool.trace.flush()
        spans = merge(pool.trace.folder, self._settings.trace)
        shutil.rmtree(pool.trace.folder)
        log.info("trace: %d spans in %s; open it at ui.perfetto.dev", spans, self._settings.trace)

    async def _build(self) -> tuple[Pool, Supervisor, Exchange]:
        settings, plan = self._settings, self._plan
        trace = self._trace_parts()
        described = await describe_pipeline(settings.pipeline, settings.options, os.getcwd(), self._pages)
        registry = Registry([Path(folder) for folder in settings.models])
        models = [registry.get(model["name"]) for model in described["models"]]
        cells = [
            ModelCells(model["parallel"], spec.inputs, spec.outputs)
            for model, spec in zip(described["models"], models, strict=True)
        ]
        self._slots = Supervisor(
            slots_config(settings, plan, models, cells, trace),
            self._pages,
        )
        self._pool = Pool(pool_config(settings, plan, cells, trace), self._pages, self._slots)
        self._pool.trace = open_trace(trace, "gateway")
        limits = lane_limits(settings, plan, described["stateful"])
        parts = (self._pool, limits, time.monotonic, 0.0, self._entrance.passes)
        self._exchange = Exchange(*parts) if self._recorder is None else RecordedExchange(self._recorder, *parts)
        return self._pool, self._slots, self._exchange

    def _watch_over(self, exchange: Exchange) -> Watch:
        watch = Watch(exchange, self, self._lag, self._plan.cores, self._gil)
        if uses_cards(self._plan.device, self._plan.gpu):
            watch.cards = Cards([card.bus for card in self._plan.gpu.driver.cards] if self._plan.gpu else ())
        return watch

    def _doors(self, exchange: Exchange, auditor: Auditor, watch: Watch, together: Together) -> Doors:
        audit = AuditDoor(auditor, self, exchange.limits, exchange.passes)
        admin = AdminDoor(self, self._settings.admin_token)
        verbs = VerbsDoor(together, self._settings.admin_token)
        routes = [*audit.routes(), *admin.routes(), *verbs.routes(), *OpsDoor(watch).routes()]
        return Doors(exchange, self, routes, watch, self._entrance.gate(exchange.accounts))

    def _join(self, exchange: Exchange) -> Together:
        """What joins this replica to the others; alone without Redis.

        Raises:
            ConfigError: the address of Redis cannot be read, or a setting is of no use without it.
        """
        settings = self._settings
        name = settings.replica_name or f"{socket.gethostname()}-{os.getpid()}"
        together = Together(exchange, name, settings.grace, settings.fleet_clients)
        if settings.redis:
            together.join(settings.redis, settings.fleet_name)
        elif settings.fleet_clients is not None:
            raise ConfigError("fleet_clients needs redis: replicas that do not know each other cannot share places")
        return together

    # -- life --------------------------------------------------------------------------------------------------------

    async def _start(self, pool: Pool, slots: Supervisor, exchange: Exchange, sock: socket.socket) -> None:
        stopped = asyncio.create_task(self._draining.wait())
        starting = asyncio.create_task(self._bring_up(pool, slots, exchange))
        either: set[asyncio.Future[Any]] = {starting, stopped}
        await asyncio.wait(either, return_when="FIRST_COMPLETED")
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return
        await starting
        self._proven = True
        if self._watch is not None:
            self._watch.begin()
        if self._tracer is not None:
            self._tracer.start(pool)
        log.info("ready after %.1f s on %s", time.monotonic() - self._started, self.device_used)
        self._announce(sock, exchange)

    async def _bring_up(self, pool: Pool, slots: Supervisor, exchange: Exchange) -> None:
        await asyncio.gather(pool.start(), slots.start())
        await self._prove(pool, exchange)

    async def _prove(self, pool: Pool, exchange: Exchange) -> None:
        """Send sample pictures all the way through, and tell the lanes how fast that went.

        Raises:
            StartFailed: the pipeline or a model fails on them.
        """
        picture = (importlib.resources.files("framelane.models") / "samples" / "astronaut.jpg").read_bytes()
        try:
            proven = await Proof(pool, picture).run()
        except StartFailed as failure:
            raise StartFailed(f"pipeline {self._settings.pipeline} {failure.message}") from None
        exchange.expect(proven.rate, proven.alone_s)
        for caution in measured_cautions(self._settings, proven.alone_s, proven.rate):
            log.warning("%s", caution)
        log.info("a frame alone takes %.1f ms; %.0f frames per second go through", 1000 * proven.alone_s, proven.rate)

    async def _tick(
        self,
        pool: Pool,
        slots: Supervisor,
        exchange: Exchange,
        auditor: Auditor,
        watch: Watch,
        server: uvicorn.Server,
    ) -> None:
        largest = max_message_bytes(self._settings.max_frame_bytes)
        partial = PartialMessages(self._settings.mailbox_bytes, largest, exchange.accounts)
        while True:
            due = time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lag.late(time.monotonic() - due)
            exchange.tick()
            partial.check(server.server_state.connections)
            now = time.monotonic()
            pool.check(now)
            slots.check(now)
            auditor.check_time(now)
            watch.turn()
            self._entrance.turn(now)

    def _give_up(self, error: StartFailed) -> None:
        self._fatal = error
        self._draining.set()

    async def _drain(self, exchange: Exchange, auditor: Auditor, together: Together) -> None:
        """Finish what was admitted, within the limit; long jobs end, since they could go on for ever."""
        log.info("draining: %d clients, %d frames inside", len(exchange.delivery.lanes), exchange.accounts.inside)
        until = time.monotonic() + self._settings.drain_limit
        await together.leaving()
        exchange.drain(_DRAIN_FIRST_MS, _DRAIN_SPREAD_MS)
        await auditor.stop()
        while exchange.accounts.inside and time.monotonic() < until:  # noqa: ASYNC110 - books ring no bell
            await asyncio.sleep(0.02)

    async def _take_down(
        self, server: uvicorn.Server, serving: asyncio.Task[None], pool: Pool, slots: Supervisor
    ) -> None:
        """Close the sockets and end the processes, in less than a second; what does not go by itself is cut."""
        server.should_exit = True
        stopping = asyncio.gather(pool.stop(_STOP_S), slots.stop(_STOP_S))
        await asyncio.wait([serving], timeout=_CLOSE_S)
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # its client takes no part in the closing
        await asyncio.wait([serving])
        await stopping

    def _announce(self, sock: socket.socket, exchange: Exchange) -> None:
        host, port = sock.getsockname()[:2]
        shown = "localhost" if host in ("0.0.0.0", "::", "127.0.0.1", "::1") else host
        safe = "s" if self._settings.tls_cert else ""
        print(f"\n  Page     http{safe}://{shown}:{port}/\n  Clients  ws{safe}://{shown}:{port}/ws and Socket.IO")
        print(f"  Places   {exchange.reception.describe_places()}\n", flush=True)

    # -- what people see (doors.http.Provider) -----------------------------------------------------------------------

    @property
    def device_used(self) -> str:
        """The device that the slots have proven to run on."""
        devices = {slot.report.get("device", "?") for slot in self._slots.active} if self._slots else set()
        return ", ".join(sorted(devices)) or "none yet"

    def operate(self, verb: str, slot: int) -> None:
        """Carry out an operator's verb; see ``doors.admin.Operated``."""
        if self._slots is None or not self._proven or self._draining.is_set():
            raise SlotRefused("not while this server starts or goes away")
        verbs = {"promote": self._slots.promote, "drain": self._slots.drain, "restart": self._slots.restart}
        verbs[verb](slot)

    def drain(self) -> None:
        """Begin to drain, as SIGTERM does."""
        self._draining.set()

    def ready(self) -> list[str]:
        """Why this replica cannot serve now; empty when it can."""
        reasons = []
        if self._draining.is_set():
            reasons.append("draining")
        if self._pool is None or not any(worker.serving for worker in self._pool.workers.values()):
            reasons.append("no worker is ready")
        if self._slots is None or not self._slots.active:
            reasons.append("no slot is active")
        if not reasons and not self._proven:
            reasons.append("no frame has gone all the way through yet")
        return reasons

    def degraded(self) -> list[str]:
        """What does not work though frames are served."""
        return self._together.degraded() if self._together else []

    def processes(self) -> list[Watched]:
        """Every process that lives now; see ``ops.watch.Watchable``."""
        found = [Watched("gateway", "gateway", os.getpid(), "active")]
        for worker in self._pool.workers.values() if self._pool else ():
            child, kind = worker.child, "audit" if worker.audit else "worker"
            frames, credits = len(worker.jobs), self._plan.credits if worker.serving else 0
            found.append(Watched(kind, child.name, child.pid, worker.state, child.progress, frames, credits))
        for slot in self._slots.slots.values() if self._slots else ():
            child = slot.child
            waiting = child.progress.load()
            found.append(Watched("slot", child.name, child.pid, slot.state.value, child.progress, waiting))
        return found

    def facts(self) -> Facts:
        """See ``ops.watch.Watchable``."""
        active, simulation = self._slots.active if self._slots else (), self._plan.device.simulation
        return Facts(
            device=self.device_used,
            on_cores=all(slot.shares_cores for slot in active),
            shared_device=simulation is not None and simulation.serial,
            max_clients=self._settings.max_clients,
            client_fps=self._settings.client_fps,
        )

    def status(self) -> dict[str, Any]:
        """What ``/v1/status`` says about processes and device."""
        pool, slots = self._pool, self._slots
        return {
            "version": importlib.metadata.version("framelane"),
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 1),
            "pipeline": self._settings.pipeline,
            "device": {
                "requested": self._settings.device,
                "used": self.device_used,
                "simulated": self._plan.device.simulated,
            },
            "workers": [
                {"id": worker.child.name, "pid": worker.child.pid, "state": worker.state, "frames": len(worker.jobs)}
                for worker in (pool.workers.values() if pool else ())
            ],
            "slots": [
                {"id": slot.child.name, "pid": slot.child.pid, "state": slot.state.value, **slot.report}
                for slot in (slots.slots.values() if slots else ())
            ],
            "restarts": {
                "workers": pool.keeper.restarts if pool else 0,
                "slots": slots.keeper.restarts if slots else 0,
            },
            "promotions": slots.promotions if slots else 0,
            "diagnosis": self._watch.diagnosis() if self._watch else None,
            "gpus": self._watch.gpus if self._watch else [],
            "loop_lag": self._lag.record(),
            "tasks": len(asyncio.all_tasks()),
            "audit": {"jobs": self._auditor.ledger.counts() if self._auditor else {}, "possible": self._plan.can_audit},
            "fleet": self._together.status() if self._together else {},
            "hangs": {"workers": pool.hangs if pool else 0, "slots": slots.hangs if slots else 0},
            "given_up": {
                **({f"worker-{index}": why for index, why in pool.keeper.given_up.items()} if pool else {}),
                **({f"slot-{index}": why for index, why in slots.keeper.given_up.items()} if slots else {}),
            },
        }


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would close the sockets before anything has drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
