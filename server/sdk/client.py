"""Framelane's client for asyncio, over ``/ws``::

    async with Client("http://localhost:8000") as client:
        client.send(jpeg)                               # the newest picture; it replaces one that could not go yet
        async for result in client.results():
            print(result.seq, result.fields["faces"], result.round_trip_ms)
            client.send(camera())

or one picture at a time: ``result = await client.infer(jpeg)``. The states are those of ``framelane.server.protocol``;
``session.py`` decides, this module does the I/O. It needs only ``websockets`` and ``msgspec``. For Socket.IO use any
stock client.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import UNSET, Raw

from framelane.server.errors import FramelaneError, Refused
from framelane.server.protocol import (
    Drain,
    Dropped,
    Error,
    Expires,
    Fault,
    Hello,
    Notice,
    Pace,
    Policy,
    Ready,
    RefusedData,
    Renew,
    Waiting,
)

from .connection import Connection
from .session import Counts, Picture, Sent, Session, Situation
from .states import State

RETRY_WRITE_S: Final = 0.004
KEPT_RESULTS: Final = 8
"""Per iterator whose reader is slower than the server; the oldest go first."""

_NO_TRANSPORT: Final = (State.IDLE, State.BACKOFF, State.CLOSED)
_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Result(msgspec.Struct, frozen=True):
    """The answer to a frame: the pipeline's fields, and `timing` (queue_ms, preprocess_ms, inference_ms, total_ms)."""

    seq: int
    fields: dict[str, Any]
    timing: dict[str, float]
    round_trip_ms: float
    context: Any


class Unanswered(FramelaneError):
    """A frame that gets no result. `code` is one of ``protocol.Drop``, "lost" with its connection, or "error"."""

    code = "lost"
    retryable = True

    def __init__(self, message: str, *, code: str, seq: int, context: Any = None) -> None:
        super().__init__(message, code=code)
        self.seq = seq
        self.context = context


Answer = Result | Unanswered
TokenSource = Callable[[], Awaitable[str]]
"""Gives a token that has not been used yet: asked before each connection, and when a token is to be renewed."""

_encode = msgspec.msgpack.Encoder().encode
_event = msgspec.msgpack.Decoder(tuple[str, Raw]).decode
_result = msgspec.msgpack.Decoder(dict[str, Any]).decode
_dropped = msgspec.msgpack.Decoder(Dropped).decode
_error = msgspec.msgpack.Decoder(Error).decode


