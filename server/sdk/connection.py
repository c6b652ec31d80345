"""One websocket connection of a client, on asyncio's callbacks: sending is a plain call, and no task is in the way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from framelane.server.protocol import SUBPROTOCOL

_PING_S = 20.0  # a silent connection is asked for a sign of life, and cut when it gives none
_GOODBYE_S = 1.0
_MESSAGE = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


class Connection(asyncio.Protocol):
    """Bytes in, messages out; the websocket protocol itself is that of ``websockets``.

    Args:
        uri: ``ws://`` or ``wss://``.
        opened: called when messages can be sent.
        received: called with each whole message.
        lost: called once with the reason, unless `close` was called before.
    """

    def __init__(
        self, uri: str, opened: Callable[[], None], received: Callable[[bytes], None], lost: Callable[[str], None]
    ) -> None:
        self._uri = parse_uri(uri)
        self._websocket = ClientProtocol(self._uri, subprotocols=[Subprotocol(SUBPROTOCOL)])
        self._opened = opened
        self._received = received
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._fragments: list[bytes] = []
        self._paused = False
        self._quiet = False
        self._asked = False
        self._closed = False
        self._ping: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._gone.set()

    async def open(self) -> None:
        """Connect. Errors are told to `lost`."""
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self._uri.secure else None
        try:
            await loop.create_connection(lambda: self, self._uri.host, self._uri.port, ssl=context)
        except OSError as error:
            self._end(str(error))

    @property
    def writable(self) -> bool:
        """Whether a message sent now goes to the network without piling up here."""
        return self._websocket.state is State.OPEN and not self._paused

    def send(self, message: bytes) -> None:
        self._websocket.send_binary(message)
        self._flush()

    def close(self) -> None:
        """Say goodbye, without waiting for an answer; nothing is called afterwards."""
        self._closed = True
        if self._transport is not None:
            if self._websocket.state is State.OPEN:
                self._websocket.send_close(1000)
                self._flush()
            self._transport.close()
        self._stop()

    async def wait_closed(self) -> None:
        """After `close`: wait until the socket is gone, which a peer that reads nothing cannot delay for long."""
        try:
            await asyncio.wait_for(self._gone.wait(), _GOODBYE_S)
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._gone.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._gone.clear()
        if self._closed:
            self._transport.abort()
            return
        self._websocket.send_request(self._websocket.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._quiet = False
        self._websocket.receive_data(data)
        for event in self._websocket.events_received():
            if self._closed:
                return
            if isinstance(event, Frame):
                self._frame(event)
            else:
                self._handshaken()
        self._flush()

    def eof_received(self) -> None:
        self._websocket.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._websocket.close_reason or (str(exc) if exc else f"closed ({self._websocket.close_code})")
        self._transport = None
        self._gone.set()
        self._end(reason)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def _handshaken(self) -> None:
        error = self._websocket.handshake_exc
        if error is not None:
            self._end(str(error))
        else:
            self._keep_alive()
            self._opened()

    def _frame(self, frame: Frame) -> None:
        if frame.opcode not in _MESSAGE:
            return
        if frame.fin and not self._fragments:
            self._received(bytes(frame.data))
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            message = b"".join(self._fragments)
            self._fragments.clear()
            self._received(message)

    def _keep_alive(self) -> None:
        self._quiet = True
        self._ping = asyncio.get_running_loop().call_later(_PING_S, self._ask)

    def _ask(self) -> None:
        if self._quiet and self._asked:
            self._end("no sign of life")
            return
        self._asked = self._quiet
        if self._quiet:
            self._websocket.send_ping(b"")
            self._flush()
        self._keep_alive()

    def _flush(self) -> None:
        if self._transport is None:
            return
        for data in self._websocket.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._transport.close()

    def _end(self, reason: str) -> None:
        self._stop()
        if not self._closed:
            self._closed = True
            if self._transport is not None:
                self._transport.abort()
            self._lost(reason)

    def _stop(self) -> None:
        if self._ping is not None:
            self._ping.cancel()
            self._ping = None
