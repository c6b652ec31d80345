"""The fleet: starts the replicas, watches them, and tells the balancer who gets clients. The shell around ``roster``.

    replicas ──ended, ready──▶ roster ──actions──▶ replicas (start, drain, kill), front (open, shut)

SIGTERM and Ctrl-C drain all replicas and end; SIGHUP begins a rolling restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import uvicorn

from framelane.preprocess.children import START_FAILED, StartFailed
from framelane.server.signals import on_stop

from .asking import get
from .door import FleetDoor
from .front import Front
from .layout import Layout, Member
from .processes import Process
from .roster import Action, Roster, Verb
from .states import State

log = logging.getLogger("framelane.fleet")

_TURN_S = 0.25
_PROBE_S = 1.0
_BEYOND_DRAIN_S = 5.0


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the fleet needs to know besides its layout.

    Attributes:
        command: how a replica is started, but for what is its own.
        environment: of the replicas.
        address: where clients come in, for people.
        front: what stands there, for people.
        door: the port of the fleet's own endpoints.
        drain_s: the replicas' drain limit.
        admin_token: of the fleet's verbs.
    """

    command: Callable[[Member], Sequence[str]]
    environment: dict[str, str]
    address: str
    front: str
    door: int
    drain_s: float
    admin_token: str


class Fleet:
    """Runs the replicas of one box.

    Args:
        layout: who gets what.
        config: see there.
        front: what stands in front of them.
    """

    def __init__(self, layout: Layout, config: FleetConfig, front: Front) -> None:
        self._layout = layout
        self._config = config
        self._front = front
        self._roster = Roster(layout.members, layout.active, config.drain_s + _BEYOND_DRAIN_S)
        self._processes: dict[int, Process] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Event()
        self._fatal: StartFailed | None = None
        self._leaving = False
        self._ready = False
        self._started = time.monotonic()

    async def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then drain.

        Raises:
            StartFailed: no replica could start, or the balancer could not.
        """
        self._install_signals()
        server = _Server(uvicorn.Config(self._app(), host="127.0.0.1", port=self._config.door, log_config=None,
                                        access_log=False, lifespan="off", timeout_graceful_shutdown=1))  # fmt: skip
        door = asyncio.create_task(server.serve())
        fronting = asyncio.create_task(self._front.run())
        probing = asyncio.create_task(self._probe())
        try:
            while not (self._leaving and not self._processes):
                await self._turn()
                if fronting.done():
                    raise StartFailed(f"the balancer: {fronting.exception()}")
                if self._fatal is not None:
                    raise self._fatal
                if self._roster.hopeless and not self._leaving:
                    raise StartFailed("no replica can start; what they wrote is above")
        finally:
            probing.cancel()
            self._front.stop()
            fronting.cancel()
            server.should_exit = True
            await asyncio.wait([door, probing])
            self._end_all()

    def roll(self) -> bool:
        """Begin a rolling restart; False if one is going on."""
        begun = self._roster.roll()
        log.warning("rolling restart of %d replicas" if begun else "a rolling restart goes on: %d replicas to go",
                    self._roster.rolling)  # fmt: skip
        self._news.set()
        return begun

    # -- turns -------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        self._news.clear()
        for action in self._roster.turn(time.monotonic()):
            log.info("%s r%d: %s", action.verb, action.number, action.why)
            await self._act(action)
        self._announce()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), _TURN_S)

    async def _act(self, action: Action) -> None:
        entry = self._roster.entries[action.number]
        name, process = entry.member.name, self._processes.get(action.number)
        if action.verb is Verb.START:
            await self._start(action.number)
        elif action.verb is Verb.OPEN:
            if process is not None and self._layout.shares:
                process.pin(self._layout.shares[entry.share])
            await self._front.open(name)
        elif action.verb is Verb.SHUT:
            await self._front.shut(name)
        elif process is not None:
            process.signal(signal.SIGTERM if action.verb is Verb.DRAIN else signal.SIGKILL)

    async def _start(self, number: int) -> None:
        entry = self._roster.entries[number]
        shares = self._layout.shares
        self._processes[number] = process = await Process.start(
            entry.member.name,
            self._config.command(entry.member),
            cpus=shares[entry.share] if shares else (),
            environment=self._config.environment,
        )
        self._spawn(self._watch(number, process))

    async def _watch(self, number: int, process: Process) -> None:
        status = await process.ended()
        del self._processes[number]
        log.log(logging.INFO if status == 0 else logging.WARNING, "r%d has ended with status %d", number, status)
        self._roster.ended(number, time.monotonic(), could_start=status != START_FAILED)
        if status == START_FAILED and not self._ready and not self._leaving:
            self._fatal = StartFailed(f"r{number} cannot start; what it wrote is above")
        self._news.set()

    async def _probe(self) -> None:
        while True:
            await asyncio.gather(*[self._ask(number) for number in self._processes])
            await asyncio.sleep(_TURN_S)

    async def _ask(self, number: int) -> None:
        entry = self._roster.entries[number]
        before, born = entry.state, entry.born
        try:
            status, body = await get(entry.member.port, "/readyz", _PROBE_S)
            reasons = [] if status == 200 else list(msgspec.json.decode(body).get("reasons", ["not ready"]))
        except (OSError, TimeoutError, msgspec.MsgspecError):
            reasons = None
        if number in self._processes and entry.born == born:  # else it tells about a process that has ended
            self._roster.probed(number, reasons, time.monotonic())
        if entry.state is not before:
            self._news.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- life --------------------------------------------------------------------------------------------------------

    def _install_signals(self) -> None:
        on_stop(self._leave)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.roll)

    def _leave(self) -> None:
        self._leaving = True
        self._roster.leave()
        self._news.set()

    def _announce(self) -> None:
        if self._ready or len(self._roster.of(State.ACTIVE)) < self._layout.active:
            return
        self._ready = True
        log.info("ready after %.1f s", time.monotonic() - self._started)
        address = self._config.address
        print(f"\n  Page     {address}/\n  Clients  {address.replace('http', 'ws', 1)}/ws and Socket.IO")
        print(f"  Status   {address}/v1/status\n", flush=True)

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGKILL)

    def _app(self) -> Any:
        return FleetDoor(self._roster, self, self._layout.active, self._config.admin_token, self._about).app()

    def _about(self) -> dict[str, Any]:
        roster = self._roster
        return {
            "version": importlib.metadata.version("framelane"),
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 1),
            "front": self._config.front,
            "active": {"wanted": self._layout.active, "now": len(roster.of(State.ACTIVE))},
            "takeovers": roster.takeovers,
            "rolling": roster.rolling,
            "restarts": sum(max(0, entry.restarts) for entry in roster.entries.values()),
        }


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the fleet decides when to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield
