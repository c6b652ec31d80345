"""What the doors talk to: it takes clients in, passes their frames to the workers and the answers back.

    admit ──▶ greet ──▶ frame … frame ──▶ disconnect
                          │  ▲
                 mailboxes▼  │ delivery
                         workers

Everything is called on the event loop's thread and returns at once; nothing here waits, reads a clock of its own, or
knows a socket. Every frame that is counted as received gets exactly one fate: at the door (refused, dropped), in its
mailbox (superseded, expired, left), or when the workers are done with it (``_done``), where a lane that has left gets
nothing, whoever may have connected since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from msgspec import UNSET

from framelane.preprocess.messages import Fate
from framelane.preprocess.pool import Done, Job
from framelane.server.errors import BadMessage
from framelane.server.protocol import Drain, Drop, Dropped, Error, Fault, Hello, Ready

from .accounts import Accounts
from .admission import Admission
from .delivery import Delivery
from .lane import Lane, Writer
from .limits import Limits
from .mailboxes import Mailboxes

log = logging.getLogger(__name__)

_LOGGED_CUTS = 100  # /metrics counts them all; whoever floods must not flood the log, too


class Workers(Protocol):
    """What the exchange needs of the pool (``preprocess/pool.py``)."""

    estimate_s: float
    on_done: Callable[[Done], None]
    on_credit: Callable[[], None]

    @property
    def free(self) -> int:
        """How many frames could be submitted now."""

    def submit(self, job: Job) -> int:
        """Begin a frame; the request's number. ``on_done`` is called exactly once for it, later."""

    def cancel(self, request: int) -> None:
        """Nobody waits for it any more. ``on_done`` is called all the same."""