class Client:
    """One client of a Framelane server, which reconnects by itself.

    Args:
        url: of the server; ``http``, ``https``, ``ws`` and ``wss`` are the same here.
        token: what the server may ask for. Signed tokens last for minutes and open one connection each: give a source
            of them, and the client renews them for as long as it streams.
        pipeline: to be refused by a server that runs another one.
        policy: "latest" or "queue", see DESIGN's lanes; with "queue" await `room` before each `send`.
        paced: False sends as fast as the window allows, whatever the server asks for.
        on_answer: called with every `Result` and every `Unanswered`.
        on_situation: called when the state, or what is known about it, changes.
        on_notice: called with what an operator has to say, a text for people.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | TokenSource | None = None,
        pipeline: str | None = None,
        policy: Policy | None = None,
        paced: bool = True,
        on_answer: Callable[[Answer], None] | None = None,
        on_situation: Callable[[Situation], None] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self._uri = _websocket_uri(url)
        self._source = token if callable(token) else None
        self._hello = Hello(token=None if callable(token) else token, pipeline=pipeline, policy=policy)
        self._session = Session(paced=paced)
        self._told = self._session.situation
        self._on_answer = on_answer
        self._on_situation = on_situation
        self._on_notice = on_notice
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._readers: list[deque[Result]] = []
        self._news: asyncio.Future[None] | None = None
        self._leaving: Connection | None = None

    @property
    def situation(self) -> Situation:
        """The state, and what a person should know about it."""
        return self._session.situation

    @property
    def terms(self) -> Ready | None:
        """What the server said in `ready`; None before."""
        return self._session.terms

    @property
    def counts(self) -> Counts:
        """Since this client was made. It goes on counting: copy what you keep."""
        return self._session.counts

    @property
    def interval_ms(self) -> float:
        """Milliseconds between two frames, as the server and the load allow now."""
        return self._session.pace.interval

    @property
    def has_room(self) -> bool:
        """Whether a picture sent now goes out now: ask before encoding one."""
        return self._connection is not None and self._connection.writable and self._session.has_room(_now())

    def connect(self) -> None:
        """Begin to connect, and to reconnect whenever the connection is lost; needs a running event loop."""
        self._session.connect(_now())
        self._settle()

    def close(self) -> None:
        """Say goodbye. Unanswered frames are lost."""
        self._session.close()
        self._settle()

    async def wait_closed(self) -> None:
        """After `close`: wait until the connection is gone."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        if self._leaving is not None:
            await self._leaving.wait_closed()

    def send(self, data: Picture, context: Any = None) -> None:
        """Send the newest picture: a JPEG, PNG or WebP.

        Never waits and never piles up: a picture that cannot go yet is kept until it can, or until a newer one
        comes. `context` comes back with the answer. The data must not change until then.

        Raises:
            ValueError: it is larger than the server reads.
        """
        self._session.offer(data, context)
        self._settle()

    async def ready(self) -> Ready:
        """Wait until frames can be sent. Lost connections are tried again, so bound it with ``asyncio.timeout``.

        Raises:
            Refused: the server does not take this client.
        """
        while self.situation.state is not State.LIVE:
            if self.situation.state is State.CLOSED:
                raise Refused(self.situation.message or "closed", code=self.situation.reason or "closed")
            await self._wait()
        assert self.terms is not None
        return self.terms

    async def room(self) -> None:
        """Wait until a picture sent now goes out now.

        Raises:
            Refused: the client is closed.
        """
        while not self.has_room:
            await self.ready()
            if not self.has_room:
                at = self._session.room_at
                await self._wait(None if at == math.inf else max(RETRY_WRITE_S, (at - _now()) / 1000))

    async def infer(self, data: Picture) -> Result:
        """Send this picture as soon as there is room, and wait for its result.

        Raises:
            Unanswered: there is none; `code` says why.
            Refused: the client is closed.
        """
        await self.room()
        asked: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.send(data, asked)
        return await asked

    async def results(self) -> AsyncIterator[Result]:
        """Results as they come, until the client is closed. A reader that falls behind misses the oldest."""
        mine: deque[Result] = deque(maxlen=KEPT_RESULTS)
        self._readers.append(mine)
        try:
            while mine or self.situation.state is not State.CLOSED:
                if mine:
                    yield mine.popleft()
                else:
                    await self._wait()
        finally:
            self._readers[:] = [reader for reader in self._readers if reader is not mine]

    async def __aenter__(self) -> Client:
        self.connect()
        try:
            await self.ready()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.situation.state is not State.CLOSED:
            self.close()
        await self.wait_closed()

    def _settle(self) -> None:
        """Make the world fit the session, and tell the application what is new."""
        self._fit_connection()
        self._pump()
        for sent in self._session.take_lost():
            self._tell(sent, Unanswered("the connection was lost", code="lost", seq=sent.seq, context=sent.context))
        if self._told is not self._session.situation:
            self._told = self._session.situation
            self._wake()
            if self._on_situation is not None:
                self._on_situation(self._told)

    def _fit_connection(self) -> None:
        state = self._session.state
        if state in _NO_TRANSPORT:
            if self._connection is not None:
                self._connection.close()
                self._connection, self._leaving = None, self._connection
            if state is State.CLOSED:
                for task in (self._opening, self._renewing):
                    if task is not None:
                        task.cancel()
        elif state is State.CONNECTING and self._connection is None:
            self._connection = Connection(self._uri, self._opened, self._received, self._lost)
            self._opening = asyncio.get_running_loop().create_task(self._open(self._connection))

    async def _open(self, connection: Connection) -> None:
        token = await self._token(connection)
        if token is not None:
            self._hello = msgspec.structs.replace(self._hello, token=token)
        if connection is self._connection:
            await connection.open()

    async def _renew(self, connection: Connection) -> None:
        token = await self._token(connection, "")
        if token and connection is self._connection and connection.writable:
            connection.send(_encode(("renew", Renew(token=token))))

    async def _token(self, connection: Connection, otherwise: str | None = None) -> str | None:
        """Another token; the connection is given up if the source has none, unless there is something otherwise."""
        if self._source is None:
            return None
        try:
            return await self._source()
        except Exception as error:
            if connection is self._connection and otherwise is None:
                self._lost(f"there is no token: {error}")
            return otherwise

    def _pump(self) -> None:
        """Send what may be sent, and come back when time alone can change that."""
        now = _now()
        if self._connection is not None and self._session.takes_token(now):
            self._renewing = asyncio.get_running_loop().create_task(self._renew(self._connection))
        if self._connection is not None and self._connection.writable:
            frame = self._session.take(now)
            if frame is not None:
                self._connection.send(_encode(("frame", frame.seq, frame.data)))
        blocked = self._session.wants(now)
        wake_at = now + 1000 * RETRY_WRITE_S if blocked else self._session.wake_at
        if wake_at < self._timer_at:  # a timer that comes too early does no harm, and is cheaper than a new one
            self._set_timer(wake_at)
        elif self._session.state is State.CLOSED:
            self._set_timer(math.inf)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, at
        if at < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - _now()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._session.tick(_now())
        self._settle()

    def _opened(self) -> None:
        assert self._connection is not None
        if self._connection.writable:  # else the server has closed it in the same breath, which is told in a moment
            hello = msgspec.structs.replace(self._hello, resume=self._session.ticket)
            self._connection.send(_encode(["hello", hello]))
        self._session.opened(_now())
        self._settle()

    def _lost(self, reason: str) -> None:
        self._session.lost(_now(), reason)
        self._settle()

    def _received(self, message: bytes) -> None:
        now = _now()
        self._session.heard(now)
        try:
            name, body = _event(message)
            self._take_event(now, name, body)
        except msgspec.MsgspecError as error:
            self._session.lost(now, f"not a message of this protocol: {error}")
        self._settle()

    def _take_event(self, now: float, name: str, body: Raw) -> None:
        if name == "result":
            self._take_result(now, _result(body))
        elif name == "dropped":
            dropped = _dropped(body)
            sent = self._session.dropped(now, dropped)
            message = dropped.reason.value if dropped.message is UNSET else dropped.message
            self._tell(sent, _unanswered(sent, message, dropped.reason))
        elif name == "error":
            error = _error(body)
            if error.code != Fault.BAD_TOKEN:  # that is no answer to a frame
                sent = self._session.error(now)
                self._tell(sent, _unanswered(sent, error.message, "error"))
        else:
            self._take_news(now, name, body)

    def _take_news(self, now: float, name: str, body: Raw) -> None:
        decode = msgspec.msgpack.decode
        if name == "ready":
            self._session.ready(decode(body, type=Ready))
        elif name == "waiting":
            self._session.waiting(decode(body, type=Waiting))
        elif name == "pace":
            self._session.paced(decode(body, type=Pace))
        elif name == "expires":
            if self._source is not None:
                self._session.expires(now, decode(body, type=Expires))
        elif name == "drain":
            self._session.drain(now, decode(body, type=Drain))
        elif name == "refused":
            self._session.refused(now, decode(body, type=RefusedData))
        elif name == "notice" and self._on_notice is not None:
            self._on_notice(decode(body, type=Notice).text)

    def _take_result(self, now: float, fields: dict[str, Any]) -> None:
        seq = fields.pop("seq")
        sent = self._session.result(now, seq)
        if sent is not None:
            self._tell(sent, Result(seq, fields, fields.pop("timing", {}), now - sent.at, sent.context))

    def _tell(self, sent: Sent | None, answer: Answer | None) -> None:
        """Give an answer to whoever waits for it."""
        if sent is None or answer is None:
            return
        if isinstance(sent.context, asyncio.Future):
            _settle_future(sent.context, answer)
        if isinstance(answer, Result):
            for reader in self._readers:
                reader.append(answer)
        if self._on_answer is not None:
            self._on_answer(answer)
        self._wake()

    async def _wait(self, timeout: float | None = None) -> None:
        """Until something happened."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._news,), timeout=timeout)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set_result(None)
            self._news = None


def _unanswered(sent: Sent | None, message: str, code: str) -> Unanswered | None:
    return None if sent is None else Unanswered(message, code=code, seq=sent.seq, context=sent.context)


def _settle_future(future: asyncio.Future[Result], answer: Answer) -> None:
    if future.done():
        return
    if isinstance(answer, Result):
        future.set_result(answer)
    else:
        future.set_exception(answer)


def _now() -> float:
    return time.monotonic() * 1000


def _websocket_uri(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"{url!r} is no address of a server: http, https, ws or wss")
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, "", ""))
