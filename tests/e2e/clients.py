"""A client in any of the three flavours, on raw websocket messages: it counts what it sends and checks what it gets.

Stock clients are tested in ``test_clients.py``; this one can also be rude.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Self

import msgspec
from e2e.servers import PATIENCE_S
from socketio.packet import BINARY_EVENT, EVENT, Packet
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from framelane.server.protocol import SUBPROTOCOL

FLAVOURS = ("websocket", "socketio", "msgpack")


class Answer(NamedTuple):
    """What came for one frame: "result" or "dropped", and its object."""

    name: str
    fields: dict[str, Any]

    @property
    def reason(self) -> str:
        """Why it was dropped; empty for a result."""
        return self.fields.get("reason", "")


class Client:
    """One connection.

    Args:
        port: of the server.
        flavour: one of ``FLAVOURS``.
        hello: what it says of itself.

    Attributes:
        sent, results, dropped, errors: counts of frames and answers; errors by code, dropped by reason.
        strays: answers to frames that this connection has not sent, or had answered already. There must be none.
        notices: every other event, in order.
    """

    def __init__(self, port: int, flavour: str = "websocket", hello: dict[str, Any] | None = None) -> None:
        self.flavour = flavour
        self.sent = 0
        self.results = 0
        self.dropped: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.complaints: list[dict[str, Any]] = []
        self.strays: list[Answer] = []
        self.notices: list[tuple[str, Any]] = []
        self.closed = asyncio.Event()
        self.close_code: int | None = None
        self._port = port
        self._hello = hello or {}
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._event = asyncio.Event()
        self._partial: Packet | None = None
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    # -- connection --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and say hello; what the server says to that is waited for elsewhere."""
        plain = self.flavour == "websocket"
        path = "/ws" if plain else "/socket.io/?EIO=4&transport=websocket"
        self._socket = await connect(
            f"ws://127.0.0.1:{self._port}{path}",
            subprotocols=[SUBPROTOCOL] if plain else None,
            compression=None,
            max_size=None,
            ping_interval=None,
            open_timeout=PATIENCE_S,
            close_timeout=5,
        )
        self._reader = asyncio.create_task(self._read())
        if plain:
            await self.send(msgspec.msgpack.encode(["hello", self._hello]))
        elif self.flavour == "socketio":
            await self.send("40" + msgspec.json.encode(self._hello).decode())
        else:
            await self.send(msgspec.msgpack.encode({"type": 0, "nsp": "/", "data": self._hello}))

    async def ready(self) -> dict[str, Any]:
        """What `ready` said."""
        return await self.notice("ready")

    async def close(self) -> None:
        """Leave politely."""
        if self._socket is not None and self._reader is not None:
            await self._socket.close()
            await self._reader

    async def abort(self) -> None:
        """Be gone, as a phone in a tunnel is."""
        if self._socket is not None and self._reader is not None:
            self._socket.transport.abort()
            await self._reader

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(self, *messages: str | bytes) -> None:
        """Send raw messages. On a closed connection this does nothing: it is the server's to end one."""
        assert self._socket is not None
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                await self._socket.send(message)

    async def send_event(self, name: Any, *args: Any) -> None:
        """Send any event, whatever sense it makes."""
        await self.send(*encode_event(self.flavour, name, *args))

    async def send_frame(self, seq: int, data: bytes) -> asyncio.Future[Answer]:
        """Send a frame; the future has its answer, or is cancelled when the connection ends before it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[seq] = future
        self.sent += 1
        await self.send_event("frame", seq, data)
        return future

    async def ask(self, seq: int, data: bytes) -> Answer:
        """Send a frame and wait for its answer."""
        return await asyncio.wait_for(await self.send_frame(seq, data), PATIENCE_S)

    # -- what came ---------------------------------------------------------------------------------------------------

    @property
    def unanswered(self) -> int:
        """Frames that have no answer."""
        return len(self._waiting)

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of ``condition``, looked at whenever something comes; fails when the connection ends."""
        async with asyncio.timeout(PATIENCE_S):
            while not (value := condition()):
                assert not self.closed.is_set(), f"closed ({self.close_code}) while waiting: {what}"
                self._event.clear()
                await self._event.wait()
        return value

    async def all_answered(self) -> None:
        """Wait until no frame is unanswered, or the connection has ended."""
        await self.until(lambda: not self._waiting or self.closed.is_set(), "all frames are answered")

    async def notice(self, name: str) -> Any:
        """The object of the first event of that name."""
        return (await self.until(lambda: [found for found in self.notices if found[0] == name], name))[0][1]

    async def complaint(self, count: int = 1) -> dict[str, Any]:
        """The ``count``-th `error`."""
        await self.until(lambda: len(self.complaints) >= count, f"error number {count}")
        return self.complaints[count - 1]

    async def _read(self) -> None:
        assert self._socket is not None
        try:
            async for message in self._socket:
                event = await self._decode(message)
                if event is not None:
                    self._take(*event)
                    self._event.set()
        except ConnectionClosed:
            pass
        finally:
            self.close_code = self._socket.close_code
            for future in self._waiting.values():
                future.cancel()
            self.closed.set()
            self._event.set()

    async def _decode(self, message: str | bytes) -> tuple[str, Any] | None:
        """An event as (name, first argument); None for what is none."""
        if self.flavour == "websocket":
            name, *args = msgspec.msgpack.decode(message)
            return name, args[0]
        if message == "2":
            await self.send("3")
            return None
        packet = self._packet(message)
        if packet is None:
            return None
        if packet["type"] == 4:
            return "connect_error", packet["data"]
        return (packet["data"][0], packet["data"][1]) if packet["type"] == EVENT else None

    def _packet(self, message: str | bytes) -> dict[str, Any] | None:
        """A whole Socket.IO packet, if this message completes one."""
        if self.flavour == "msgpack":
            return msgspec.msgpack.decode(message) if isinstance(message, bytes) else None
        if isinstance(message, bytes):
            assert self._partial is not None
            if not self._partial.add_attachment(message):
                return None
            packet, self._partial = self._partial, None
        elif message[:1] != "4":
            return None
        else:
            packet = Packet(encoded_packet=message[1:])
            if packet.packet_type == BINARY_EVENT:
                self._partial = packet
                return None
        kind = EVENT if packet.packet_type == BINARY_EVENT else packet.packet_type
        return {"type": kind, "data": packet.data}

    def _take(self, name: str, fields: Any) -> None:
        if name == "error":
            self.errors[fields["code"]] += 1
            self.complaints.append(fields)
        elif name in ("result", "dropped"):
            self._answer(Answer(name, fields))
        else:
            self.notices.append((name, fields))

    def _answer(self, answer: Answer) -> None:
        future = self._waiting.pop(answer.fields["seq"], None)
        if future is None:
            self.strays.append(answer)
            return
        if answer.name == "result":
            self.results += 1
        else:
            self.dropped[answer.reason] += 1
        future.set_result(answer)


