"""The closed-loop generator for HTTP: the same loop as for /ws, with one POST after another on kept connections."""

from __future__ import annotations

import re
import socket
import time

from framelane.loadtests.generator import Client, FrameFile, Generator, NotServed
from framelane.loadtests.tally import Tally

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")
_BOUNDARY = b"framelane-frame"


class Posts(Generator):
    """Clients that POST frames.

    Args:
        clip: the frames.
        tally: where answers are counted; a status other than 200 is an error.
        path: of the URL.
        form: send a form with the frame as its ``file``, rather than the frame alone.
    """

    def __init__(self, clip: FrameFile, tally: Tally, path: str, form: bool) -> None:
        super().__init__(clip, tally)
        self._requests = [_request(path, data, form) for data in clip.frames]

    def _enter(self, host: str, port: int) -> socket.socket:
        connection = socket.create_connection((host, port), 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _send(self, client: Client) -> None:
        client.sent_at = time.perf_counter()
        client.seq += 1
        request = self._requests[(client.seq + client.offset) % len(self._requests)]
        self._write(client, (request,), len(request))

    def _take(self, client: Client, buffer: bytearray, stop: int) -> int:
        end = buffer.find(b"\r\n\r\n", 0, stop)
        if end < 0:
            return 0
        length = _LENGTH.search(buffer, 0, end + 2)
        if length is None:
            raise NotServed(f"an answer without a length: {bytes(buffer[:end])!r}")
        whole = end + 4 + int(length[1])
        if whole > stop:
            return 0
        if buffer.startswith(b"HTTP/1.1 200"):
            self._tally.result(time.perf_counter() - client.sent_at)
        else:
            self._tally.error()
        self._send(client)
        return whole


def _request(path: str, data: bytes, form: bool) -> bytes:
    kind = b"image/jpeg"
    if form:
        part = b'Content-Disposition: form-data; name="file"; filename="frame.jpg"\r\nContent-Type: image/jpeg'
        data = b"--" + _BOUNDARY + b"\r\n" + part + b"\r\n\r\n" + data + b"\r\n--" + _BOUNDARY + b"--\r\n"
        kind = b"multipart/form-data; boundary=" + _BOUNDARY
    head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: " + kind
    return head + b"\r\nContent-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data
