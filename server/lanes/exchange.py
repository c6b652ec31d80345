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
from bisect import bisect_left
from collections.abc import Callable

from msgspec import UNSET

from framelane.preprocess.messages import Fate
from framelane.preprocess.pool import Done, Job
from framelane.preprocess.stages import EDGES_S
from framelane.server.errors import BadMessage, Refused
from framelane.server.protocol import Close, Cut, Drain, Drop, Dropped, Error, Expires, Fault, Hello, Refusal

from . import order
from .accounts import Accounts
from .capacity import Capacity
from .conduct import Conduct
from .delivery import Delivery
from .endings import Endings
from .gauge import Gauge
from .inflight import Inflight
from .lane import Lane, Writer
from .limits import Limits
from .mailboxes import Mailboxes
from .passes import Passes
from .rate import Rate
from .reception import Reception
from .workers import Workers

log = logging.getLogger(__name__)


class Exchange:
    """The lanes of one replica.

    Args:
        pool: the workers. Its callbacks are set here.
        limits: see ``Limits``.
        clock: seconds on the clock of the deadlines (``time.monotonic``).
        capacity: frames per second that can be sustained, until it is measured; 0: everything waits for ``expect``.
        passes: who may come in; by default whoever shows ``limits.token``.

    Attributes:
        accounts: the fates of all messages.
        capacity: what is known of that by now.
        delivery: the one way to the clients.
        draining: no new clients, no new frames.
        inflight: how many frames may be in work.
        passes: who may come in.
        reception: who has a place, and who waits for one.
    """

    __slots__ = ("_clock", "_conduct", "_deadline_s", "_endings", "_gauge", "_in_flight", "_mailboxes", "_pool",
                 "_rate", "accounts", "capacity", "delivery", "draining", "inflight", "limits", "passes",
                 "reception")  # fmt: skip

    def __init__(
        self,
        pool: Workers,
        limits: Limits,
        clock: Callable[[], float],
        capacity: float = float("inf"),
        passes: Passes | None = None,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._deadline_s = limits.deadline_ms / 1000
        self._in_flight = 0
        self._mailboxes = Mailboxes(limits.mailbox_bytes, by_cost=limits.fairness == "cost")
        self._gauge = Gauge()
        self.limits = limits
        self.accounts = Accounts()
        self.capacity = Capacity(capacity)
        self.delivery = Delivery(self.accounts, limits, clock)
        self.inflight = Inflight((limits.in_work or float("inf")) if capacity else 0, limits.in_work)
        self.reception = Reception(self.delivery, self.accounts, self.capacity, limits)
        self.passes = passes or Passes(limits.token, None, lambda: 0.0)
        self._conduct = Conduct(self.accounts, limits)
        self._endings = Endings(self.delivery, self.accounts, self.passes, limits)
        limited = limits.frames_per_s or limits.bytes_per_s
        self._rate = Rate(limits.frames_per_s, limits.bytes_per_s) if limited else None
        self.draining = False
        pool.on_done = self._done
        pool.on_credit = self._pump

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that wait in the mailboxes."""
        return self._mailboxes.bytes

    @property
    def work_limit(self) -> int:
        """How many frames may be in work now."""
        return int(min(self.inflight.limit, self._in_flight + self._pool.free))

    def expect(self, rate: float, alone_s: float) -> None:
        """Before any frame was measured: frames per second, and seconds of a frame that is alone. Work may begin."""
        self.capacity.expect(rate)
        self.inflight.expect(alone_s)
        self._pump()

    # -- clients -----------------------------------------------------------------------------------------------------

    def admit(self, hello: Hello, flavour: int, writer: Writer, *, may_wait: bool = True, address: str = "") -> Lane:
        """Open a lane for a client; one that comes back gets a new one.

        Args:
            hello: what it said.
            flavour: of the packets that it gets.
            writer: the way to it.
            may_wait: whether it can be told to wait for a place; if not, it is refused when there is none.
            address: where it calls from, if that is known.

        Raises:
            Refused: it may not come in; the door tells it and closes the connection.
        """
        self.reception.admission.check(hello, self.draining)
        shown, now = self.passes.check(hello.token, hello.resume or ""), self._clock()
        self._conduct.check(address, now)
        lane = self.reception.enter(hello, flavour, writer, now, may_wait=may_wait)
        lane.address = address
        self.passes.bind(lane, shown, now)
        return lane

    def greet(self, lane: Lane) -> None:
        """Say `ready` or `waiting`, once the door has finished its own handshake."""
        now = self._clock()
        self.reception.greet(lane, now)
        self._tell_end(lane, now)

    def renew(self, lane: Lane, token: str) -> bool:
        """Take another token of a client that is connected. Returns False as ``fault`` does."""
        now = self._clock()
        try:
            shown = self.passes.check(token, lane.ticket)
            if shown is None or shown.campaign != lane.campaign:
                raise Refused("there is no such token to renew: it is of another kind", code=Refusal.UNAUTHORIZED)
        except Refused as refusal:
            return self.fault(lane, BadMessage(refusal.message, code=Fault.BAD_TOKEN))
        self.passes.bind(lane, shown, now)
        self._tell_end(lane, now)
        return True

    def _tell_end(self, lane: Lane, now: float) -> None:
        left = self.passes.left_ms(lane, now)
        if left is not None and not lane.left:
            self.delivery.tell(lane, "expires", Expires(expires_in_ms=left), control=True)

    def disconnect(self, lane: Lane, *, lost: bool = False) -> None:
        """The connection has ended. Its waiting frames are gone, its frames in work are cancelled; may be repeated.

        Args:
            lane: its lane.
            lost: nobody closed it, so its client may come back.
        """
        if lane.left:
            return
        lane.left = True
        self.accounts.left += len(self._mailboxes.clear(lane)) + self._forget_early(lane)
        self.delivery.close(lane)
        for request in list(lane.requests):
            self._pool.cancel(request)
        self.reception.leave(lane, self._clock(), lost=lost and not lane.cut)

    def kick(self, lane: Lane) -> None:
        """An operator ends this connection, and its token is of no use any more."""
        self.passes.turn_out(lane)
        self._endings.end(lane, Cut.KICKED, Refusal.KICKED, "an operator ended this connection")

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
        lane.frames += 1
        self.accounts.received += 1
        size, now = len(data), self._clock()
        self.accounts.bytes_in += size
        if self._rate is not None and not self._rate.allows(lane, size, now):
            self._drop(lane, seq, Drop.RATE_LIMITED, "one client may not send so much")
            self._endings.too_fast(lane, now)
            return True
        if now < lane.paused_until:
            self._drop(lane, seq, Drop.RATE_LIMITED, _PAUSED)
            return True
        if self.draining or not lane.admitted:
            self._drop(lane, seq, Drop.DRAINING if self.draining else Drop.NOT_ADMITTED)
            return True
        if not 0 < size <= self.limits.max_frame_bytes:
            self._drop(lane, seq, Drop.INVALID, _size_message(size, self.limits.max_frame_bytes))
            return True
        job = Job(data, b"", seq, lane.flavour, now, now + self._deadline_s, lane)
        loser = self._mailboxes.offer(lane, job)
        if loser is job:
            self._drop(lane, seq, Drop.RATE_LIMITED, "too many frames are waiting")
        elif loser is not None:
            self._drop(lane, loser.seq, Drop.SUPERSEDED)
        if self._mailboxes.lanes:
            self._pump()
        return True

    def fault(self, lane: Lane, error: BadMessage) -> bool:
        """Answer a message that is no frame.

        Returns False if there were so many that the connection must be cut: the door closes it, and has no more to say.
        """
        self.accounts.received += 1
        self.accounts.refused[error.code] += 1
        if not self._conduct.bad_message(lane, error.message, self._clock()):
            return False
        self.delivery.tell(lane, "error", Error(code=error.code, message=error.message))
        return True

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Everything that time alone changes. Call it about ten times a second."""
        now = self._clock()
        for job in self._mailboxes.overdue(self.delivery.lanes.values(), now):
            self._drop(job.owner, job.seq, Drop.EXPIRED)
            _has_room(job.owner)
        self.delivery.cut_stalled(now)
        self._endings.turn(now)
        reading = self._gauge.read(now)
        if reading is not None:
            self.capacity.turn(reading, self.reception.held_back)
            self.inflight.turn(reading, self._in_flight + self._pool.free, self.capacity.rate)
        if not self.draining:
            self.reception.turn(now)

    def drain(self, first_ms: int, spread_ms: int) -> None:
        """Take nothing more, and ask every client to reconnect elsewhere, spread over `spread_ms`."""
        self.draining = True
        lanes = [lane for lane in self.delivery.lanes.values() if lane.ticket]  # the others hear one answer only
        for index, lane in enumerate(lanes):
            after = first_ms + spread_ms * index // len(lanes)
            self.delivery.tell(lane, "drain", Drain(reconnect_after_ms=after), control=True)

    # -- work --------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Give the workers what they can take, one frame of each lane in turn."""
        pool, take, limit = self._pool, self._mailboxes.take, self.inflight.limit
        while self._mailboxes.lanes and self._in_flight < limit and pool.free > 0:
            job = take()
            if job is None:
                return
            now, lane = self._clock(), job.owner
            # With nothing in flight the estimate would never be renewed: one frame goes ahead and proves it wrong.
            expected = now + pool.estimate_s if self._in_flight else now
            if expected > job.deadline:
                self._mailboxes.spared(lane)
                self._drop(lane, job.seq, Drop.EXPIRED)
            else:
                self._submit(job, now)
            if lane.on_room is not None:
                _has_room(lane)

    def _submit(self, job: Job, now: float) -> None:
        lane: Lane = job.owner
        job.state, job.submitted = lane.state, now
        try:
            request = self._pool.submit(job)
        except Exception:  # it must cost this frame only, not the connection that happened to call
            log.exception("a frame could not be submitted", extra={"lane": lane.id, "seq": job.seq})
            self._mailboxes.finished(lane)
            self._drop(lane, job.seq, Drop.FAILED)
            return
        self._in_flight += 1
        waited, accounts = now - job.received, self.accounts
        accounts.queues[bisect_left(EDGES_S, waited)] += 1
        accounts.queue_s += waited
        lane.requests.add(request)
        if lane.parallel > 1:
            order.started(lane, request)

    def _done(self, done: Done) -> None:
        """The workers are done with a frame: enter its fate, and let its lane have the next turn."""
        lane: Lane = done.job.owner
        self._in_flight -= 1
        lane.requests.discard(done.request)
        now = self._clock()
        if lane.parallel == 1 or lane.left:
            self._settle(lane, done, now)
        else:
            for each in order.in_turn(lane, done):
                self._settle(lane, each, now)
        if done.blame:  # also of a client that has left: it may come again
            self._fatal(lane, now, suspected=done.suspected)
        if self._mailboxes.lanes:
            self._pump()
        if done.fate == Fate.OK:
            self._gauge.finished(now, now - done.job.submitted, self._mailboxes.lanes > 0)

    def _settle(self, lane: Lane, done: Done, now: float) -> None:
        self._mailboxes.finished(lane, done.preprocess_s + done.inference_s)
        if lane.left:
            self.accounts.left += 1
        elif done.fate == Fate.OK:
            self._answer(lane, done, now)
        else:
            self._drop(lane, done.job.seq, _DROPS.get(done.fate, Drop.FAILED), done.message)

    def _fatal(self, lane: Lane, now: float, *, suspected: bool) -> None:
        """One of its frames has ended a worker or two slots: the next might, too."""
        stays = self._conduct.fatal_frame(lane, now, suspected=suspected)
        if now < lane.paused_until:
            for job in self._mailboxes.clear(lane):
                self._drop(lane, job.seq, Drop.RATE_LIMITED, _PAUSED)
            _has_room(lane)
        if not stays:
            self.passes.turn_out(lane)
            lane.writer.close(Close.FATAL_FRAMES, Cut.FATAL_FRAMES)

    def _answer(self, lane: Lane, done: Done, now: float) -> None:
        job = done.job
        if self.limits.stateful:
            lane.state = done.state
        if now > job.deadline:
            self._drop(lane, job.seq, Drop.EXPIRED)
            return
        report = done.report
        self.accounts.answered(now - job.received, now - report.t0 if report else 0.0)
        self.delivery.deliver(lane, done.packet, job.deadline)

    def _drop(self, lane: Lane, seq: int, reason: Drop, message: str = "") -> None:
        """Enter the fate, and say so."""
        self.accounts.dropped[reason] += 1
        self.delivery.tell(lane, "dropped", Dropped(seq=seq, reason=reason, message=message or UNSET))

    def _forget_early(self, lane: Lane) -> int:
        """Results that were held back for a lane that leaves now: they are not in work any more."""
        held = order.forget(lane)
        for _ in range(held):
            self._mailboxes.finished(lane)
        return held


def _has_room(lane: Lane) -> None:
    """Let the door read on that waits for a full queue."""
    on_room, lane.on_room = lane.on_room, None
    if on_room is not None:
        on_room()


def _size_message(size: int, most: int) -> str:
    return f"the frame has {size} bytes; the limit is {most}" if size else "the frame is empty"


_PAUSED = "a frame of this client has ended a process of the server: for a while none is taken"
_DROPS = {Fate.INVALID: Drop.INVALID, Fate.FAILED: Drop.FAILED, Fate.EXPIRED: Drop.EXPIRED}
