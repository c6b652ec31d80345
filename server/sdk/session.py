"""What a client decides, without I/O: states, window, pace, accounts. `now` is an argument, in milliseconds.

The shell (client.py) tells a session what happened, and afterwards makes the world fit it: a transport is open exactly
while the state is neither idle, backoff nor closed; a frame goes out whenever `take` returns one; `tick` runs at
`wake_at`. The same as session.js.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from framelane.server.protocol import Drain, Drop, Dropped, Expires, Ready, RefusedData, Waiting
from framelane.server.protocol import Pace as PaceEvent

from .pace import Pace
from .states import TABLE, State, next_state

CONNECT_MS = 10_000.0
"""For a transport to open, and again for the server to greet."""
FIRST_WAIT_MS = 500.0
"""Full jitter: a random wait below this bound, which doubles with each attempt up to LONGEST_WAIT_MS."""
LONGEST_WAIT_MS = 10_000.0
GRACE_MS = 4_500.0
"""Past its deadline, an unanswered frame is given up, and a silent connection with it."""
RENEW_AFTER = 0.5
RETRY_RENEW_MS = 5_000.0
"""A token is renewed when half of its time is over, and again so often until the server has taken one."""

OVERLOAD = frozenset({Drop.SUPERSEDED, Drop.EXPIRED, Drop.RATE_LIMITED, Drop.NOT_ADMITTED})
"""Drops that mean too much was sent; the other reasons say nothing about the rate."""

Picture = bytes | bytearray | memoryview


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The state, and what a person should know about it. Replaced, never changed, when there is news."""

    state: State
    position: int | None = None
    retry_after_ms: float | None = None
    retry_in_ms: float | None = None
    reason: str | None = None
    message: str | None = None


class Sent(msgspec.Struct, frozen=True):
    """A frame that was sent: its number, when, and what the application said along with it."""

    seq: int
    at: float
    context: Any


class Frame(msgspec.Struct, frozen=True):
    """A frame that must be sent now."""

    seq: int
    data: Picture


class Counts(msgspec.Struct):
    """sent = results + dropped + errors + lost + unanswered; `replaced` pictures were never sent."""

    sent: int = 0
    results: int = 0
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    errors: int = 0
    lost: int = 0
    replaced: int = 0


