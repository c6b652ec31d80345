"""One non-blocking websocket connection of a load generator: bytes in, bytes out, and nothing that waits."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from framelane.loadtests import rfc6455
from framelane.server.protocol import SUBPROTOCOL, WEBSOCKET_PATH

_SEND_BUFFER = 1 << 20
_MOST_PIECES = 16


class Broken(Exception):
    """The connection has ended, or was never made."""


class Message(NamedTuple):
    """A websocket message from the server."""

    opcode: int
    payload: bytes


class Link:
    """A websocket connection, to /ws unless told otherwise.

    Args:
        address: host and port.
        receive_buffer: bytes of the kernel's receive buffer, 0 for the usual; small for a client that does not read.
        path: with its query.
        subprotocol: None for none.

    Attributes:
        upgraded: whether the server has switched to the websocket protocol.
        unsent: pieces that the kernel has not taken yet.
    """

    __slots__ = ("_address", "_inbox", "_path", "_subprotocol", "fileno", "socket", "unsent", "upgraded")

    def __init__(
        self,
        address: tuple[str, int],
        receive_buffer: int = 0,
        path: str = WEBSOCKET_PATH,
        subprotocol: str | None = SUBPROTOCOL,
    ) -> None:
        self._address = address
        self._path = path
        self._subprotocol = subprotocol
        self._inbox = bytearray()
        self.upgraded = False
        self.unsent: deque[memoryview] = deque()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.fileno = self.socket.fileno()

    def connect(self) -> None:
        """Begin; the socket is writable when it is done. Raises Broken."""
        code = self.socket.connect_ex(self._address)
        if code not in (0, errno.EINPROGRESS):
            raise Broken(os.strerror(code))

    def upgrade(self) -> int:
        """Ask for the websocket protocol, once connected; returns the bytes sent. Raises Broken."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise Broken(os.strerror(code))
        return self.send((rfc6455.request(*self._address, self._path, self._subprotocol),))

    def send(self, pieces: Sequence[bytes | bytearray]) -> int:
        """Send as much as the kernel takes, and keep the rest in ``unsent``; returns how many bytes there were.

        `bytes` are kept as views; a `bytearray` is copied, so its owner may change it afterwards.
        """
        size = sum(map(len, pieces))
        sent = 0 if self.unsent else self._send(pieces)
        if sent < size:
            for piece in pieces:
                if sent < len(piece):
                    self.unsent.append(memoryview(bytes(piece))[sent:])
                sent = max(0, sent - len(piece))
        return size

    def flush(self) -> bool:
        """Send what is left; whether all is gone. Raises Broken."""
        while self.unsent:
            pieces = [self.unsent[index] for index in range(min(len(self.unsent), _MOST_PIECES))]
            sent = self._send(pieces)
            if not sent:
                return False
            while sent:
                first = self.unsent[0]
                if sent < len(first):
                    self.unsent[0] = first[sent:]
                    break
                sent -= len(first)
                self.unsent.popleft()
        return True

    def _send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        try:
            return self.socket.sendmsg(pieces)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self, buffer: bytearray) -> int:
        """Read what is there, at most a buffer full; returns the count, 0 if nothing. Raises Broken at the end."""
        try:
            count = self.socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(str(error)) from None
        if not count:
            raise Broken("the server closed the connection")
        self.feed(memoryview(buffer)[:count])
        return count

    def feed(self, data: bytes | memoryview) -> None:
        """Bytes that have come; ``receive`` does it by itself."""
        self._inbox += data

    def messages(self) -> Iterator[Message]:
        """The whole messages that have come. Raises Broken if the server did not switch protocols."""
        inbox = self._inbox
        at, stop = 0 if self.upgraded else self._read_answer(), len(inbox)
        if not self.upgraded:
            return
        try:
            while head := rfc6455.read_head(inbox, at, stop):
                at = head.stop
                yield Message(head.opcode, bytes(inbox[head.start : head.stop]))
        finally:
            del inbox[:at]

    def _read_answer(self) -> int:
        """Where the answer to the upgrade ends, once it is whole."""
        end = self._inbox.find(b"\r\n\r\n")
        if end < 0:
            return 0
        if not self._inbox.startswith(b"HTTP/1.1 101 "):
            raise Broken(self._inbox.partition(b"\r\n")[0].decode("latin-1"))
        self.upgraded = True
        return end + 4

    def close(self) -> None:
        """End it."""
        self.socket.close()
