"""Engine.IO version 4 over one websocket, written for frames: no task, queue or wall clock per message.

    open ──▶ CONNECT (10 s) ──▶ lane: frames …      every 25 s a ping; silent for 20 s after one: cut
               └── connect_error, and the socket may try again, within the same 10 s

python-socketio owns the handshake above it (namespaces, the connect handler, refusals). This part finds out which
parser the client speaks from its first packet, hands frames to the exchange, and takes everything apart when the
connection ends, however it ends. Any message counts as a sign of life, since a pong is read in line behind frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from framelane.preprocess.packets import SOCKETIO, SOCKETIO_MSGPACK
from framelane.server.errors import BadMessage
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane
from framelane.server.protocol import (
    UNREADABLE,
    Cut,
    decode_socketio_header,
    decode_socketio_msgpack,
    max_message_bytes,
    renewal_in,
)

from .flow import room_in
from .parsers import Envelope, Kind, explain, open_binary, open_text, packet
from .transport import Receive, Send, protocol_of
from .writer import SocketWriter, close, events, was_lost

log = logging.getLogger(__name__)

PING_INTERVAL_S = 25  # whole seconds: they reach clients as such
PING_TIMEOUT_S = 20
_RETRY_PING_S = 1.0
_MOST_CONNECTS = 8
_MOST_SKIPPED = 16
_TURN = 32  # messages that one client may have dealt with before others get a turn of the event loop


class Handshake(Protocol):
    """What a connection asks of Socket.IO above it."""

    async def connect(self, connection: Connection, envelope: Envelope) -> None:
        """Decide about a CONNECT, and answer it; sets ``connection.lane`` if it is let in."""

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""


class Connection:
    """One Engine.IO socket.

    Attributes:
        sid: its Engine.IO id.
        flavour: of its packets; None until its first one.
        lane: once it is connected.
    """

    def __init__(
        self, sid: str, scope: Any, receive: Receive, asgi: Send, exchange: Exchange, above: Handshake
    ) -> None:
        self.sid = sid
        self.scope = scope
        self.flavour: int | None = None
        self.lane: Lane | None = None
        self.writer: SocketWriter | None = None
        self._receive = receive
        self._asgi = asgi
        self._exchange = exchange
        self._above = above
        self._awaited: tuple[int, int | None] | None = None  # seq and ack id of a header whose attachment is to come
        self._skipped = 0  # attachments still to come of an event that was refused
        self._heard = True
        self._lost = False
        self._connects = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the connection until it ends."""
        self._after(self._exchange.limits.hello_timeout_s, self._check_connected)
        try:
            await self._open()
            await self._serve()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self.lane is not None:
                self._exchange.disconnect(self.lane, lost=self._lost)
            self._above.forget(self)
        await self.close()

    def attach(self, lane: Lane, writer: SocketWriter) -> None:
        """The client was let in."""
        self.lane = writer.lane = lane
        self.writer = writer
        protocol = protocol_of(self._asgi)
        if protocol is not None:
            protocol.known()
            if not lane.queues:
                protocol.short_cut = self._short_cut
        self._after(PING_INTERVAL_S, self._ping)

    def new_writer(self, flavour: int) -> SocketWriter:
        """A writer for the lane that this connection is about to get."""
        return SocketWriter(self._asgi, flavour, self._exchange.delivery, packet(flavour, Kind.DISCONNECT))

    async def say(self, finished: bytes) -> None:
        """Send a packet of the handshake; in its lane, in line with all else, as soon as there is one."""
        if self.lane is not None:
            if not self.lane.left:
                self._exchange.delivery.deliver(self.lane, finished, control=True)
            return
        for event in events(self.flavour or SOCKETIO, finished):
            await self._asgi(event)

    async def close(self) -> None:
        """Close the websocket."""
        await close(self._asgi, 1000)

    # -- messages ----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        description = {
            "sid": self.sid,
            "upgrades": [],
            "pingInterval": PING_INTERVAL_S * 1000,
            "pingTimeout": PING_TIMEOUT_S * 1000,
            "maxPayload": max_message_bytes(self._exchange.limits.max_frame_bytes),
        }
        await self._asgi({"type": "websocket.accept"})
        await self._asgi({"type": "websocket.send", "text": "0" + msgspec.json.encode(description).decode()})

    async def _serve(self) -> None:
        receive, count = self._receive, 0
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                self._lost = was_lost(message)
                return
            self._heard = True
            text = message.get("text")
            outcome = self._binary(message["bytes"]) if text is None else self._text(text)
            if outcome is not True and (outcome is False or not await self._packet(outcome)):
                return
            lane = self.lane
            if lane is not None and lane.queues and len(lane.jobs) >= lane.depth:
                await room_in(lane)
                self._heard = True
            count += 1
            if count % _TURN == 0:
                await asyncio.sleep(0)

    def _short_cut(self, message: bytes | str) -> bool:
        """Deals with plain frames where they are parsed (``transport.py``); ``_serve`` deals with the rest."""
        lane = cast(Lane, self.lane)
        if isinstance(message, str):
            if message[:5] != "451-[" or self._awaited is not None:
                return False
            try:
                self._awaited = (decode_socketio_header(message[4:])[1], None)
            except UNREADABLE:
                return False
            self._skipped = 0
        elif self._awaited is not None:
            seq, number = self._awaited
            if seq <= lane.last_seq or number is not None or lane.left:
                return False
            self._awaited = None
            self._exchange.frame(lane, seq, message)
        elif self.flavour == SOCKETIO_MSGPACK:
            try:
                event = decode_socketio_msgpack(message)
            except UNREADABLE:
                return False
            _name, seq, view = event.data
            if seq <= lane.last_seq or event.id is not None or lane.left:
                return False
            self._exchange.frame(lane, seq, view if isinstance(view, memoryview) else memoryview(view.data))
        else:
            return False
        self._heard = True
        return True

    def _text(self, text: str) -> bool | Envelope:
        """Deal with a text message: True to go on, False to end, or a packet that is no plain frame."""
        self._skipped = 0
        if text[:5] == "451-[" and self._awaited is None and self.lane is not None:
            try:
                self._awaited = (decode_socketio_header(text[4:])[1], None)
                return True
            except UNREADABLE:
                pass
        if text[:1] != "4":
            return text in ("3", "6")  # pong, noop; "1" is the end, and so is anything else
        if self._awaited is not None:
            self._awaited = None
            if not self._fault(BadMessage("a packet came in place of the attachment that was announced")):
                return False
        if self.flavour is None:
            self.flavour = SOCKETIO
        elif self.flavour != SOCKETIO:
            return self._fault(BadMessage("a text packet on a connection that speaks msgpack"))
        try:
            return open_text(text[1:])
        except BadMessage as error:
            return self._fault(error)

    def _binary(self, data: bytes) -> bool | Envelope:
        """Deal with a binary message, as ``_text``."""
        if self._awaited is not None:
            (seq, number), self._awaited = self._awaited, None
            return self._frame(seq, data, number)
        if self.flavour == SOCKETIO_MSGPACK and self.lane is not None:
            try:
                event = decode_socketio_msgpack(data)
            except UNREADABLE:
                pass
            else:
                _name, seq, view = event.data
                return self._frame(seq, view if isinstance(view, memoryview) else memoryview(view.data), event.id)
        if self._skipped:
            self._skipped -= 1
            return True
        if self.flavour is None:
            self.flavour = SOCKETIO_MSGPACK
        elif self.flavour != SOCKETIO_MSGPACK:
            return self._fault(BadMessage("an attachment that was not announced"))
        try:
            return open_binary(data)
        except BadMessage as error:
            return self._fault(error)

    def _frame(self, seq: int, data: bytes | memoryview, number: int | None) -> bool:
        lane = cast(Lane, self.lane)
        going_on = self._exchange.frame(lane, seq, data)
        if number is not None:
            self._exchange.delivery.deliver(lane, packet(lane.flavour, Kind.ACK, [], None, number))
        return going_on

    async def _packet(self, envelope: Envelope) -> bool:
        """Deal with whatever is no plain frame. False ends the connection."""
        if envelope.kind == Kind.CONNECT:
            self._connects += 1
            await self._above.connect(self, envelope)
            return self._connects < _MOST_CONNECTS
        if self.lane is None or (envelope.kind == Kind.DISCONNECT and envelope.namespace == "/"):
            return False
        if envelope.attachments and isinstance(envelope.payload, str):
            return self._header(envelope, envelope.payload)
        if envelope.kind == Kind.EVENT and envelope.namespace == "/":
            token = renewal_in(envelope.payload)
            if token is not None:
                return self._exchange.renew(self.lane, token)
        return self._fault(explain(envelope))

    def _header(self, envelope: Envelope, payload: str) -> bool:
        """Text that announces attachments: a frame that wants an ack, or something whose attachments are not wanted."""
        if envelope.kind == Kind.BINARY_EVENT and envelope.attachments == 1 and envelope.namespace == "/":
            with contextlib.suppress(*UNREADABLE):
                self._awaited = (decode_socketio_header(payload)[1], envelope.id)
                return True
        self._skipped = envelope.attachments if envelope.attachments <= _MOST_SKIPPED else 0
        return self._fault(explain(envelope))

    def _fault(self, error: BadMessage) -> bool:
        """Answer a bad message; before there is a lane, and after too many, it ends the connection."""
        return self.lane is not None and self._exchange.fault(self.lane, error)

    # -- time --------------------------------------------------------------------------------------------------------

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, call)

    def _check_connected(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.close())

    def _ping(self) -> None:
        if self.writer is None or not self.writer.ping("2"):
            self._after(_RETRY_PING_S, self._ping)
            return
        self._heard = False
        self._after(PING_TIMEOUT_S, self._check_heard)

    def _check_heard(self) -> None:
        if self._heard:
            self._after(max(0, PING_INTERVAL_S - PING_TIMEOUT_S), self._ping)
        elif self.writer is not None:
            self._exchange.accounts.cut[Cut.SILENT] += 1
            self.writer.abort()
