"""One user: its camera, its session with the server, and the account of its frames; whatever carries its messages.

What a client decides is decided by the real client kit (``server.sdk.session``): the states, the window, the waits
before it comes back. A stream adds what a load test needs: frames are due at fixed intervals from a phase of its own,
in an open loop that no answer delays, and each is written down with what became of it, from the moment it was due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from framelane.loadtests.overload.records import CODES, RESULT, Happening
from framelane.server.protocol import Cut
from framelane.server.sdk.session import Session
from framelane.server.sdk.states import State

from .doors import Heard, Picture
from .ledger import Ledger, User

DRAIN_S = 3.0
"""The longest wait for answers after a user's last frame."""
_CLOSED = frozenset({State.IDLE, State.BACKOFF, State.CLOSED})
_UNGREETED = frozenset({State.CONNECTING, State.GREETING})

Tell = Callable[[str, float], None]
"""Told of each frame's and connect's fate: its name, and the time that it took in ms."""


class Transport(Protocol):
    """What carries a user's messages."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, or one is being made."""

    def open(self, resume: str) -> None:
        """Begin to connect; ``stream.opened``, ``hear`` or ``lost`` follow."""

    def send(self, picture: Picture, seq: int) -> None:
        """Send a frame."""

    @property
    def busy(self) -> bool:
        """Whether bytes of an earlier frame still wait here."""

    def close(self) -> None:
        """End the connection; nothing follows."""


class Camera(Protocol):
    """What a user's camera sees."""

    def look(self, now: float) -> Picture:
        """The picture of this moment."""