class Exchange:
    """The lanes of one replica.

    Args:
        pool: the workers. Its callbacks are set here.
        limits: see ``Limits``.
        clock: seconds on the clock of the deadlines (``time.monotonic``).

    Attributes:
        accounts: the fates of all messages.
        delivery: the one way to the clients.
        draining: no new clients, no new frames.
    """

    __slots__ = ("_admission", "_clock", "_deadline_s", "_in_flight", "_mailboxes", "_pool", "accounts", "delivery",
                 "draining", "limits")  # fmt: skip

    def __init__(self, pool: Workers, limits: Limits, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock
        self._deadline_s = limits.deadline_ms / 1000
        self._in_flight = 0
        self._mailboxes = Mailboxes(limits.mailbox_bytes)
        self._admission = Admission(limits)
        self.limits = limits
        self.accounts = Accounts()
        self.delivery = Delivery(self.accounts, limits, clock)
        self.draining = False
        pool.on_done = self._done
        pool.on_credit = self._pump

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that wait in the mailboxes."""
        return self._mailboxes.bytes

    # -- clients -----------------------------------------------------------------------------------------------------

    def admit(self, hello: Hello, flavour: int, writer: Writer) -> Lane:
        """Open a lane for a client; a client that comes back gets a new one.

        Raises:
            Refused: it may not come in; the door tells it and closes the connection.
        """
        self._admission.check(hello, len(self.delivery.lanes), self.draining)
        queues = hello.policy == "queue"
        lane = Lane(flavour, writer, depth=self.limits.queue_depth if queues else 1, queues=queues)
        lane.fault_tokens = self.limits.fault_burst
        self.delivery.open(lane)
        self.accounts.connected += 1
        return lane

    def greet(self, lane: Lane) -> None:
        """Say `ready`, once the door has finished its own handshake."""
        limits = self.limits
        ready = Ready(
            lane=lane.id,
            pipeline=limits.pipeline,
            window=limits.queue_depth + 1 if lane.queues else limits.window,
            max_frame_bytes=limits.max_frame_bytes,
            interval_ms=limits.interval_ms,
            deadline_ms=limits.deadline_ms,
        )
        self.delivery.tell(lane, "ready", ready, control=True)

    def disconnect(self, lane: Lane) -> None:
        """The connection has ended. Its waiting frames are gone, its frames in work are cancelled; may be repeated."""
        if lane.left:
            return
        lane.left = True
        self.accounts.left += len(self._mailboxes.clear(lane))
        self.delivery.close(lane)
        for request in list(lane.requests):
            self._pool.cancel(request)

    # -- messages ----------------------------------------------------------------------------------------------------

    def frame(self, lane: Lane, seq: int, data: bytes | memoryview) -> bool:
        """Take a frame of a client that is connected. `data` must stay as it is until the frame has its fate.

        Returns False if the client has earned itself a cut, as ``fault`` does.
        """
        if seq <= lane.last_seq:
            return self.fault(
                lane, BadMessage(f"seq {seq} came after {lane.last_seq}: it must rise", code=Fault.BAD_SEQ)
            )
        lane.last_seq = seq
        self.accounts.received += 1
        if self.draining or not lane.admitted:
            self._drop(lane, seq, Drop.DRAINING if self.draining else Drop.NOT_ADMITTED)
            return True
        size = len(data)
        if not 0 < size <= self.limits.max_frame_bytes:
            self._drop(lane, seq, Drop.INVALID, _size_message(size, self.limits.max_frame_bytes))
            return True
        now = self._clock()
        job = Job(data, b"", seq, lane.flavour, now, now + self._deadline_s, lane)
        loser = self._mailboxes.offer(lane, job)
        if loser is job:
            self._drop(lane, seq, Drop.RATE_LIMITED, "too many frames are waiting")
        elif loser is not None:
            self._drop(lane, loser.seq, Drop.SUPERSEDED)
        if self._mailboxes.ring:
            self._pump()
        return True

    def fault(self, lane: Lane, error: BadMessage) -> bool:
        """Answer a message that is no frame.

        Returns False if there were so many that the connection must be cut: the door closes it, and has no more to say.
        """
        self.accounts.received += 1
        self.accounts.refused[error.code] += 1
        now, limits = self._clock(), self.limits
        refill = (now - lane.faults_at) * limits.faults_per_s
        lane.fault_tokens = min(float(limits.fault_burst), lane.fault_tokens + refill) - 1
        lane.faults_at = now
        if lane.fault_tokens >= 0:
            self.delivery.tell(lane, "error", Error(code=error.code, message=error.message))
            return True
        if not lane.cut:
            lane.cut = True
            self.accounts.cut[Fault.FLOOD] += 1
            if self.accounts.cut[Fault.FLOOD] <= _LOGGED_CUTS:
                log.warning("lane %s is cut: it floods with bad messages, the last: %s", lane.id, error.message)
        return False

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Expire frames that wait in vain, and cut clients that do not read. Call it about ten times a second."""
        now = self._clock()
        for job in self._mailboxes.overdue(self.delivery.lanes.values(), now):
            self._drop(job.owner, job.seq, Drop.EXPIRED)
        self.delivery.cut_stalled(now)

    def drain(self, first_ms: int, spread_ms: int) -> None:
        """Take nothing more, and ask every client to reconnect elsewhere, spread over `spread_ms`."""
        self.draining = True
        lanes = list(self.delivery.lanes.values())
        for index, lane in enumerate(lanes):
            after = first_ms + spread_ms * index // len(lanes)
            self.delivery.tell(lane, "drain", Drain(reconnect_after_ms=after), control=True)

    # -- work --------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Give the workers what they can take, one frame of each lane in turn."""
        pool, take = self._pool, self._mailboxes.take
        while self._mailboxes.ring and pool.free > 0:
            job = take()
            if job is None:
                return
            now = self._clock()
            # With nothing in flight the estimate would never be renewed: one frame goes ahead and proves it wrong.
            expected = now + pool.estimate_s if self._in_flight else now
            if expected > job.deadline:
                self._mailboxes.finished(job.owner)
                self._drop(job.owner, job.seq, Drop.EXPIRED)
            else:
                self._submit(job, now)

    def _submit(self, job: Job, now: float) -> None:
        lane: Lane = job.owner
        job.state = lane.state
        try:
            request = self._pool.submit(job)
        except Exception:  # it must cost this frame only, not the connection that happened to call
            log.exception("a frame of lane %s could not be submitted", lane.id)
            self._mailboxes.finished(lane)
            self._drop(lane, job.seq, Drop.FAILED)
            return
        self._in_flight += 1
        self.accounts.queue_s += now - job.received
        lane.requests.add(request)

    def _done(self, done: Done) -> None:
        """The workers are done with a frame: enter its fate, and let its lane have the next turn."""
        job = done.job
        lane: Lane = job.owner
        self._in_flight -= 1
        self._mailboxes.finished(lane)
        lane.requests.discard(done.request)
        if lane.left:
            self.accounts.left += 1
        elif done.fate == Fate.OK:
            self._answer(lane, job, done)
        else:
            self._drop(lane, job.seq, _DROPS.get(done.fate, Drop.FAILED), done.message)
        if self._mailboxes.ring:
            self._pump()

    def _answer(self, lane: Lane, job: Job, done: Done) -> None:
        if self.limits.stateful:
            lane.state = done.state
        now = self._clock()
        if now > job.deadline:
            self._drop(lane, job.seq, Drop.EXPIRED)
            return
        self.accounts.answered(now - job.received, done.preprocess_s, done.inference_s)
        self.delivery.deliver(lane, done.packet, job.deadline)

    def _drop(self, lane: Lane, seq: int, reason: Drop, message: str = "") -> None:
        """Enter the fate, and say so."""
        self.accounts.dropped[reason] += 1
        self.delivery.tell(lane, "dropped", Dropped(seq=seq, reason=reason, message=message or UNSET))


def _size_message(size: int, most: int) -> str:
    return f"the frame has {size} bytes; the limit is {most}" if size else "the frame is empty"


_DROPS = {Fate.INVALID: Drop.INVALID, Fate.FAILED: Drop.FAILED, Fate.EXPIRED: Drop.EXPIRED}