class Session:
    """The client's side of the protocol, over any transport.

    Args:
        paced: whether to keep to the server's interval; a load generator may not want to.
        jitter: uniform random numbers from 0 to 1.

    Attributes:
        ticket: what the next connection shows, so that it gets the place or the position of the last one; "" at first.
    """

    def __init__(self, *, paced: bool = True, jitter: Callable[[], float] = random.random) -> None:
        self.situation = Situation(state=State.IDLE)
        self.terms: Ready | None = None
        self.ticket = ""
        self.pace = Pace()
        self.counts = Counts()
        self.unanswered: dict[int, Sent] = {}
        self._lost: list[Sent] = []
        self._held: tuple[Picture, Any] | None = None
        self._seq = 0
        self._attempts = 0
        self._until = math.inf
        self._reconnect_after = 0.0
        self._heard = -math.inf
        self._renew_at = math.inf
        self._paced = paced
        self._jitter = jitter

    @property
    def state(self) -> State:
        return self.situation.state

    def connect(self, now: float) -> None:
        self._attempts = 0
        self._enter("connect", now + CONNECT_MS)

    def opened(self, now: float) -> None:
        self._enter("opened", now + CONNECT_MS)

    def lost(self, now: float, message: str = "the connection was lost") -> None:
        """The transport failed or went away."""
        if self.state is State.DRAINING:
            self._leave("lost", now, self._reconnect_after, reason="draining")
        else:
            self._leave("lost", now, self._wait(), reason="lost", message=message)

    def refused(self, now: float, why: RefusedData) -> None:
        """The server does not take this connection; it may say when to try again."""
        event = "refused" if why.retry_after_ms is UNSET else "refused_for_now"
        if not self._expects(event):
            return
        message = None if why.message is UNSET else why.message
        if why.retry_after_ms is UNSET:
            self._forget()
            self._enter(event, reason=why.code, message=message)
        else:
            self._leave(event, now, why.retry_after_ms + self._wait(), reason=why.code, message=message)

    def close(self) -> None:
        self._forget()
        self._held = None
        self._enter("close")

    def ready(self, terms: Ready) -> None:
        if self._expects("ready"):
            self._attempts = 0
            self.terms = terms
            self.ticket = terms.ticket
            self.pace.begin(terms.interval_ms)
            self._enter("ready")

    def waiting(self, place: Waiting) -> None:
        if self._expects("waiting"):
            self.ticket = place.ticket
            self._enter("waiting", position=place.position, retry_after_ms=place.retry_after_ms)

    def paced(self, pace: PaceEvent) -> None:
        if self._expects("pace"):
            self.pace.budget(pace.interval_ms)

    def expires(self, now: float, expires: Expires) -> None:
        """The connection ends then, unless `takes_token` is heeded."""
        if self._expects("expires"):
            self._renew_at = now + RENEW_AFTER * expires.expires_in_ms

    def takes_token(self, now: float) -> bool:
        """Whether another token should be sent now; True once, and again later while the server has taken none."""
        if now < self._renew_at:
            return False
        self._renew_at = now + RETRY_RENEW_MS
        return True

    def drain(self, now: float, drain: Drain) -> None:
        if self._expects("drain"):
            self._reconnect_after = drain.reconnect_after_ms
            self._enter("drain")
            self._leave_when_answered(now)

    def result(self, now: float, seq: int) -> Sent | None:
        """The frame that this result answers, or None if there is none."""
        sent = self._answered(seq)
        if sent is not None:
            self.counts.results += 1
            self.pace.answered()
            self._leave_when_answered(now)
        return sent

    def dropped(self, now: float, dropped: Dropped) -> Sent | None:
        """The frame that was dropped, or None if there is none."""
        sent = self._answered(dropped.seq)
        if sent is not None:
            self.counts.dropped[dropped.reason] += 1
            if dropped.reason in OVERLOAD:
                self.pace.congested(now)
            self._leave_when_answered(now)
        return sent

    def error(self, now: float) -> Sent | None:
        """A message was no frame: it is about what came last."""
        sent = self._answered(next(reversed(self.unanswered), -1))
        if sent is not None:
            self.counts.errors += 1
            self._leave_when_answered(now)
        return sent

    def heard(self, now: float) -> None:
        """Anything came from the server."""
        self._heard = now

    def offer(self, data: Picture, context: Any = None) -> None:
        """Take the newest picture, to be sent as soon as it may; it replaces one that still waits here.

        Raises:
            ValueError: it is larger than the server reads.
        """
        if self.terms is not None and len(data) > self.terms.max_frame_bytes:
            raise ValueError(f"a frame of {len(data)} bytes; the limit is {self.terms.max_frame_bytes}")
        if self._held is not None:
            self.counts.replaced += 1
        self._held = data, context

    @property
    def room_at(self) -> float:
        """When there will be room; infinity while only an answer or a connection can make it."""
        return self._due_at() if self._held is None and self._window_open() else math.inf

    def has_room(self, now: float) -> bool:
        """Whether a picture offered now could go out now."""
        return now >= self.room_at

    def wants(self, now: float) -> bool:
        """Whether `take` has a frame to give."""
        return self._held is not None and self._window_open() and now >= self._due_at()

    def take(self, now: float) -> Frame | None:
        """The frame that must be sent now, or None."""
        if self._held is None or not self.wants(now):
            return None
        (data, context), self._held = self._held, None
        seq, self._seq = self._seq, self._seq + 1
        self.unanswered[seq] = Sent(seq, now, context)
        self.counts.sent += 1
        self.pace.sent(now)
        return Frame(seq, data)

    def take_lost(self) -> list[Sent]:
        """The frames that got no answer and never will, since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def tick(self, now: float) -> None:
        """What time alone changes."""
        if now >= self._until:
            if self.state is State.BACKOFF:
                self._enter("elapsed", now + CONNECT_MS)
            else:
                self.lost(now, "no answer")
        oldest = self._oldest()
        if oldest is not None and now >= self._give_up_at(oldest):
            self._give_up(now, oldest)

    @property
    def wake_at(self) -> float:
        """When to call `tick` and `take` again; infinity if time alone changes nothing."""
        moment = min(self._until, self._renew_at)
        oldest = self._oldest()
        if oldest is not None:
            moment = min(moment, self._give_up_at(oldest))
        if self._held is not None and self._window_open():
            moment = min(moment, self._due_at())
        return moment

    def _expects(self, event: str) -> bool:
        """What does not fit the state is ignored: it is the server's doing, and may have crossed ours."""
        return event in TABLE[self.state]

    def _answered(self, seq: int) -> Sent | None:
        return self.unanswered.pop(seq, None)

    def _leave_when_answered(self, now: float) -> None:
        if self.state is State.DRAINING and not self.unanswered:
            self._leave("all_answered", now, self._reconnect_after, reason="draining")

    def _give_up(self, now: float, sent: Sent) -> None:
        if self._heard < sent.at:
            self.lost(now, "no answer")
            return
        self._lose(sent)
        self.pace.congested(now)
        self._leave_when_answered(now)

    def _leave(self, event: str, now: float, wait: float, *, reason: str, message: str | None = None) -> None:
        self._forget()
        self._attempts += 1
        self._enter(event, now + wait, reason=reason, message=message, retry_in_ms=wait)

    def _enter(self, event: str, until: float = math.inf, **detail: Any) -> None:
        self.situation = Situation(state=next_state(self.state, event), **detail)
        self._until = until
        if self.state not in (State.WAITING, State.LIVE):
            self._renew_at = math.inf

    def _forget(self) -> None:
        """A new connection is a new lane: what was unanswered stays so, and seq starts again."""
        for sent in list(self.unanswered.values()):
            self._lose(sent)
        self._seq = 0

    def _lose(self, sent: Sent) -> None:
        del self.unanswered[sent.seq]
        self.counts.lost += 1
        self._lost.append(sent)

    def _oldest(self) -> Sent | None:
        return next(iter(self.unanswered.values()), None)

    def _wait(self) -> float:
        return self._jitter() * min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2.0 ** min(self._attempts, 16))

    def _window_open(self) -> bool:
        return self.state is State.LIVE and self.terms is not None and len(self.unanswered) < self.terms.window

    def _due_at(self) -> float:
        return self.pace.due_at if self._paced else -math.inf

    def _give_up_at(self, sent: Sent) -> float:
        assert self.terms is not None
        return sent.at + self.terms.deadline_ms + GRACE_MS
