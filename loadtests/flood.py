"""Sends small frames at a steady rate over many connections, and reads what comes back without looking at it.

``python -m framelane.loadtests.flood --port 8000 --frames FILE --rate 5000 --clients 100`` runs until SIGTERM. It costs
about 20 µs per frame, so that on shared cores the server gets the rest; a generator that follows the protocol costs
several times as much. Who wants to know what became of the frames asks the server's /metrics.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from pathlib import Path

import click

from framelane.loadtests.generator import FrameFile, Message, enter

_TURN_S = 0.005
_RECEIVE = 1 << 18


class Flood:
    """The connections.

    Args:
        frame: what all of them send.
        rate: frames per second, all together.
    """

    def __init__(self, frame: bytes, rate: float) -> None:
        self._message = Message(frame)
        self._rate = rate
        self._seq = 0
        self._sockets: list[socket.socket] = []
        self._poll = select.epoll()
        self._by_descriptor: dict[int, socket.socket] = {}

    def connect(self, port: int, clients: int) -> None:
        """Bring the clients in. Raises NotServed or OSError."""
        for _ in range(clients):
            connection = enter("127.0.0.1", port)
            connection.setblocking(False)
            self._sockets.append(connection)
            self._by_descriptor[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN)

    def run(self) -> None:
        """Send until the process is stopped; what a full socket does not take is not sent."""
        begun, sent = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begun) * self._rate)
            for _ in range(min(due - sent, len(self._sockets))):
                self._send(self._sockets[sent % len(self._sockets)])
                sent += 1
            self._drain()
            time.sleep(_TURN_S)

    def _send(self, connection: socket.socket) -> None:
        message = self._message
        self._seq += 1
        message.head[message.seq_at : message.seq_at + 4] = self._seq.to_bytes(4, "big")
        with contextlib.suppress(BlockingIOError):
            connection.send(message.head + message.data)

    def _drain(self) -> None:
        for descriptor, _event in self._poll.poll(0):
            with contextlib.suppress(BlockingIOError):
                self._by_descriptor[descriptor].recv(_RECEIVE)


@click.command(help=__doc__)
@click.option("--port", type=int, required=True)
@click.option("--frames", type=click.Path(exists=True, path_type=Path), required=True, help="a saved FrameFile")
@click.option("--rate", default=5000.0, show_default=True, help="frames per second, all clients together")
@click.option("--clients", default=100, show_default=True)
def main(port: int, frames: Path, rate: float, clients: int) -> None:
    """Entry point of the process."""
    flood = Flood(FrameFile.load(frames).frames[0], rate)
    flood.connect(port, clients)
    flood.run()


if __name__ == "__main__":
    main()