def encode_event(flavour: str, name: Any, *args: Any) -> list[str | bytes]:
    """An event as the messages of a flavour."""
    if flavour == "websocket":
        return [msgspec.msgpack.encode([name, *args])]
    if flavour == "msgpack":
        return [msgspec.msgpack.encode({"type": 2, "nsp": "/", "data": [name, *args]})]
    encoded = Packet(EVENT, data=[name, *args]).encode()
    text, *attachments = encoded if isinstance(encoded, list) else [encoded]
    return ["4" + text, *attachments]


@contextlib.asynccontextmanager
async def bystander(port: int, data: bytes, flavour: str = "websocket") -> AsyncIterator[Client]:
    """A client that does nothing but what it should, all the while: each of its frames must get a result."""
    async with Client(port, flavour) as client:
        stopping = asyncio.Event()

        async def stream() -> None:
            seq = 0
            while not stopping.is_set():
                answer = await client.ask(seq, data)
                assert answer.name == "result", f"a bystander's frame was not served: {answer}"
                seq += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), 0.05)

        streaming = asyncio.create_task(stream())
        try:
            yield client
            await client.until(lambda: client.results >= 3 or streaming.done(), "a bystander is served")
        finally:
            stopping.set()
            await streaming
        assert not client.strays


@contextlib.asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Client]]:
    """Clients of all flavours in turn, each `ready`; whatever happens, they are gone afterwards."""
    clients = [Client(port, FLAVOURS[number % len(FLAVOURS)]) for number in range(count)]
    try:
        await all_of(*(client.open() for client in clients))
        await all_of(*(client.ready() for client in clients))
        yield clients
    finally:
        await asyncio.gather(*(client.abort() for client in clients))


async def outcomes(futures: Iterable[asyncio.Future[Answer]]) -> list[str]:
    """Wait for answers: "result", a reason, or "lost" with the connection, sorted."""
    futures = list(futures)
    await asyncio.wait(futures, timeout=PATIENCE_S)
    assert all(future.done() for future in futures), "some frames have no answer"
    return sorted("lost" if future.cancelled() else future.result().reason or "result" for future in futures)


async def all_of(*work: Awaitable[Any]) -> list[Any]:
    """Wait for all of it; the first that fails cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_awaited(part)) for part in work]
    return [task.result() for task in tasks]


async def _awaited(part: Awaitable[Any]) -> Any:
    return await part
