"""uvicorn's HTTP protocol with bounds that it lacks: on a head's size and time, and on connections (``gate.py``).

It collects path and headers for as long as they come: 100 MiB of one header were 100 MiB of the gateway. Websockets
begin as such a request, too. Bodies are bounded where they are read (``http.py``), messages by ``ws_max_size``.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .gate import RETRY_S, Gate

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 10.0
_LINGER_S = 1.0

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

TOO_MANY = b'{"code":"rate_limited","message":"too many connections from this address","retry_after_ms":%d}' % (
    1000 * RETRY_S
)
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"retry-after: %d\r\ncontent-length: %d\r\n\r\n%s" % (RETRY_S, len(TOO_MANY), TOO_MANY)
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection. Everything not said here is uvicorn's."""

    _head_bytes = 0
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _gate: Gate | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected, and has a while to say what it wants."""
        super().connection_made(transport)
        self._gate = getattr(self.app, "gate", None)
        if self._gate is not None and not self._gate.knock(self, self.client[0] if self.client else ""):
            self._refuse()
        else:
            self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._end_head()
        if self._gate is not None:
            self._gate.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._give_up(_TOO_LARGE)

    def handle_websocket_upgrade(self) -> None:
        """The request was for a websocket, whose protocol takes the connection over."""
        super().handle_websocket_upgrade()
        if self._gate is not None:
            self._gate.replace(self, self.transport.get_protocol())

    def on_message_begin(self) -> None:
        """A request begins: the first one, or another on the same connection."""
        super().on_message_begin()
        if not self._in_head:
            self._begin_head()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        limit_s = HEAD_TIMEOUT_S
        if self._gate is not None:
            self._gate.stranger(self)
            limit_s = self._gate.head_s or HEAD_TIMEOUT_S
        self._head_timer = self.loop.call_later(limit_s, self._give_up, _TOO_SLOW)

    def _end_head(self) -> None:
        self._in_head = False
        if self._gate is not None:
            self._gate.known(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self, answer: bytes) -> None:
        self._end_head()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _refuse(self) -> None:
        """Say 429 and read on for a moment: closed at once, the connection would be reset before the answer is read."""
        self._refused = True
        if self._gate is None or not self._gate.patient:
            self.transport.abort()
            return
        self.transport.write(_TOO_MANY)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_timer = self.loop.call_later(_LINGER_S, self.transport.abort)
