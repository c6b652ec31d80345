"""Workers and slots as real processes in the test's own event loop, without sockets for clients in front of them."""

import asyncio
import contextlib
import gc
import json
import os
import select
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from framelane.models.devices import parse_device
from framelane.models.pipeline import load_pipeline
from framelane.models.registry import Registry
from framelane.preprocess.headers import Limits
from framelane.preprocess.memory import Memory, ModelCells
from framelane.preprocess.packets import Flavour
from framelane.preprocess.pool import Done, Job, Pool, PoolConfig, Worker
from framelane.preprocess.progress import PAGE_BYTES
from framelane.preprocess.worker import describe
from framelane.server.slots.states import State
from framelane.server.slots.supervisor import Slot, SlotsConfig, Supervisor

HERE = str(Path(__file__).parent)
FRAME_BYTES = 256 * 1024
PACKET_BYTES = 64 * 1024


async def until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    """Let the loop turn until something is so. Fails after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def descriptors(pid: int | str = "self") -> int:
    """How many descriptors a process has open."""
    gc.collect()  # what earlier tests dropped is not this one's
    return len(os.listdir(f"/proc/{pid}/fd"))


def mappings(pid: int, name: str) -> int:
    """How many mappings of a process name this."""
    return Path(f"/proc/{pid}/maps").read_text().count(name)


class Replica:
    """A pool and a supervisor, and every frame's end, each seen once."""

    def __init__(  # noqa: PLR0913
        self,
        pipeline: str,
        models: Path | None = None,
        *,
        workers: int = 1,
        spares: int = 0,
        credits: int = 3,
        active: int = 1,
        standby: int = 0,
        device: str = "cpu",
        options: dict[str, Any] | None = None,
        **slots_config: Any,
    ) -> None:
        registry = Registry([models] if models else [])
        described = describe(load_pipeline(pipeline, options))["models"]
        specs = [registry.get(model["name"]) for model in described]
        cells = [
            ModelCells(model["parallel"], spec.inputs, spec.outputs)
            for model, spec in zip(described, specs, strict=True)
        ]
        slots = active + standby
        self.pages = Memory.create("pages", PAGE_BYTES * (slots + workers + spares))
        self.slots = Supervisor(
            SlotsConfig(
                active=active,
                standby=standby,
                device=parse_device(device),
                models=specs,
                cells=cells,
                **slots_config,
            ),
            self.pages,
        )
        self.pool = Pool(
            PoolConfig(
                workers=workers,
                spares=spares,
                credits=credits,
                pipeline=pipeline,
                options=options or {},
                models=cells,
                limits=Limits(),
                frame_bytes=FRAME_BYTES,
                packet_bytes=PACKET_BYTES,
                first_page=slots,
                search_path=HERE,
            ),
            self.pages,
            self.slots,
        )
        self.pool.on_done = self._ended
        self.pool.on_credit = self._free
        self.done: dict[int, list[Done]] = {}
        self._answers: dict[int, asyncio.Future[Done]] = {}
        self._freed = asyncio.Event()
        self._seq = 0

    # -- frames ------------------------------------------------------------------------------------------------------

    def submit(self, data: str | bytes, *, state: bytes = b"", seq: int | None = None, lifetime: float = 20.0) -> int:
        """Give a frame to a worker; returns the request's number."""
        self._seq += 1
        now = time.monotonic()
        raw = data.encode() if isinstance(data, str) else data
        job = Job(raw, state, self._seq if seq is None else seq, Flavour.JSON, now, now + lifetime, None)
        request = self.pool.submit(job)
        self._answers[request] = asyncio.get_running_loop().create_future()
        return request

    async def answer(self, request: int) -> Done:
        return await asyncio.wait_for(asyncio.shield(self._answers[request]), 30)

    async def ask(self, data: str | bytes, **options: Any) -> Done:
        """Submit a frame as soon as a credit is free, and wait for its end."""
        return await self.answer(await self.submit_when_free(data, **options))

    async def submit_when_free(self, data: str | bytes, **options: Any) -> int:
        while not self.pool.free:
            self._freed.clear()
            await asyncio.wait_for(self._freed.wait(), 30)
        return self.submit(data, **options)

    def _ended(self, done: Done) -> None:
        self.done.setdefault(done.request, []).append(done)
        answer = self._answers.get(done.request)
        if answer is not None and not answer.done():
            answer.set_result(done)
        self._free()

    def _free(self) -> None:
        self._freed.set()

    def assert_each_ended_once(self) -> None:
        assert set(self.done) == set(self._answers)
        assert all(len(ends) == 1 for ends in self.done.values())

    # -- processes ---------------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Of all workers, then of all slots."""
        return [process.child.pid for group in (self.pool.workers, self.slots.slots) for process in group.values()]

    async def kill(self, *processes: Worker | Slot) -> None:
        """SIGKILL, and wait until their replacements are ready."""
        for process in processes:
            process.child.kill()
        await self.ended(*processes)
        await self.whole()

    async def ended(self, *processes: Worker | Slot) -> None:
        """Wait until the pool and the supervisor have seen these processes end."""
        await until(lambda: not set(processes) & {*self.pool.workers.values(), *self.slots.slots.values()})

    async def whole(self) -> None:
        """Wait until every worker and slot lives, is ready, and has its place."""
        await until(self._is_whole)

    def _is_whole(self) -> bool:
        workers, slots = self.pool._config, self.slots._config
        processes = [*self.pool.workers.values(), *self.slots.slots.values()]
        return (
            sum(worker.ready for worker in self.pool.workers.values()) == workers.workers + workers.spares
            and len(self.slots.active) == slots.active
            and len(self.slots.of(State.STANDBY)) == slots.standby
            and not select.select([process.child.pidfd for process in processes], [], [], 0)[0]
        )


@contextlib.asynccontextmanager
async def running(*arguments: Any, **options: Any) -> AsyncIterator[Replica]:
    """A started replica; at the end it is stopped, and each of its frames has ended exactly once."""
    replica = Replica(*arguments, **options)
    try:
        await asyncio.gather(replica.pool.start(), replica.slots.start())
        yield replica
    finally:
        await stop(replica)
    replica.assert_each_ended_once()


async def stop(replica: Replica, limit_s: float = 5.0) -> None:
    """Workers first: what they hold may still need a slot."""
    pids = replica.pids()
    await replica.pool.stop(limit_s)
    await replica.slots.stop(limit_s)
    replica.pages.close()
    assert not any(map(alive, pids))


def result(done: Done) -> dict[str, Any]:
    """The result's fields, without the timing."""
    name, fields = json.loads(done.packet)
    assert name == "result"
    assert set(fields.pop("timing")) == {"queue_ms", "preprocess_ms", "inference_ms", "total_ms"}
    return dict(fields)
