"""The slot's process: owns the sessions of one device and runs what the workers send.

``python -m framelane.server.slots.process`` is started by the supervisor. One thread does everything, in turns: read
what has arrived, run the oldest request (with others for the same model, up to its best batch), answer. It never waits
to fill a batch: with nothing to do it sleeps in epoll, with something to do it runs it. Inputs and outputs lie in the
workers' slabs, and are bound to the sessions once per cell.

On a card a second thread makes the runs where that is faster (``overlap.py``), and the loop goes on: a further batch is
gathered while one runs as soon as it is full. One that is not waits for the run to end, since more may come until then.

On a CPU, runs for long jobs are lent a thread that takes what clients leave of the cores (``SCHED_IDLE``).
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import msgspec

from framelane.models.devices import DeviceError
from framelane.models.session import Bound, Session
from framelane.preprocess.children import Birth, born
from framelane.preprocess.links import ALL
from framelane.preprocess.logs import set_up_logs
from framelane.preprocess.memory import Memory, ModelCells, Slab
from framelane.preprocess.messages import Channel, Kind, Message, Outcome, PeerGone, pack_ran
from framelane.preprocess.trace import Trace, open_trace

from .opening import SlotConfig, open_sessions, take_what_is_left
from .overlap import IN_FLIGHT, Run, Runner
from .permits import Permits

log = logging.getLogger("framelane.slot")

DEVICE_LOST = 4
"""Exit status when a fault has ended the card's context, which only another process can have again."""
_Result = TypeVar("_Result")


class Peer:
    """One worker as this slot sees it: its channel, and its cells as the sessions have bound them.

    ``audit``: it works on long jobs.
    """

    def __init__(
        self, channel: Channel, memory: Memory, cells: list[ModelCells], sessions: list[Session], audit: bool
    ) -> None:
        self.channel = channel
        self.audit = audit
        self.open = True
        self._memory = memory
        self._slab = Slab(memory, cells)
        self._sessions = sessions
        self._bound: dict[int, Bound] = {}

    def bound(self, model: int, cell: int) -> Bound:
        """The cell, bound to its model's session the first time it is used."""
        if cell not in self._bound:
            self._bound[cell] = self._sessions[model].bind(*self._slab.arrays(model, cell))
        return self._bound[cell]

    def close(self) -> None:
        """The worker is gone: give its memory back."""
        self.open = False
        self._bound.clear()
        self.channel.close()
        self._memory.close()


class Request(NamedTuple):
    """One run that a worker asked for."""

    peer: Peer
    message: Message
    arrived: float


