"""Closed-loop clients of /ws in a process of their own: each sends its next frame when the last one is answered.

``python -m framelane.loadtests.generator --port 8000 --frames FILE --tally FILE`` runs until SIGTERM. Its processor
time counts against the server that it shares the cores with, so it does as little as a client can: one epoll and plain
sockets, frames encoded before the start and sent with mask key 0 (``rfc6455``), two system calls per frame besides the
poll, and of each answer only the event's name and ``seq`` decoded. What is left is nearly all the kernel copying 34 KB
in and 6 KB out: about 0.05 ms per frame. The counts go to a ``Tally``; see there.
"""

from __future__ import annotations

import collections
import gc
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from framelane.loadtests import rfc6455
from framelane.loadtests.tally import Tally
from framelane.server.protocol import SUBPROTOCOL, WEBSOCKET_PATH

_SEQ: Final = struct.Struct(">I")
_SEND_BUFFER = 1 << 20
_RECEIVE_BUFFER = 1 << 19
_HELLO = msgspec.msgpack.encode(["hello", {}])


class FrameFile(msgspec.Struct, frozen=True):
    """The frames of a clip as handed to generators and bare loops, and the rate they are meant for."""

    fps: float
    frames: list[bytes]

    @classmethod
    def load(cls, path: Path) -> FrameFile:
        """Read a file that ``save`` wrote."""
        return msgspec.msgpack.decode(path.read_bytes(), type=cls)

    def save(self, path: Path) -> None:
        """Write the frames to a file."""
        path.write_bytes(msgspec.msgpack.encode(self))


class Answer(msgspec.Struct, frozen=True):
    """What is looked at in an answer."""

    seq: int = -1


_read_answer = msgspec.msgpack.Decoder(tuple[str, Answer]).decode


class NotServed(Exception):
    """The server did not let a client in, or sent it away."""


class Message:
    """One frame of the clip as a websocket message: a head in which only ``seq`` changes, and the image."""

    __slots__ = ("data", "head", "seq_at", "size")

    def __init__(self, data: bytes) -> None:
        event = b"\x93\xa5frame\xce" + bytes(4) + b"\xc6" + len(data).to_bytes(4, "big")
        self.data = data
        self.head = bytearray(rfc6455.head(len(event) + len(data)) + event)
        self.seq_at = len(self.head) - 9
        self.size = len(self.head) + len(data)


class Client:
    """One connection with at most one frame in flight."""

    __slots__ = ("offset", "partial", "sent_at", "seq", "socket", "unsent")

    def __init__(self, connection: socket.socket, offset: int) -> None:
        self.socket = connection
        self.offset = offset
        self.seq = -1
        self.sent_at = 0.0
        self.unsent = b""
        self.partial = bytearray()


def enter(host: str, port: int) -> socket.socket:
    """Open /ws, say hello and wait for ``ready``, in the waiting room too.

    Raises:
        NotServed: anything else came.
        OSError: nothing came.
    """
    connection = rfc6455.connect(host, port, WEBSOCKET_PATH, SUBPROTOCOL)
    connection.sendall(rfc6455.head(len(_HELLO)) + _HELLO)
    opcode, payload = rfc6455.receive(connection)
    while opcode == rfc6455.PING or payload.startswith(b"\x92\xa7waiting"):
        if opcode == rfc6455.PING:  # who does not answer is taken for dead, in the waiting room too
            connection.sendall(rfc6455.head(len(payload), rfc6455.PONG) + payload)
        opcode, payload = rfc6455.receive(connection)
    if opcode != rfc6455.BINARY or not payload.startswith(b"\x92\xa5ready"):
        connection.close()
        raise NotServed(f"instead of `ready` the server sent {payload[:200]!r}")
    return connection


