"""Keeps a process in every place: both kinds of children, workers (``pool.py``) and slots (``server/slots``).

A place is filled once, and that process has to prove itself: what cannot even start is an error of the start. From
then on whoever ends is followed by a new process, at once if it had lived for a while, later and later if it had not.
One that says a few times in a row that it cannot start (exit status ``START_FAILED``) is given up until somebody asks
for it again; when no process is left, that is fatal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from .children import START_FAILED, Child, StartFailed, watch
from .messages import Kind, Message, pack

log = logging.getLogger("framelane.children")

MAX_START_FAILURES = 5
_SHORT_LIFE_S = 10.0


class Kept(Protocol):
    """One process, this incarnation of it."""

    index: int
    generation: int
    child: Child
    born: float


Process = TypeVar("Process", bound=Kept)


class Budget:
    """How soon a place is filled again. Decides; no clock and no I/O here."""

    def __init__(self) -> None:
        self._failures = 0

    def pause(self, lived_s: float, *, could_start: bool = True) -> float | None:
        """Seconds until the next process may be started after one that lived so long; None: never."""
        self._failures = 0 if lived_s > _SHORT_LIFE_S else self._failures + 1
        if not could_start and self._failures >= MAX_START_FAILURES:
            return None
        return restart_delay(self._failures - 1)

    def forgive(self) -> None:
        """The next end does not count: it was asked for."""
        self._failures = -1


class Keeper(Generic[Process]):
    """The processes of one kind.

    Args:
        kind: for logs, as in the names of the children.
        spawn: starts the process of a place; generations of a place count up from 0.
        introduce: makes it known to others, once it is in ``living``.
        hear: called for each message of it.
        bury: called when its end is certain, all its messages are heard, and it is not in ``living`` any more.
        rest: seconds for which a replacement has to wait at least.

    Attributes:
        living: by place.
        given_up: why, by place.
        restarts: how many processes were started in place of another one.
        stopping: no process is followed by another one any more.
        on_fatal: called when no process is left and none can be started.
    """

    def __init__(
        self,
        kind: str,
        *,
        spawn: Callable[[int, int], Process],
        introduce: Callable[[Process], None],
        hear: Callable[[Process, Message], None],
        bury: Callable[[Process], None],
        rest: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._kind = kind
        self._spawn = spawn
        self._introduce = introduce
        self._hear = hear
        self._bury = bury
        self._rest = rest
        self._budgets: dict[int, Budget] = {}
        self._generations: dict[int, int] = {}
        self._proofs: dict[int, asyncio.Future[None]] = {}
        self._ended = asyncio.Event()
        self.living: dict[int, Process] = {}
        self.given_up: dict[int, str] = {}
        self.restarts = 0
        self.stopping = False
        self.on_fatal: Callable[[StartFailed], None] = lambda _error: None

    @property
    def complete(self) -> bool:
        """Whether a process of every place has proven itself once."""
        return all(proof.done() for proof in self._proofs.values())

    async def start(self, count: int) -> None:
        """Fill so many places and wait until each process has proven itself.

        Raises:
            StartFailed: one could not start; the message says why (a bad model, a missing device …).
        """
        await asyncio.gather(*[self.begin(index) for index in range(count)])

    def begin(self, index: int) -> asyncio.Future[None]:
        """Fill a place, unless it is kept already; what comes back is done when a process has proven itself in it."""
        if index not in self._proofs or index in self.given_up:
            self.retry(index)
            self._proofs[index] = asyncio.get_running_loop().create_future()
        return self._proofs[index]

    def retry(self, index: int) -> None:
        """Fill a place that was given up, with a fresh budget."""
        self.given_up.pop(index, None)
        self._budgets[index] = Budget()
        self._fill(index)

    def proven(self, process: Process) -> None:
        """It is ready."""
        proof = self._proofs[process.index]
        if not proof.done():
            proof.set_result(None)

    def forgive(self, index: int) -> None:
        """The next end of this process was asked for: it is replaced as if it had lived for long."""
        self._budgets[index].forgive()

    async def stop(self, limit_s: float) -> None:
        """Let all processes finish what they hold, then end them; those that take longer are killed."""
        self.stopping = True
        for process in self.living.values():
            process.child.tell(pack(Kind.STOP))
        try:
            async with asyncio.timeout(limit_s):
                await self._all_ended()
        except TimeoutError:
            for process in self.living.values():
                process.child.kill()
            await self._all_ended()

    async def _all_ended(self) -> None:
        while self.living:
            self._ended.clear()
            await self._ended.wait()

    def _fill(self, index: int) -> None:
        generation = self._generations.get(index, -1) + 1
        process = self._spawn(index, generation)
        self._generations[index] = generation
        self.living[index] = process
        watch(process.child, lambda message: self._hear(process, message), lambda status: self._end(process, status))
        try:
            self._introduce(process)
        except OSError:
            process.child.kill()
            raise

    def _end(self, process: Process, status: int) -> None:
        index = process.index
        del self.living[index]
        self._bury(process)
        proof = self._proofs.get(index)
        if self.stopping:
            self._ended.set()
        elif proof is not None and proof.done():
            self._replace(process, status)
        elif proof is not None:
            del self._proofs[index]  # whoever needs this place may try again
            proof.set_exception(process.child.failure())
        process.child.close()

    def _replace(self, process: Process, status: int) -> None:
        index, lived = process.index, time.monotonic() - process.born
        pause = self._budgets[index].pause(lived, could_start=status != START_FAILED)
        if pause is None:
            self._give_up(process)
            return
        self.restarts += 1
        pause = max(pause, self._rest())
        name, pid = process.child.name, process.child.pid
        log.warning("%s (pid %d) ended with status %d; a new one starts in %.2f s", name, pid, status, pause)
        self._later(index, pause)

    def _give_up(self, process: Process) -> None:
        failure = process.child.failure()
        self.given_up[process.index] = failure.message
        log.error("%s is given up after %d starts: %s", process.child.name, MAX_START_FAILURES, failure.message)
        if not self.living:
            self.on_fatal(failure)

    def _later(self, index: int, pause: float) -> None:
        asyncio.get_running_loop().call_later(pause, self._again, index)

    def _again(self, index: int) -> None:
        if self.stopping or index in self.living:
            return
        try:
            self._fill(index)
        except Exception:  # no memory or descriptors now: others may give theirs back
            log.exception("%s-%d could not be started; it is tried again", self._kind, index)
            if index not in self.living:  # else its end is the next occasion
                self._later(index, self._budgets[index].pause(0.0) or 0.0)


def restart_delay(failures: int) -> float:
    """Seconds to wait before a child is started again after ``failures`` short lives in a row: 0, 0.25, 0.5 … 10."""
    return min(10.0, 0.125 * 2 ** min(failures, 7)) if failures > 0 else 0.0
