"""The plain websocket at /ws: msgpack arrays, straight on ASGI.

    accept ──▶ hello (10 s) ──▶ admit ──▶ ready ──▶ frames …
                 └── refused, close 44xx

Nothing is made per frame but the frame: one decoder reads the message into ``(name, seq, view)``, the exchange takes
it, and answers go out through the lane's writer. The loop reads the next message when this one has been dealt with,
so a client that is too fast is slowed down by TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from msgspec import UNSET

from framelane.preprocess.packets import WEBSOCKET, encode_event
from framelane.server.errors import BadMessage, Refused
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane
from framelane.server.protocol import (
    CLOSE_CODES,
    SUBPROTOCOL,
    UNREADABLE,
    Close,
    Hello,
    Refusal,
    RefusedData,
    decode_websocket_frame,
    decode_websocket_hello,
    renewal_in,
)

from .explain import explain_msgpack
from .flow import room_in
from .gate import address_of
from .origin import check_origin
from .transport import Receive, Send, ShortCut, protocol_of
from .writer import SocketWriter, close, was_lost

_TURN = 32  # messages that one client may have dealt with before others get a turn of the event loop


class WebSocketDoor:
    """The ASGI application of /ws.

    Args:
        exchange: where clients and frames go.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one connection until it ends."""
        await receive()  # websocket.connect
        offered = SUBPROTOCOL in scope["subprotocols"]
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if offered else None})
        try:
            lane = await self._enter(scope, receive, send)
        except Refused as refusal:
            self._exchange.accounts.turned_away[refusal.code] += 1
            await _refuse(send, refusal)
            return
        if lane is None:
            return
        ended = None
        try:
            self._exchange.greet(lane)
            protocol = protocol_of(send)
            if protocol is not None:
                protocol.known()
                protocol.short_cut = self._short_cut(lane)
            ended = await self._serve(lane, receive)
            if ended is None:
                await close(send, Close.FLOOD, "too many bad messages")
        finally:
            self._exchange.disconnect(lane, lost=was_lost(ended))

    async def _enter(self, scope: Any, receive: Receive, send: Send) -> Lane | None:
        """The client's hello, and its lane; None if it went away."""
        if SUBPROTOCOL not in scope["subprotocols"]:
            raise Refused(f"open /ws with the subprotocol {SUBPROTOCOL}", code=Refusal.BAD_REQUEST)
        check_origin(scope["headers"], self._exchange.limits)
        hello = await self._hello(receive)
        if hello is None:
            return None
        writer = SocketWriter(send, WEBSOCKET, self._exchange.delivery)
        writer.lane = lane = self._exchange.admit(hello, WEBSOCKET, writer, address=address_of(scope))
        return lane

    async def _hello(self, receive: Receive) -> Hello | None:
        limit = self._exchange.limits.hello_timeout_s
        try:
            async with asyncio.timeout(limit):
                message = await receive()
        except TimeoutError:
            raise _TooLate(f"no hello within {limit:g} s", code=Refusal.BAD_REQUEST) from None
        if message["type"] != "websocket.receive":
            return None
        try:
            return decode_websocket_hello(message.get("bytes") or b"")
        except BadMessage as error:
            raise Refused(error.message, code=Refusal.BAD_REQUEST) from None

    def _short_cut(self, lane: Lane) -> ShortCut:
        """Deals with plain frames where they are parsed (``transport.py``); ``_serve`` deals with the rest."""
        take = self._exchange.frame

        def short_cut(message: bytes | str) -> bool:
            if isinstance(message, str):
                return False
            try:
                _name, seq, view = decode_websocket_frame(message)
            except UNREADABLE:
                return False
            return seq > lane.last_seq and not lane.queues and not lane.left and take(lane, seq, view)

        return short_cut

    async def _serve(self, lane: Lane, receive: Receive) -> dict[str, Any] | None:
        """Take frames until the client goes; the message that says so, or None if it has to be cut."""
        frame, count = self._exchange.frame, 0
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            data = message.get("bytes")
            try:
                _name, seq, view = decode_websocket_frame(data or b"")
            except UNREADABLE:
                going_on = self._other(lane, data)
            else:
                going_on = frame(lane, seq, view)
            if not going_on:
                return None
            if lane.queues and len(lane.jobs) >= lane.depth:
                await room_in(lane)
            count += 1
            if count % _TURN == 0:
                await asyncio.sleep(0)

    def _other(self, lane: Lane, data: bytes | None) -> bool:
        """Deal with a message that is no frame."""
        token = renewal_in(data) if data else None
        if token is not None:
            return self._exchange.renew(lane, token)
        return self._exchange.fault(lane, _fault(data))


class _TooLate(Refused):
    """The first message did not come in time; it has a close code of its own."""


def _fault(data: bytes | None) -> BadMessage:
    return BadMessage("a text message: /ws takes binary ones") if data is None else explain_msgpack(data)


async def _refuse(send: Send, refusal: Refused) -> None:
    """Say why, and close. The client has no lane, so this is the one event that is not delivered to one."""
    after = UNSET if refusal.retry_after_ms is None else refusal.retry_after_ms
    data = RefusedData(code=refusal.code, message=refusal.message, retry_after_ms=after)
    code = Close.NO_HELLO if isinstance(refusal, _TooLate) else CLOSE_CODES[refusal.code]
    with contextlib.suppress(OSError):  # it may have gone already
        await send({"type": "websocket.send", "bytes": encode_event(WEBSOCKET, "refused", data)})
        await close(send, code, refusal.code)
