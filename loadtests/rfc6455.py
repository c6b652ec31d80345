"""The least of RFC 6455 that a load generator needs: a handshake, frame heads, and nothing that costs time.

Client frames must be masked, and the mask key may be any: with key 0 the payload is masked by leaving it as it is, so
that frames are encoded once and sent a million times. (A browser's random key exists to protect proxies from scripts,
which no load test has to.) Servers unmask whatever the key is; their work is the same.
"""

from __future__ import annotations

import base64
import os
import socket
from typing import NamedTuple

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_FINAL, _MASKED = 0x80, 0x80
_NO_MASK = bytes(4)


class HandshakeFailed(Exception):
    """The server did not switch to the websocket protocol; the text is its answer's first line."""


class Head(NamedTuple):
    """The head of a frame from the server: its opcode, and where its payload starts and stops in the buffer."""

    opcode: int
    start: int
    stop: int


def connect(host: str, port: int, path: str, subprotocol: str | None = None, timeout: float = 10.0) -> socket.socket:
    """Open a websocket; the socket is blocking, with ``timeout`` seconds for each step.

    Raises:
        HandshakeFailed: the server answered something else.
        OSError: no connection, or it ended.
    """
    connection = socket.create_connection((host, port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(request(host, port, path, subprotocol))
    answer = b""
    while b"\r\n\r\n" not in answer:
        received = connection.recv(1)  # by single bytes: what follows the answer is already a frame
        if not received:
            raise HandshakeFailed("the connection ended in the handshake")
        answer += received
    if not answer.startswith(b"HTTP/1.1 101 "):
        connection.close()
        raise HandshakeFailed(answer.partition(b"\r\n")[0].decode("latin-1"))
    return connection


def request(host: str, port: int, path: str, subprotocol: str | None) -> bytes:
    """What asks a server for the websocket protocol."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
    ]
    if subprotocol:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode()


def head(length: int, opcode: int = BINARY) -> bytes:
    """The head of a client's frame with a payload of ``length`` bytes, mask key 0 included."""
    if length < 126:
        size = bytes([_MASKED | length])
    elif length < 1 << 16:
        size = bytes([_MASKED | 126]) + length.to_bytes(2, "big")
    else:
        size = bytes([_MASKED | 127]) + length.to_bytes(8, "big")
    return bytes([_FINAL | opcode]) + size + _NO_MASK


def read_head(buffer: bytes | bytearray, at: int, stop: int) -> Head | None:
    """The head of the server's frame at ``at``, or None while ``buffer[at:stop]`` does not hold the whole frame."""
    if stop - at < 2:
        return None
    length, start = buffer[at + 1], at + 2
    if length >= 126:
        width = 2 if length == 126 else 8
        start += width
        length = int.from_bytes(buffer[at + 2 : start], "big")
    end = start + length
    return Head(buffer[at] & 0x0F, start, end) if start <= stop and end <= stop else None


def receive(connection: socket.socket) -> tuple[int, bytes]:
    """Read exactly one frame from a blocking socket: its opcode and payload.

    Raises:
        OSError: the connection ended or is silent for too long.
    """
    start = _exactly(connection, 2)
    length = start[1]
    if length >= 126:
        length = int.from_bytes(_exactly(connection, 2 if length == 126 else 8), "big")
    return start[0] & 0x0F, _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        received = connection.recv(count - len(data))
        if not received:
            raise ConnectionError("the server closed the connection")
        data += received
    return bytes(data)