class Generator:
    """All clients on one loop.

    Args:
        clip: the frames; clients begin at different places of it.
        tally: where answers are counted.
        pause: seconds between an answer and that client's next frame.
        real_time: send the frame that a camera would see now, rather than the clip's next.
    """

    def __init__(self, clip: FrameFile, tally: Tally, pause: float = 0.0, real_time: bool = False) -> None:
        self._messages = [Message(data) for data in clip.frames]
        self._fps = clip.fps if real_time else 0.0
        self._tally = tally
        self._pause = pause
        self._resting: collections.deque[tuple[float, Client]] = collections.deque()
        self._clients: dict[int, Client] = {}
        self._epoll = select.epoll()
        self._buffer = bytearray(_RECEIVE_BUFFER)
        self._view = memoryview(self._buffer)

    def connect(self, host: str, port: int, clients: int) -> None:
        """Bring the clients in, one after another. Raises NotServed, HandshakeFailed or OSError."""
        for number in range(clients):
            connection = self._enter(host, port)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            connection.setblocking(False)
            client = Client(connection, number * len(self._messages) // clients)
            self._clients[connection.fileno()] = client
            self._epoll.register(connection, select.EPOLLIN)

    def _enter(self, host: str, port: int) -> socket.socket:
        return enter(host, port)

    def run(self) -> None:
        """Send and receive until the process is stopped."""
        for client in self._clients.values():
            self._send(client)
        self._tally.ready()
        poll, clients, receive = self._epoll.poll, self._clients, self._receive
        while True:
            for descriptor, event in poll(self._wait()):
                client = clients[descriptor]
                if event & select.EPOLLOUT:
                    self._send_rest(client)
                if event & ~select.EPOLLOUT:
                    receive(client)
            if self._resting:
                self._wake(time.perf_counter())

    def close(self) -> None:
        """Drop all connections."""
        for client in self._clients.values():
            client.socket.close()
        self._epoll.close()

    def _wait(self) -> float | None:
        """Seconds until the first resting client's turn; None if only the server has to be waited for."""
        return max(0.0, self._resting[0][0] - time.perf_counter()) if self._resting else None

    def _wake(self, now: float) -> None:
        while self._resting and self._resting[0][0] <= now:
            self._send(self._resting.popleft()[1])

    # -- out ---------------------------------------------------------------------------------------------------------

    def _send(self, client: Client) -> None:
        now = client.sent_at = time.perf_counter()
        client.seq = seq = client.seq + 1
        place = int(now * self._fps) if self._fps else seq
        message = self._messages[(place + client.offset) % len(self._messages)]
        _SEQ.pack_into(message.head, message.seq_at, seq)
        self._write(client, (message.head, message.data), message.size)

    def _write(self, client: Client, parts: Sequence[bytes | bytearray], size: int) -> None:
        sent = client.socket.sendmsg(parts)
        if sent < size:
            client.unsent = b"".join(parts)[sent:]
            self._epoll.modify(client.socket, select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, client: Client) -> None:
        client.unsent = client.unsent[client.socket.send(client.unsent) :]
        if not client.unsent:
            self._epoll.modify(client.socket, select.EPOLLIN)

    # -- in ----------------------------------------------------------------------------------------------------------

    def _receive(self, client: Client) -> None:
        count = client.socket.recv_into(self._buffer)
        if not count:
            raise NotServed("the server closed a connection")
        if client.partial:
            client.partial += self._view[:count]
            done = self._take(client, client.partial, len(client.partial))
            del client.partial[:done]
        else:
            done = self._take(client, self._buffer, count)
            if done < count:
                client.partial += self._view[done:count]

    def _take(self, client: Client, buffer: bytearray, stop: int) -> int:
        """Deal with every whole message in the buffer; returns how many bytes those were."""
        at = 0
        while at < stop and (head := rfc6455.read_head(buffer, at, stop)):
            payload = bytes(buffer[head.start : head.stop])
            at = head.stop
            if head.opcode == rfc6455.BINARY:
                self._answer(client, payload)
            elif head.opcode == rfc6455.PING:
                client.socket.send(rfc6455.head(len(payload), rfc6455.PONG) + payload)
            elif head.opcode == rfc6455.CLOSE:
                raise NotServed(f"the server closed a connection: {payload!r}")
        return at

    def _answer(self, client: Client, payload: bytes) -> None:
        name, answer = _read_answer(payload)
        if name not in ("result", "dropped"):
            if name != "pace":
                self._tally.error()
            return
        if answer.seq != client.seq:
            self._tally.error()
            return
        now = time.perf_counter()
        if name == "result":
            self._tally.result(now - client.sent_at)
        else:
            self._tally.dropped()
        if self._pause:
            self._resting.append((now + self._pause, client))
        else:
            self._send(client)


def _generator(
    clip: FrameFile, tally: Tally, post: str | None, form: bool, pause_ms: float, real_time: bool
) -> Generator:
    if post is None:
        return Generator(clip, tally, pause_ms / 1000, real_time)
    from framelane.loadtests.posts import Posts

    return Posts(clip, tally, post, form)


@click.command(help=__doc__)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, required=True)
@click.option("--frames", type=click.Path(exists=True, path_type=Path), required=True, help="a saved FrameFile")
@click.option("--tally", type=click.Path(exists=True, path_type=Path), required=True, help="where to count")
@click.option("--clients", default=16, show_default=True)
@click.option("--pause-ms", default=0.0, show_default=True, help="between an answer and the next frame")
@click.option("--real-time", is_flag=True, help="send the frame that a camera would see now")
@click.option("--post", metavar="PATH", help="POST to this path instead of using /ws, without pauses")
@click.option("--form", is_flag=True, help="with --post: a form with the frame as its `file`")
def main(
    host: str, port: int, frames: Path, tally: Path, clients: int, post: str | None, form: bool, **pace: Any
) -> None:
    """Entry point of the process."""
    generator = _generator(FrameFile.load(frames), Tally(tally), post, form, **pace)
    try:
        generator.connect(host, port, clients)
        gc.freeze()
        gc.disable()
        generator.run()
    except (NotServed, rfc6455.HandshakeFailed, OSError) as error:
        sys.exit(f"generator: {error}")


if __name__ == "__main__":
    main()
