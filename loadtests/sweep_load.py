"""Closed-loop clients for sweeps: ``python -m framelane.loadtests.sweep_load --port … --frames FILE --tally FILE``.

Unlike ``generator`` a client may have several frames in flight, the process may be held to a rate (a generator that is
starved on purpose), and answers are matched by lane and ``seq``: with a server that broadcasts, a client's own answer
is one among everybody's. It runs until SIGTERM and counts into a ``Tally``.
"""

from __future__ import annotations

import collections
import gc
import select
import socket
import sys
import time
from pathlib import Path

import click
import msgspec

from framelane.loadtests import rfc6455
from framelane.loadtests.generator import FrameFile, Message, NotServed
from framelane.loadtests.overload.precedence import run_on_time
from framelane.loadtests.tally import Tally
from framelane.server.protocol import SUBPROTOCOL, WEBSOCKET_PATH

_HELLO = msgspec.msgpack.encode(["hello", {"policy": "queue"}])
"""With "queue" a second frame in flight waits for its turn instead of replacing the first."""
_BUFFER = 1 << 18
_IDLE_S = 1.0
_EAGER_S = 0.2
_REST_S = 0.05
_LOOK_S = 0.01


class _Ready(msgspec.Struct, frozen=True):
    lane: str = ""


class _Answer(msgspec.Struct, frozen=True):
    seq: int = -1
    lane: str = ""


_read_ready = msgspec.msgpack.Decoder(tuple[str, _Ready]).decode
_read_answer = msgspec.msgpack.Decoder(tuple[str, _Answer]).decode


class Client:
    """One connection with its frames in flight."""

    __slots__ = ("lane", "partial", "sent_at", "seq", "socket", "unsent")

    def __init__(self, connection: socket.socket, lane: str) -> None:
        self.socket = connection
        self.lane = lane
        self.seq = -1
        self.sent_at: dict[int, float] = {}
        self.unsent = bytearray()
        self.partial = bytearray()


