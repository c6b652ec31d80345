"""Many clients of /ws in one process and one loop, each of which follows the protocol, and sends when it is due.

Clients go through the states of ``framelane.server.protocol`` with the waits of the real client kit; what they do
against the rules is said in their orders: ignore the window, or never read. What is due while a client has no place or
no connection is recorded, not sent. While its socket takes no more, or its window is closed, the newest frame waits and
replaces the one before it, as in a browser. A frame's age counts from the moment it was meant to be sent.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from framelane.loadtests import rfc6455
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.generator import Message as FrameMessage
from framelane.server.sdk.session import FIRST_WAIT_MS, LONGEST_WAIT_MS
from framelane.server.sdk.states import State, next_state

from .arrivals import Arrivals, Kind, Phase, Profile
from .links import Broken, Link
from .records import CODES, RESULT, Happening, Records

_RECEIVE_BUFFER = 1 << 19
_MOST_EVENTS = 64  # handled before what is due is looked at again
_SETTLED = frozenset({State.LIVE, State.WAITING, State.CLOSED})
_HELLO: Final = msgspec.msgpack.encode(["hello", {}])


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What one generator process has to do.

    Attributes:
        frames: a saved ``FrameFile``; clients send what a camera would see at that moment.
        port: of the server; with several ``ports`` clients take those in turn.
        clients: how many, numbered from ``first``; the first ``senders`` of them send (None: all).
        phases: the rate of a client of weight 1.
        every, weight: one client in ``every`` has this weight; 0: none.
        kind: "poisson" or "fixed" intervals.
        window: whether a client keeps to the server's window, or ignores it.
        deaf: never read; a small receive buffer makes it show soon.
        returns: whether a client whose connection ended comes back.
        greets: send a frame as soon as there is a `ready`, as the client kit does.
        connects_per_s: how fast the clients come in at first.
        drain_s: the longest wait for answers after the last frame.
    """

    host: str
    port: int
    frames: Path
    clients: int
    phases: tuple[Phase, ...]
    ports: tuple[int, ...] = ()
    first: int = 0
    senders: int | None = None
    every: int = 0
    weight: float = 1.0
    kind: Kind = "poisson"
    window: Literal["ignore", "follow"] = "ignore"
    deaf: bool = False
    returns: bool = True
    greets: bool = False
    connects_per_s: float = 400.0
    gather_s: float = 60.0
    drain_s: float = 3.0
    seed: int = 1

    def weights(self) -> list[float]:
        """The weight of each client."""
        senders = self.clients if self.senders is None else self.senders
        heavy = [self.weight if self.every and number % self.every == 0 else 1.0 for number in range(senders)]
        return heavy + [0.0] * (self.clients - senders)

    def address(self, client: int) -> tuple[str, int]:
        """Where the client of this number, counted from 0, connects to."""
        ports = self.ports or (self.port,)
        return self.host, ports[(self.first + client) % len(ports)]


class Answer(msgspec.Struct, frozen=True):
    """What is looked at in an event from the server."""

    seq: int = -1
    lane: str = ""
    reason: str = ""
    code: str = ""
    window: int = 2
    retry_after_ms: int | None = None
    reconnect_after_ms: int = 0


_read_event = msgspec.msgpack.Decoder(tuple[str, Answer]).decode


class Client:
    """One client: its state, its connection, and the frames that it has not had an answer to, by ``seq``."""

    __slots__ = ("attempts", "comes_back", "held", "lane", "link", "number", "reconnect_after", "seq", "served",
                 "state", "timer", "unanswered", "window")  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = State.IDLE
        self.link: Link | None = None
        self.attempts = 0
        self.comes_back = False
        self.held = -1
        self.lane = ""
        self.reconnect_after = 0.0
        self.seq = -1
        self.served = False
        self.timer = 0
        self.unanswered: dict[int, int] = {}
        self.window = 2