class Stream:
    """See the module.

    Args:
        user: who it is.
        ledger: where everything is written.
        camera: where pictures come from.
        tell: see ``Tell``.
        jitter: uniform random numbers from 0 to 1.
        paced: whether it keeps to the server's pace, as a browser would; a fixed rate is what a swarm is for.

    Attributes:
        over: it sends nothing more.
        heedless: it goes on sending though it was not answered, against the rules.
        interval_ms: between its frames; 0 where they are not regular.
    """

    def __init__(
        self, user: User, ledger: Ledger, camera: Camera, tell: Tell, jitter: Callable[[], float], paced: bool = False
    ) -> None:
        self.user = user
        self.camera = camera
        self.session = Session(paced=paced, jitter=jitter)
        self.transport: Transport | None = None
        self.over = False
        self.heedless = False
        self.interval_ms = 0.0
        self._ledger = ledger
        self._tell = tell
        self._held = -1
        self._attempted_at = 0.0
        self._drained_by = 0.0

    @property
    def is_live(self) -> bool:
        """Whether frames may be sent."""
        return self.session.state is State.LIVE

    # -- life --------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Connect, or connect again after ``close``."""
        self.session.connect(1000 * now)
        self._settle(now)

    def finish(self, now: float) -> None:
        """Send nothing more; the answers to what was sent are still waited for (``done``)."""
        self.over = True
        self._release("replaced")
        self._drained_by = now + DRAIN_S

    def done(self, now: float) -> bool:
        """Whether all answers are in, or the wait for them is over."""
        return self.over and (not self.session.unanswered or now >= self._drained_by)

    def close(self) -> None:
        """End it."""
        self._release("away")
        if self.session.state is not State.CLOSED:
            self.session.close()
        self._forget_lost()
        if self.transport is not None and self.transport.is_open:
            self.transport.close()

    def leave(self, now: float) -> None:
        """Be gone without a word, as when a phone loses its network; the client kit comes back by itself."""
        if self.session.state in _CLOSED:
            return
        self._release("away")
        self.session.lost(1000 * now)
        self._happened(Happening.LOST)
        self._settle(now)

    def tick(self, now: float) -> None:
        """What time alone changes; a few times a second."""
        if self.session.wake_at <= 1000 * now:
            before = self.session.state
            self.session.tick(1000 * now)
            if self.session.state is State.BACKOFF and before is not State.BACKOFF:
                self._ended(before, "no answer in time")
            self._settle(now)

    # -- frames ------------------------------------------------------------------------------------------------------

    def due(self, intended: float) -> None:
        """A frame is due: send it, or hold it until the window is open, or write down why it cannot be sent."""
        if self.over:
            return
        now = time.monotonic()
        number = self._ledger.records.add(intended, now - intended, self.user.number)
        state = self.session.state
        if state is not State.LIVE:
            self._ledger.records.settle(number, CODES["waiting" if state is State.WAITING else "away"])
            return
        self._release("replaced")
        if self.heedless:
            self.session.unanswered.clear()
        self._held = number
        self.session.offer(b"", number)  # the picture is taken when it is sent
        self._send(now)

    def _send(self, now: float) -> None:
        transport = self.transport
        if transport is None or self._held < 0 or transport.busy:
            return
        frame = self.session.take(1000 * now)
        if frame is not None:
            self._held = -1
            transport.send(self.camera.look(now), frame.seq)

    def _release(self, outcome: str) -> None:
        if self._held >= 0:
            self._ledger.records.settle(self._held, CODES[outcome])
            self._held = -1

    # -- what the transport says -------------------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        """The transport is open: the server is to greet."""
        self.session.opened(1000 * now)
        self._happened(Happening.OPEN)

    def hear(self, heard: Heard, now: float) -> None:
        """An event came from the server."""
        now_ms, session = 1000 * now, self.session
        session.heard(now_ms)
        name, payload, tracked = heard
        if name == "result":
            sent = session.result(now_ms, payload.seq)
            if sent is None:
                self._ledger.records.totals.wrong += 1
            else:
                self._answered(sent.context, now, RESULT, "result", tracked)
        elif name == "dropped":
            sent = session.dropped(now_ms, payload)
            if sent is None:
                self._ledger.records.totals.wrong += 1
            else:
                self._answered(sent.context, now, CODES[payload.reason], str(payload.reason))
        elif name == "error":
            sent = session.error(now_ms)
            self._error(payload.code, -1 if sent is None else sent.context, now)
        else:
            self._news(heard, now)
        if session.state in _CLOSED:
            self._settle(now)
        elif self._held >= 0:
            self._send(now)

    def writable(self, now: float) -> None:
        """The transport has got rid of what waited in it."""
        self._send(now)

    def lost(self, now: float, reason: str) -> None:
        """The connection failed or ended."""
        before = self.session.state
        if before in _CLOSED:
            return
        self.session.lost(1000 * now, reason)
        self._ended(before, reason)
        self._settle(now)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _answered(self, number: int, now: float, outcome: int, name: str, tracked: bool = False) -> None:
        ledger = self._ledger
        ledger.records.answer(number, now, outcome)
        age = now - ledger.records.intended(number)
        if outcome == RESULT:
            ledger.tally.result(age)
            if tracked:
                ledger.tracked(now - age)
        else:
            ledger.tally.dropped()
        self._tell(name, 1000 * age)

    def _error(self, code: str, number: int, now: float) -> None:
        errors = self._ledger.records.totals.errors
        errors[code] = errors.get(code, 0) + 1
        self._ledger.tally.error()
        if number >= 0:
            self._answered(number, now, CODES["error"], "error")

    def _news(self, heard: Heard, now: float) -> None:
        """Whatever is about the connection."""
        name, payload, _ = heard
        session, account = self.session, self._ledger.account
        if name == "ready":
            session.ready(payload)
            account.pipeline, account.deadline_ms = payload.pipeline, payload.deadline_ms
            self._happened(Happening.READY)
            self._asked_for(payload.interval_ms)
            self._tell("connect", 1000 * (now - self._attempted_at))
        elif name == "waiting":
            if session.state is not State.WAITING:
                account.waited.append(self.user.number)
                self._happened(Happening.WAITING)
            session.waiting(payload)
        elif name == "pace":
            session.paced(payload)
            self._asked_for(payload.interval_ms)
        elif name == "drain":
            self._happened(Happening.DRAIN)
            session.drain(1000 * now, payload)
        elif name == "refused":
            self._happened(Happening.REFUSED)
            self._ledger.refused(self.user, payload.code)
            self._tell(f"refused: {payload.code}", 1000 * (now - self._attempted_at))
            session.refused(1000 * now, payload)

    def _asked_for(self, interval_ms: int) -> None:
        if interval_ms > self.interval_ms > 0:
            paced = self._ledger.account.paced
            paced[self.user.number] = max(interval_ms, paced.get(self.user.number, 0))

    def _ended(self, before: State, reason: str) -> None:
        self._happened(Happening.LOST)
        self._release("away")
        if self.over:
            return
        if before in _UNGREETED:
            self._ledger.connect_failed(self.user, reason)
            self._tell(f"connect: {reason}", 1000 * (time.monotonic() - self._attempted_at))
        elif before is not State.DRAINING and reason not in _OWN_CUTS:
            self._ledger.connection_lost(self.user, reason)

    def _settle(self, now: float) -> None:
        """Make the transport fit the session's state."""
        self._forget_lost()
        transport, state = self.transport, self.session.state
        if transport is None:
            return
        if transport.is_open and state in _CLOSED:
            transport.close()
            self._release("away")
        if state is State.CONNECTING and not transport.is_open and not self.over:
            self._attempted_at = now
            self._happened(Happening.ATTEMPT)
            transport.open(self.session.ticket)

    def _forget_lost(self) -> None:
        for sent in self.session.take_lost():
            self._ledger.records.settle(sent.context, CODES["lost"])

    def _happened(self, kind: Happening) -> None:
        self._ledger.records.happened(time.monotonic(), self.user.number, kind)


_OWN_CUTS: Sequence[str] = (Cut.RESUMED,)
