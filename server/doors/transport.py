"""uvicorn's websocket protocol, with a short cut for frames.

By ASGI, every message goes through a queue to a task that is woken for it, while reading is paused and resumed around
it: about a third of the gateway's work for a frame. A door may therefore set a *short cut*, which is called with each
message in the very call that has parsed it. It deals with what is plain and hot, and declines all else, which then
takes the long way, as does everything while the door's own loop is busy: the order of messages is never changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
ShortCut = Callable[[bytes | str], bool]

_TURN = 32  # messages of one read that may take the short cut before other clients get a turn of the event loop


class GatewayProtocol(WebSocketsSansIOProtocol):
    """One websocket connection. Everything not said here is uvicorn's."""

    short_cut: ShortCut | None = None
    _idle = False
    _left_in_turn = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        gate = getattr(self.app, "gate", None)
        if gate is not None:
            gate.left(self)
        super().connection_lost(exc)

    def known(self) -> None:
        """The client has a lane: it is no stranger any more (``gate.py``)."""
        gate = getattr(self.app, "gate", None)
        if gate is not None:
            gate.known(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have come from the client."""
        self._left_in_turn = _TURN
        super().data_received(data)

    def send_receive_event_to_app(self) -> None:
        """A message is complete."""
        hot = self._idle and self._left_in_turn and not self.close_sent
        if hot and self.short_cut is not None and len(self.frames) == 1:
            self._left_in_turn -= 1
            message = self.frames[0]
            if self.curr_msg_data_type == "bytes" and self.short_cut(message):
                self.frames = []
                return
            if self.curr_msg_data_type == "text" and self._text_taken(self.short_cut, message):
                self.frames = []
                return
        self._idle = False
        super().send_receive_event_to_app()

    def handle_bytes(self, event: Frame) -> None:
        """A binary frame is complete. The parser would keep it, a megabyte perhaps, until the client's next one."""
        super().handle_bytes(event)
        event.data = b""

    async def receive(self) -> Any:
        """The next message that has not taken the short cut. As ASGI's ``receive``."""
        self._idle = self.queue.empty()
        message = await super().receive()
        self._idle = False
        return message

    def write_message(self, message: bytes | str) -> bool:
        """Write a whole message now. False if the transport takes none at the moment, or none any more."""
        if self.close_sent or self.disconnected or not self.writable.is_set():
            return False
        try:
            if isinstance(message, str):
                self.conn.send_text(message.encode())
            else:
                self.conn.send_binary(message)
        except InvalidState:  # the client has begun to close
            return False
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    @staticmethod
    def _text_taken(short_cut: ShortCut, message: bytes) -> bool:
        try:
            text = message.decode()
        except UnicodeDecodeError:
            return False
        return short_cut(text)


def protocol_of(asgi: Send) -> GatewayProtocol | None:
    """The protocol behind an ASGI ``send``, where it is ours."""
    protocol = getattr(asgi, "__self__", None)
    return protocol if isinstance(protocol, GatewayProtocol) else None
