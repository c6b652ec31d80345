"""Users who do not keep to the protocol: clients from another decade, and senders of garbage.

What they say is made without I/O (``garbage``, ``OLD_REQUESTS``); a ``Stranger`` says it over sockets that wait, which
Locust has made to wait in greenlets only, so only inside the swarm's process. What they are answered is counted by
name: a server that copes turns the old away in words, and tells the others what is wrong with each message. It need not
cut them: a visit holds fewer bad messages than anyone may send (``fault_burst``), and a frame that is no picture is a
frame. Those who flood are ``loadtests/faults``'s.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

import msgspec

from framelane.loadtests import rfc6455
from framelane.loadtests.generator import NotServed, enter
from framelane.server.protocol import MAX_FRAME_BYTES, SOCKETIO_PATH, WEBSOCKET_PATH

from .audience import Conduct

_TIMEOUT_S = 15.0
_MOST_MESSAGES = 40
_pack = msgspec.msgpack.encode


class Ended(Protocol):
    """The end of a user's life (``gevent.event.Event``)."""

    def is_set(self) -> bool:
        """Whether it has come."""

    def wait(self, timeout: float) -> Any:
        """Sleep until then, at most so many seconds."""


def _get(path: str, *headers: str) -> Callable[[str], bytes]:
    return lambda host: "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "\r\n"]).encode()


_KEY = f"Sec-WebSocket-Key: {22 * 'A'}=="
_UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", _KEY)
OLD_REQUESTS: Final = {
    "Socket.IO 2 (EIO=3), websocket": _get(f"{SOCKETIO_PATH}?EIO=3&transport=websocket", *_UPGRADE),
    "Socket.IO 2 (EIO=3), polling": _get(f"{SOCKETIO_PATH}?EIO=3&transport=polling&t=1"),
    "Socket.IO 4, polling": _get(f"{SOCKETIO_PATH}?EIO=4&transport=polling&t=1"),
    "Socket.IO 0.9": _get("/socket.io/1/?t=1"),
    "hixie-76 websocket": _get(WEBSOCKET_PATH, "Connection: Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Key1: 1 2"),
}
"""First words of clients whose protocol is not served; each is to be answered with an HTTP error."""


def garbage(random: Random) -> tuple[int, bytes]:
    """One message that is no frame, or a frame that holds no picture: its websocket opcode and payload."""
    seq = random.randrange(1 << 20)
    noise = random.randbytes(random.randrange(1, 3000))
    messages = (
        (rfc6455.BINARY, noise),
        (rfc6455.TEXT, b'42["frame",1]'),
        (rfc6455.BINARY, _pack(["frame", seq, noise])),
        (rfc6455.BINARY, _pack(["frame", seq, noise])[: len(noise) // 2]),
        (rfc6455.BINARY, _pack(["frame", -seq, noise])),
        (rfc6455.BINARY, _pack(["frame", 0, b"\xff\xd8\xff" + noise])),
        (rfc6455.BINARY, _pack(["emit", {"to": ""}])),
        (rfc6455.BINARY, b"\x91" * 3000),
        (rfc6455.BINARY, _pack(["frame", seq, bytes(MAX_FRAME_BYTES + 1)])),
    )
    return random.choice(messages)


class Stranger:
    """One user that harms, or tries to.

    Args:
        conduct: "old" or "garbage".
        address: host and port.
        random: what it draws from.
        ended: when to stop.
        counts: what became of its visits, by name.
    """

    def __init__(
        self, conduct: Conduct, address: tuple[str, int], random: Random, ended: Ended, counts: Counter[str]
    ) -> None:
        self._address = address
        self._random = random
        self._ended = ended
        self._counts = counts
        self._visit = {"old": self._be_old, "garbage": self._send_garbage}[conduct]

    def run(self) -> None:
        """Visit again and again."""
        while not self._ended.is_set():
            try:
                self._visit()
            except (OSError, NotServed, rfc6455.HandshakeFailed) as error:
                self._counts[f"ended by the server: {type(error).__name__}"] += 1
            self._ended.wait(self._random.uniform(1, 4))

    def _be_old(self) -> None:
        name = self._random.choice(list(OLD_REQUESTS))
        with socket.create_connection(self._address, _TIMEOUT_S) as connection:
            connection.sendall(OLD_REQUESTS[name](self._address[0]))
            answer = connection.recv(4096).split(b" ", 2)
        status = answer[1].decode("latin-1") if len(answer) > 1 else "no answer"
        self._counts[f"{name}: {status}"] += 1

    def _send_garbage(self) -> None:
        with enter(*self._address) as connection:
            for number in range(_MOST_MESSAGES):
                opcode, payload = garbage(self._random)
                connection.sendall(rfc6455.head(len(payload), opcode) + payload)
                self._counts["garbage: messages"] += 1
                if number % 8 == 7 and not self._is_served(connection):
                    self._counts["garbage: cut"] += 1
                    return
                self._ended.wait(self._random.uniform(0.02, 0.2))
                if self._ended.is_set():
                    return

    def _is_served(self, connection: socket.socket) -> bool:
        """Read what has come; whether the server still listens."""
        connection.settimeout(0.05)
        try:
            while True:
                opcode, _payload = rfc6455.receive(connection)
                if opcode == rfc6455.CLOSE:
                    return False
        except TimeoutError:
            return True
        finally:
            connection.settimeout(_TIMEOUT_S)