class Crowd:
    """All clients of one process.

    Args:
        orders: see there.
        clip: the frames.
        records: where everything is written.
    """

    def __init__(self, orders: Orders, clip: FrameFile, records: Records) -> None:
        self._orders = orders
        self._records = records
        self._messages = [FrameMessage(data) for data in clip.frames]
        self._fps = clip.fps
        self._random = random.Random(orders.seed)
        self._clients = [Client(number) for number in range(orders.clients)]
        self._by_descriptor: dict[int, Client] = {}
        self._timers: list[tuple[float, int, Client]] = []
        self._ids = itertools.count(1)
        self._epoll = select.epoll()
        self._buffer = bytearray(_RECEIVE_BUFFER)
        profile = Profile(orders.phases)
        self._arrivals = Arrivals(profile, orders.weights(), orders.kind, self._random)
        self._start = math.inf
        self._over = False

    @property
    def settled(self) -> bool:
        """Whether every client is in, waits for a place, or was turned away."""
        return all(client.state in _SETTLED or client.comes_back for client in self._clients)

    def gather(self) -> None:
        """Bring the clients in; returns when all have settled, or when the orders' time for it is over."""
        now = time.monotonic()
        for client in self._clients:
            self._wake(client, now + client.number / self._orders.connects_per_s)
        limit = now + self._orders.gather_s
        self._loop(lambda now: now >= limit or self.settled)

    def idle(self, until: Callable[[], bool]) -> None:
        """Keep the connections until something holds."""
        self._loop(lambda now: until())

    def play(self, start: float) -> None:
        """Send what the profile says from ``start`` (``time.monotonic``) on, then wait for the last answers."""
        stop = start + Profile(self._orders.phases).seconds
        self._start = start
        cpu = time.process_time()
        self._loop(lambda now: now >= stop)
        totals = self._records.totals
        totals.started, totals.seconds, totals.cpu = start, time.monotonic() - start, time.process_time() - cpu
        self._over = True
        limit = stop + self._orders.drain_s
        self._loop(lambda now: now >= limit or not any(client.unanswered for client in self._clients))

    def close(self) -> None:
        """Drop all connections."""
        for client in self._by_descriptor.values():
            if client.link is not None:
                client.link.close()
        self._epoll.close()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _loop(self, done: Callable[[float], bool]) -> None:
        poll, clock = self._epoll.poll, time.monotonic
        while not done(now := clock()):
            due = min(self._timers[0][0] if self._timers else math.inf, self._start + self._arrivals.next_at)
            for descriptor, event in poll(min(max(0.0, due - now), 0.02), _MOST_EVENTS):
                client = self._by_descriptor.get(descriptor)
                if client is not None:
                    self._ready(client, event)
            now = clock()
            while self._timers and self._timers[0][0] <= now:
                _, timer, client = heapq.heappop(self._timers)
                if timer == client.timer:
                    self._wakened(client)
            while self._start + self._arrivals.next_at <= now and not self._over:
                after, number = self._arrivals.pop()
                self._due(self._clients[number], self._start + after, clock())

    def _ready(self, client: Client, event: int) -> None:
        link = client.link
        assert link is not None
        try:
            if client.state is State.CONNECTING:
                if not link.upgraded and event & select.EPOLLOUT:
                    self._sent(link.upgrade())
                    self._watch(link, select.EPOLLIN)
            elif event & select.EPOLLOUT and link.flush():
                self._watch(link, self._reading(client))
                self._send_held(client)
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._read(client, link)
        except Broken:
            self._lost(client)

    def _read(self, client: Client, link: Link) -> None:
        self._records.totals.received_bytes += link.receive(self._buffer)
        for message in link.messages():
            if message.opcode == rfc6455.BINARY:
                self._event(client, message.payload)
            elif message.opcode == rfc6455.PING:
                self._sent(link.send((rfc6455.head(len(message.payload), rfc6455.PONG), message.payload)))
            elif message.opcode == rfc6455.CLOSE:
                raise Broken("closed by the server")
            if client.link is not link:
                return
        if client.state is State.CONNECTING and link.upgraded:
            self._enter(client, "opened", Happening.OPEN)
            self._sent(link.send((rfc6455.head(len(_HELLO)), _HELLO)))

    def _watch(self, link: Link, events: int) -> None:
        self._epoll.modify(link.fileno, events)

    def _reading(self, client: Client) -> int:
        return 0 if self._orders.deaf and client.state is State.LIVE else select.EPOLLIN

    def _sent(self, size: int) -> None:
        self._records.totals.sent_bytes += size

    # -- states ------------------------------------------------------------------------------------------------------

    def _enter(self, client: Client, event: str, happening: Happening) -> None:
        client.state = next_state(client.state, event)
        self._records.happened(time.monotonic(), client.number + self._orders.first, happening)

    def _wake(self, client: Client, at: float) -> None:
        client.timer = next(self._ids)
        heapq.heappush(self._timers, (at, client.timer, client))

    def _wakened(self, client: Client) -> None:
        """Its time to connect has come."""
        client.comes_back = False
        self._enter(client, "connect" if client.state is State.IDLE else "elapsed", Happening.ATTEMPT)
        client.lane, client.seq, client.served = "", -1, False
        client.link = link = Link(self._orders.address(client.number), 4096 if self._orders.deaf else 0)
        self._by_descriptor[link.fileno] = client
        self._epoll.register(link.fileno, select.EPOLLOUT)
        try:
            link.connect()
        except Broken:
            self._lost(client)

    def _lost(self, client: Client) -> None:
        draining = client.state is State.DRAINING
        self._back_off(client, "lost", client.reconnect_after if draining else self._wait(client), Happening.LOST)

    def _back_off(self, client: Client, event: str, wait: float, happening: Happening) -> None:
        """Drop the connection; come back after so many seconds."""
        self._enter(client, event, happening)
        self._drop_link(client)
        client.attempts += 1
        client.comes_back = event == "refused_for_now"
        if self._orders.returns and not self._over:
            self._wake(client, time.monotonic() + wait)

    def _drop_link(self, client: Client) -> None:
        link, client.link = client.link, None
        if link is not None:
            del self._by_descriptor[link.fileno]
            link.close()
        for record in client.unanswered.values():
            self._records.settle(record, CODES["lost"])
        client.unanswered.clear()
        self._release(client, "away")

    def _release(self, client: Client, outcome: str) -> None:
        if client.held >= 0:
            self._records.settle(client.held, CODES[outcome])
            client.held = -1

    def _wait(self, client: Client) -> float:
        """Full jitter, as in the client kit."""
        return self._random.random() * min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2.0 ** min(client.attempts, 16)) / 1000

    # -- events ------------------------------------------------------------------------------------------------------

    def _event(self, client: Client, payload: bytes) -> None:
        name, answer = _read_event(payload)
        if name == "result":
            self._result(client, answer)
        elif name == "dropped":
            self._answered(client, answer.seq, CODES[answer.reason])
        elif name == "error":
            errors = self._records.totals.errors
            errors[answer.code] = errors.get(answer.code, 0) + 1
            self._answered(client, next(reversed(client.unanswered), -1), CODES["error"])
        elif name != "pace":
            self._news(client, name, answer)

    def _news(self, client: Client, name: str, answer: Answer) -> None:
        """Whatever changes the client's state."""
        if name == "ready":
            client.attempts, client.lane, client.window = 0, answer.lane, answer.window
            self._enter(client, "ready", Happening.READY)
            if self._orders.deaf and client.link is not None:
                self._watch(client.link, 0)
            if self._orders.greets and self._start < math.inf and not self._over:
                now = time.monotonic()
                self._due(client, now, now)
        elif name == "waiting":
            self._enter(client, "waiting", Happening.WAITING)
        elif name == "drain":
            client.reconnect_after = answer.reconnect_after_ms / 1000
            self._enter(client, "drain", Happening.DRAIN)
            self._leave_when_answered(client)
        elif name == "refused":
            self._refused(client, answer.retry_after_ms)

    def _refused(self, client: Client, retry_after_ms: int | None) -> None:
        if retry_after_ms is not None:
            wait = retry_after_ms / 1000 + self._wait(client)
            self._back_off(client, "refused_for_now", wait, Happening.REFUSED)
            return
        self._enter(client, "refused", Happening.REFUSED)
        self._drop_link(client)

    def _result(self, client: Client, answer: Answer) -> None:
        if answer.lane and answer.lane != client.lane:
            self._records.totals.foreign += 1
            return
        if not client.served:
            client.served = True
            self._records.happened(time.monotonic(), client.number + self._orders.first, Happening.SERVED)
        self._answered(client, answer.seq, RESULT)

    def _answered(self, client: Client, seq: int, outcome: int) -> None:
        record = client.unanswered.pop(seq, -1)
        if record < 0:
            self._records.totals.wrong += 1
            return
        self._records.answer(record, time.monotonic(), outcome)
        if client.state is State.DRAINING:
            self._leave_when_answered(client)
        elif client.held >= 0:
            self._send_held(client)

    def _leave_when_answered(self, client: Client) -> None:
        if not client.unanswered:
            self._back_off(client, "all_answered", client.reconnect_after, Happening.LOST)

    # -- frames ------------------------------------------------------------------------------------------------------

    def _due(self, client: Client, intended: float, now: float) -> None:
        record = self._records.add(intended, now - intended, client.number + self._orders.first)
        if client.state is not State.LIVE:
            self._records.settle(record, CODES["waiting" if client.state is State.WAITING else "away"])
            return
        self._release(client, "replaced")
        client.held = record
        self._send_held(client)

    def _send_held(self, client: Client) -> None:
        link = client.link
        if client.held < 0 or link is None or link.unsent or client.state is not State.LIVE:
            return
        if self._orders.window == "follow" and len(client.unanswered) >= client.window:
            return
        record, client.held = client.held, -1
        client.seq = seq = client.seq + 1
        client.unanswered[seq] = record
        message = self._picture(client)
        message.head[message.seq_at : message.seq_at + 4] = seq.to_bytes(4, "big")
        try:
            self._sent(link.send((message.head, message.data)))
        except Broken:
            self._lost(client)
            return
        if link.unsent:
            self._watch(link, self._reading(client) | select.EPOLLOUT)

    def _picture(self, client: Client) -> FrameMessage:
        """What the client's camera sees now; each is at its own place of the clip."""
        return self._messages[(int(time.monotonic() * self._fps) + 7 * client.number) % len(self._messages)]