class Load:
    """All clients of one process.

    Args:
        frames: encoded images.
        tally: where answers are counted.
        window: frames in flight per client.
        rate: most frames per second, all clients together; 0 for no limit.
    """

    def __init__(self, frames: list[bytes], tally: Tally, window: int, rate: float) -> None:
        self._messages = [Message(data) for data in frames]
        self._tally = tally
        self._window = window
        self._interval = 1 / rate if rate else 0.0
        self._due = 0.0
        self._clients: dict[int, Client] = {}
        self._turns: collections.deque[Client] = collections.deque()
        self._resting: collections.deque[tuple[float, Client]] = collections.deque()
        self._epoll = select.epoll()

    def connect(self, host: str, port: int, clients: int) -> None:
        """Bring the clients in. Raises NotServed, HandshakeFailed or OSError."""
        for _ in range(clients):
            connection = rfc6455.connect(host, port, WEBSOCKET_PATH, SUBPROTOCOL)
            connection.sendall(rfc6455.head(len(_HELLO)) + _HELLO)
            lane = _wait_for_ready(connection)
            connection.setblocking(False)
            client = self._clients[connection.fileno()] = Client(connection, lane)
            self._epoll.register(connection, select.EPOLLIN)
            self._turns.extend([client] * self._window)

    def run(self, go: Path) -> None:
        """Say that all clients are in, wait for the file ``go``, then send and receive until the process is stopped.

        Nobody sends before everybody is in: under load a newcomer might wait for its place for longer than a window.
        """
        self._tally.ready()
        while not go.exists():
            time.sleep(_LOOK_S)
        self._due = time.perf_counter()
        while True:
            now = time.perf_counter()
            while self._resting and self._resting[0][0] <= now:
                self._turns.append(self._resting.popleft()[1])
            self._send_due(now)
            for descriptor, event in self._epoll.poll(self._wait()):
                client = self._clients[descriptor]
                if event & select.EPOLLOUT:
                    self._flush(client)
                if event & ~select.EPOLLOUT:
                    self._receive(client)

    def _wait(self) -> float:
        if not self._turns:
            return _REST_S if self._resting else _IDLE_S
        return max(0.0, self._due - time.perf_counter())

    def _send_due(self, now: float) -> None:
        """Send what may be sent now; what was missed of a rate is made up for, up to a fifth of a second."""
        if not self._interval:
            while self._turns:
                self._send(self._turns.popleft(), now)
            return
        self._due = max(self._due, now - _EAGER_S)
        while self._turns and self._due <= now:
            self._send(self._turns.popleft(), now)
            self._due += self._interval

    def _send(self, client: Client, now: float) -> None:
        client.seq += 1
        client.sent_at[client.seq] = now
        message = self._messages[client.seq % len(self._messages)]
        message.head[message.seq_at : message.seq_at + 4] = client.seq.to_bytes(4, "big")
        client.unsent += message.head
        client.unsent += message.data
        self._flush(client)

    def _flush(self, client: Client) -> None:
        try:
            sent = client.socket.send(client.unsent)
        except BlockingIOError:
            sent = 0
        del client.unsent[:sent]
        self._epoll.modify(client.socket, select.EPOLLIN | (select.EPOLLOUT if client.unsent else 0))

    def _receive(self, client: Client) -> None:
        data = client.socket.recv(_BUFFER)
        if not data:
            raise NotServed("the server closed a connection")
        client.partial += data
        at = 0
        while head := rfc6455.read_head(client.partial, at, len(client.partial)):
            payload = bytes(client.partial[head.start : head.stop])
            at = head.stop
            if head.opcode == rfc6455.BINARY:
                self._answer(client, payload)
            elif head.opcode == rfc6455.PING:
                client.unsent += rfc6455.head(len(payload), rfc6455.PONG) + payload
                self._flush(client)
            elif head.opcode == rfc6455.CLOSE:
                raise NotServed(f"the server closed a connection: {payload!r}")
        del client.partial[:at]

    def _answer(self, client: Client, payload: bytes) -> None:
        name, answer = _read_answer(payload)
        if name == "error":
            self._tally.error()
        if name not in ("result", "dropped") or (answer.lane and answer.lane != client.lane):
            return
        sent_at = client.sent_at.pop(answer.seq, None)
        if sent_at is None:
            self._tally.error()
            return
        now = time.perf_counter()
        if name == "result":
            self._tally.result(now - sent_at)
            self._turns.append(client)
        else:
            self._tally.dropped()
            self._resting.append((now + _REST_S, client))  # or a server that drops would be flooded


def _wait_for_ready(connection: socket.socket) -> str:
    """The lane, once the server has a place. Raises NotServed."""
    while True:
        _, payload = rfc6455.receive(connection)
        try:
            name, ready = _read_ready(payload)
        except msgspec.MsgspecError:
            raise NotServed(f"instead of `ready` the server sent {payload[:200]!r}") from None
        if name == "ready":
            return ready.lane
        if name != "waiting":
            raise NotServed(f"instead of `ready` the server sent `{name}`")


@click.command(help=__doc__)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, required=True)
@click.option("--frames", type=click.Path(exists=True, path_type=Path), required=True, help="a saved FrameFile")
@click.option("--tally", type=click.Path(exists=True, path_type=Path), required=True, help="where to count")
@click.option("--go", type=click.Path(path_type=Path), required=True, help="begin when this file is there")
@click.option("--clients", default=8, show_default=True)
@click.option("--window", default=1, show_default=True, help="frames in flight per client")
@click.option("--rate", default=0.0, show_default=True, help="most frames per second of this process; 0: no limit")
def main(host: str, port: int, frames: Path, tally: Path, go: Path, clients: int, window: int, rate: float) -> None:
    """Entry point of the process."""
    run_on_time()
    load = Load(FrameFile.load(frames).frames, Tally(tally), window, rate)
    try:
        load.connect(host, port, clients)
        gc.freeze()
        gc.disable()
        load.run(go)
    except (NotServed, rfc6455.HandshakeFailed, OSError) as error:
        sys.exit(f"sweep_load: {error}")


if __name__ == "__main__":
    main()
