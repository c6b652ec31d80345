"""The thread that runs batches on a card, while the slot's loop gathers the next one and answers the last one.

The loop hands over batches that are complete on the device, so this thread does nothing but run them one after another.
It tells of each end through an eventfd, which the loop watches beside its sockets.

Handing a batch over costs two wake-ups, some 50 µs: more than gathering one picture. So a slot on a card measures both
ways when it starts (``gain``), and its loop runs the batches itself where that is faster, as it always does on a CPU.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from framelane.models.session import Batch, Session

IN_FLIGHT = 2
"""Batches that are gathered and not answered yet: one runs, one waits for it."""
_SWITCH_S = 0.0002
"""How long the loop may keep the interpreter's lock when a run has ended; by default it is 5 ms, as long as a run."""

WORTHWHILE = 1.02
"""The thread is used from this gain on."""
_ROUNDS = 3
_ROUND_S = 0.2
_FEWEST_RUNS, _MOST_RUNS = 4, 40


class Run:
    """One batch on its way: who asked for it, and how its run ended."""

    __slots__ = ("batch", "error", "requests", "seconds", "session", "started")

    def __init__(self, session: Session, batch: Batch, requests: Sequence[Any]) -> None:
        self.session = session
        self.batch = batch
        self.requests = requests
        self.started = 0.0
        self.seconds = 0.0
        self.error: Exception | None = None


class Runner:
    """The thread and its two queues.

    Args:
        execute: runs one batch, on this thread; what it raises becomes the run's ``error``.
        enter: called first on this thread.

    Attributes:
        running: batches that were handed over and have not been taken back.
        ended: batches that have ever ended.
    """

    def __init__(self, execute: Callable[[Run], None], enter: Callable[[], None]) -> None:
        self._execute = execute
        self._enter = enter
        self._todo: SimpleQueue[Run | None] = SimpleQueue()
        self._done: deque[Run] = deque()
        self._entered: SimpleQueue[Exception | None] = SimpleQueue()
        self._bell = -1
        self._thread = threading.Thread(target=self._work, name="runs", daemon=True)
        self.running = 0
        self.ended = 0

    def start(self) -> None:
        """Begin, and wait until the thread has entered. Raises what ``enter`` raises."""
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        if error := self._entered.get():
            raise error

    def fileno(self) -> int:
        """Readable when a run has ended."""
        return self._bell

    def submit(self, run: Run) -> None:
        """Hand a gathered batch over."""
        self.running += 1
        self._todo.put(run)

    def wait(self) -> list[Run]:
        """The same as ``finished``, after waiting for at least one."""
        select.select([self._bell], [], [])
        return self.finished()

    def finished(self) -> list[Run]:
        """The runs that have ended since the last call, in order."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return []
        runs = [self._done.popleft() for _ in range(len(self._done))]
        self.running -= len(runs)
        self.ended += len(runs)
        return runs

    def stop(self) -> None:
        """Finish what was handed over, and end."""
        self._todo.put(None)
        self._thread.join()
        os.close(self._bell)

    def _work(self) -> None:
        try:
            self._enter()
        except Exception as error:
            self._entered.put(error)
            return
        self._entered.put(None)
        while (run := self._todo.get()) is not None:
            run.started = time.monotonic()
            try:
                self._execute(run)
            except Exception as error:
                run.error = error
            run.seconds = time.monotonic() - run.started
            self._done.append(run)
            del run  # it holds views of its workers' memory, which may leave before the next one comes
            os.eventfd_write(self._bell, 1)


def gain(session: Session, run_ms: float) -> float:
    """How much faster full batches go through with the thread than without it; 1 is as fast.

    Args:
        session: that is warm.
        run_ms: how long such a run takes, so that measuring is over in a second or two.
    """
    count = min(_MOST_RUNS, max(_FEWEST_RUNS, int(1000 * _ROUND_S / max(run_ms, 0.001))))
    items = session.spare_items(session.best_batch)
    with _running(session) as runner:
        times = [(_alone(session, items, count), _together(runner, session, items, count)) for _ in range(_ROUNDS)]
    return min(alone for alone, _ in times) / min(together for _, together in times)


def run_overlapped(session: Session, items: Sequence[Any], count: int) -> float:
    """Run a batch ``count`` times, each gathered while the one before it runs; the seconds that it took."""
    with _running(session) as runner:
        return _together(runner, session, items, count)


@contextlib.contextmanager
def _running(session: Session) -> Iterator[Runner]:
    runner = Runner(lambda run: session.execute(run.batch), session.enter_thread)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


def _alone(session: Session, items: Sequence[Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        session.run(items)
    return time.perf_counter() - start


def _together(runner: Runner, session: Session, items: Sequence[Any], count: int) -> float:
    start = time.perf_counter()
    begun = ended = 0
    while ended < count:
        while begun < count and runner.running < IN_FLIGHT:
            runner.submit(Run(session, session.gather(items), ()))
            begun += 1
        for run in runner.wait():
            session.scatter(run.batch)
            ended += 1
    return time.perf_counter() - start