class Slot:
    """The loop. Constructed by ``main``; ``run`` returns when the supervisor says STOP."""

    def __init__(
        self,
        birth: Birth,
        config: SlotConfig,
        sessions: list[Session],
        trace: Trace | None = None,
        overlapped: bool = False,
    ) -> None:
        self._gateway = birth.channel
        self._progress = birth.progress
        self._config = config
        self._sessions = sessions
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}
        self._waiting: deque[Request] = deque()
        self._epoch = 0
        self._active = False
        self._stopping = False
        self._quiet: ThreadPoolExecutor | None = None
        device = config.device.name
        self._permits = Permits(device, config.permits) if config.permits else None
        self._runner = Runner(self._execute, self._enter_thread)
        self._ended = 0
        self._trace = trace
        self._overlapped = overlapped

    def prepare(self) -> None:
        """Bring the threads that will take steps onto the device: before the slot calls itself ready."""
        self._enter_thread()  # the models may have been opened on another one
        if self._overlapped:
            self._runner.start()

    def run(self) -> None:
        """Serve until told to stop."""
        self._epoll.register(self._gateway.fileno(), select.EPOLLIN)
        if self._overlapped:
            self._serve_overlapped()
            self._runner.stop()
        else:
            self._serve()

    def _serve(self) -> None:
        gateway = self._gateway.fileno()
        now = time.monotonic
        self._progress.awake(now())
        while not (self._stopping and not self._waiting):
            self._progress.turn()
            if self._waiting:
                events = self._epoll.poll(0)
            else:
                self._progress.wait(0)
                self._progress.asleep(now())
                events = self._epoll.poll()
                self._progress.awake(now())
            for descriptor, _ in events:
                if descriptor == gateway:
                    self._hear_gateway()
                else:
                    self._hear_worker(descriptor)
            self._progress.wait(len(self._waiting))
            if self._waiting:
                self._run(self._next_batch())

    def _serve_overlapped(self) -> None:
        """The same with the runs on their own thread, which writes to the progress page what is in work and how long.

        The loop turns only when nothing runs or a run has ended: a run that hangs shows as it does on one thread.
        """
        gateway, runner = self._gateway.fileno(), self._runner
        self._epoll.register(runner.fileno(), select.EPOLLIN)
        while not (self._stopping and not self._waiting and not runner.running):
            if not runner.running or runner.ended != self._ended:
                self._ended = runner.ended
                self._progress.turn()
            for descriptor, _ in self._epoll.poll():
                if descriptor == gateway:
                    self._hear_gateway()
                elif descriptor == runner.fileno():
                    self._finish_runs()
                else:
                    self._hear_worker(descriptor)
            while self._waiting and self._may_begin():
                self._begin(self._next_batch())
            self._progress.wait(len(self._waiting) + max(0, runner.running - 1))

    def _may_begin(self) -> bool:
        """Whether the next batch should be gathered now."""
        if not self._runner.running:
            return True
        model = self._waiting[0].message.model
        full = self._sessions[model].best_batch
        if self._runner.running >= IN_FLIGHT:
            return False
        return full == 1 or sum(request.message.model == model for request in self._waiting) >= full

    # -- what arrives ------------------------------------------------------------------------------------------------

    def _hear_gateway(self) -> None:
        for message in self._gateway.receive():
            if message.kind == Kind.PEER:
                self._meet(bool(message.status))
            elif message.kind == Kind.ROUTES:
                self._epoch = message.epoch
                self._active = bool(message.request >> self._config.slot & 1)
            elif message.kind == Kind.STOP:
                self._stopping = True

    def _meet(self, audit: bool) -> None:
        channel = Channel(socket.socket(fileno=self._gateway.descriptors.popleft()))
        memory = Memory.attach(self._gateway.descriptors.popleft())
        self._peers[channel.fileno()] = Peer(channel, memory, self._config.cells, self._sessions, audit)
        self._epoll.register(channel.fileno(), select.EPOLLIN)

    def _hear_worker(self, descriptor: int) -> None:
        peer = self._peers[descriptor]
        try:
            messages = peer.channel.receive()
        except PeerGone:
            self._forget(descriptor)
            return
        now = time.monotonic()
        for message in messages:
            if message.kind == Kind.CANCEL:
                self._withdraw(peer, message.request)
            elif not self._active and message.epoch <= self._epoch:
                self._answer(peer, message, Outcome.MOVED)
            else:
                self._waiting.append(Request(peer, message, now))

    def _withdraw(self, peer: Peer, request: int) -> None:
        """The client of a request has left: if it still waits, it is not run."""
        for waiting in self._waiting:
            if waiting.peer is peer and waiting.message.request == request:
                self._waiting.remove(waiting)
                self._answer(peer, waiting.message, Outcome.EXPIRED)
                return

    def _forget(self, descriptor: int) -> None:
        peer = self._peers.pop(descriptor)
        self._epoll.unregister(descriptor)
        self._waiting = deque(request for request in self._waiting if request.peer is not peer)
        peer.close()

    # -- runs --------------------------------------------------------------------------------------------------------

    def _next_batch(self) -> list[Request]:
        """The oldest request, and others of the same model in the order they came, up to its best batch."""
        first = self._waiting.popleft()
        batch = [first]
        limit = self._sessions[first.message.model].best_batch
        if first.message.status or limit == 1:
            return batch
        model = first.message.model
        for request in list(self._waiting):
            if len(batch) == limit:
                break
            if request.message.model == model and not request.message.status:
                batch.append(request)
                self._waiting.remove(request)
        return batch

    def _run(self, batch: list[Request]) -> None:
        """Run a batch, with a permit where there are some: waiting for one is progress, and nobody's fault."""
        if self._permits is None:
            self._run_due(batch)
            return
        permit = self._permits.acquire(self._progress.turn)
        try:
            self._run_due(batch)
        finally:
            self._permits.release(permit)

    def _due(self, batch: list[Request], now: float) -> list[Request]:
        """Those whose deadline has not passed; the others are answered."""
        for request in batch:
            if request.message.t1 <= now:
                self._answer(request.peer, request.message, Outcome.EXPIRED)
        return [request for request in batch if request.message.t1 > now]

    def _run_due(self, batch: list[Request]) -> None:
        started = time.monotonic()
        due = self._due(batch, started)
        if not due:
            return
        self._in_work(due, started)
        try:
            self._run_session(due)
        except Exception as error:
            self._progress.finish(int(len(due) == 1))
            self._run_failed(due, error)
        else:
            self._progress.finish(len(due))
            self._progress.stages.ran(len(due))
            self._answer_all(due, started, time.monotonic() - started)

    def _run_session(self, batch: list[Request]) -> None:
        model = batch[0].message.model
        session = self._sessions[model]
        items = _items(batch)
        if batch[0].peer.audit and session.device == "cpu" and all(request.peer.audit for request in batch):
            if self._quiet is None:
                self._quiet = ThreadPoolExecutor(1, initializer=take_what_is_left)
            self._quiet.submit(session.run, items).result()
        elif self._trace is None:
            session.run(items)
        else:
            self._run_traced(session, items, batch[0].message.request)

    def _run_traced(self, session: Session, items: list[Bound], request: int) -> None:
        """The same in its three steps."""
        run = Run(session, self._traced("gather", request, session.gather, items), ())
        try:
            self._traced("run", request, session.execute, run.batch)
        except Exception:
            session.drop(run.batch)
            raise
        self._traced("scatter", request, session.scatter, run.batch)

    def _traced(self, name: str, request: int, step: Callable[[Any], _Result], argument: Any, row: int = 0) -> _Result:
        """Take a step of a run, and note how long it took where that is traced."""
        if self._trace is None:
            return step(argument)
        start = time.monotonic()
        try:
            return step(argument)
        finally:
            self._trace.span(name, start, time.monotonic(), request, row)

    def _answer_all(self, batch: Sequence[Request], started: float, seconds: float) -> None:
        for request in batch:
            self._answer(request.peer, request.message, Outcome.OK, seconds, started - request.arrived, len(batch))

    def _run_failed(self, batch: list[Request], error: Exception) -> None:
        """A run raised: find the culprit by running the others of its batch alone."""
        self._check_device(batch)
        if len(batch) > 1:
            for request in batch:
                self._run_due([request])
            return
        self._answer_failed(batch[0], error)

    def _check_device(self, batch: Sequence[Request]) -> None:
        """A lost device fails every run at once: a slot that stayed would draw all frames, and fail them.

        Raises:
            DeviceError: it is lost. This process must end; what it holds is then sent to another slot.
        """
        try:
            self._sessions[batch[0].message.model].check_device()
        except DeviceError:
            self._in_work(batch, time.monotonic())  # its end is to be blamed on them
            raise

    def _in_work(self, batch: Sequence[Request], now: float) -> None:
        """Let the progress page tell what runs."""
        self._progress.start(batch[0].message.request if len(batch) == 1 else ALL, now)

    def _answer_failed(self, request: Request, error: Exception) -> None:
        log.error("model %s failed: %s", self._config.models[request.message.model].name, error)
        self._answer(request.peer, request.message, Outcome.FAILED)

    # -- runs on their own thread --------------------------------------------------------------------------------------

    def _begin(self, requests: list[Request]) -> None:
        """Gather a batch, and hand it to the thread that runs."""
        due = self._due(requests, time.monotonic())
        if not due:
            return
        session = self._sessions[due[0].message.model]
        try:
            batch = self._traced("gather", due[0].message.request, session.gather, _items(due))
            self._runner.submit(Run(session, batch, due))
        except Exception as error:
            self._fail(due, error)

    def _execute(self, run: Run) -> None:
        """On the other thread. A permit is waited for there: the loop's turns then do not tell, so this one's do."""
        permit = self._permits.acquire(self._progress.turn) if self._permits is not None else 0
        try:
            self._progress.awake(run.started)
            self._in_work(run.requests, run.started)
            self._traced("run", run.requests[0].message.request, run.session.execute, run.batch, 1)
        except Exception:
            self._progress.finish(int(len(run.requests) == 1))  # the others are run again, alone
            raise
        else:
            self._progress.finish(len(run.requests))
            self._progress.stages.ran(len(run.requests))
        finally:
            self._progress.asleep(time.monotonic())
            if self._permits is not None:
                self._permits.release(permit)

    def _finish_runs(self) -> None:
        for run in self._runner.finished():
            if run.error is not None:
                run.session.drop(run.batch)
                self._fail(run.requests, run.error)
            else:
                self._traced("scatter", run.requests[0].message.request, self._answer_run, run)

    def _answer_run(self, run: Run) -> None:
        run.session.scatter(run.batch)
        self._answer_all(run.requests, run.started, run.seconds)

    def _fail(self, batch: Sequence[Request], error: Exception) -> None:
        """A run raised: find the culprit by running the others of its batch alone, before all else."""
        self._check_device(batch)
        if len(batch) == 1:
            self._answer_failed(batch[0], error)
            return
        alone = [request._replace(message=request.message._replace(status=1)) for request in batch]
        self._waiting.extendleft(reversed(alone))

    def _enter_thread(self) -> None:
        for session in self._sessions:
            session.enter_thread()

    def _answer(
        self, peer: Peer, message: Message, outcome: Outcome, seconds: float = 0.0, waited: float = 0.0, batch: int = 0
    ) -> None:
        if not peer.open:
            return
        try:
            peer.channel.send(pack_ran(message.request, message.cell, outcome, batch, seconds, waited))
        except Exception:
            log.warning("a worker does not take its answers; it is being replaced")


def _items(batch: Sequence[Request]) -> list[Bound]:
    return [request.peer.bound(request.message.model, request.message.cell) for request in batch]


def main(argv: list[str] | None = None) -> None:
    """Entry point of the process."""
    birth = born(sys.argv if argv is None else argv)
    set_up_logs(birth.config.get("log_level", "INFO"))
    with birth.failures():
        config = msgspec.convert(birth.config, SlotConfig, dec_hook=lambda kind, value: kind(value))
        trace = open_trace(config.trace, f"slot-{config.slot}")
        sessions, report = open_sessions(config, trace)
        slot = Slot(birth, config, sessions, trace, report["overlap"])
        slot.prepare()
        birth.ready(report)
    try:
        slot.run()
    except PeerGone:  # the gateway is gone: nobody is left to answer to
        pass
    except DeviceError as error:
        log.critical("%s; this slot ends, and is replaced", error.message)
        os._exit(DEVICE_LOST)  # what ONNX Runtime would do at an orderly end may never return
    for session in sessions:
        session.close()


if __name__ == "__main__":
    main()
