"""Memory and start: PSS of each process after a while under load, what idle connections add, seconds to ready.

PSS divides the pages of libraries among all processes that use them: other Pythons on the machine make it look smaller.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from framelane.loadtests import rfc6455
from framelane.loadtests.figures import Figure
from framelane.loadtests.generator import NotServed, enter
from framelane.loadtests.processes import Memory, Server, memory, shared_bytes, total_pss
from framelane.loadtests.stage import Stage
from framelane.server.protocol import SOCKETIO_PATH

IDLE_CONNECTIONS = 1000
_SETTLE_S = 2.0
_MB = 1e6
_BARS = {"gateway": 75, "worker": 80, "slot": 110}


class MemoryUse:
    """Per round: a server under load for a window, and a fresh one with idle connections on each door."""

    name = "memory"
    title = "Memory and start"
    most_rounds = 3

    def __init__(self) -> None:
        self._processes: list[list[tuple[str, Memory]]] = []
        self._shared: list[int] = []
        self._starts: list[float] = []
        self._idle: dict[str, list[float]] = {"/ws": [], "Socket.IO": []}

    def measure_round(self, stage: Stage, number: int) -> None:
        """See ``Section``."""
        with stage.server() as server:
            self._starts.append(server.start_seconds)
            stage.load_window(server)
            time.sleep(_SETTLE_S)
            self._processes.append([(role, memory(pid)) for pid, role in server.roles().items()])
            self._shared.append(shared_bytes(server.pids()))
        for door, open_one in (("/ws", enter), ("Socket.IO", enter_socketio)):
            with stage.server(arguments=["--max-clients", str(IDLE_CONNECTIONS + 100)]) as server:
                self._starts.append(server.start_seconds)
                self._idle[door].append(_bytes_per_connection(server, open_one))
                stage.say(f"{door}: {self._idle[door][-1] / 1000:.1f} KB for an idle connection")

    def figures(self) -> list[Figure]:
        """See ``Section``."""
        own = [
            Figure(name=f"PSS of a {role}, shared memory apart", unit="MB", rounds=self._largest(role), bar=bar)
            for role, bar in _BARS.items()
        ]
        idle = [
            Figure(
                name=f"one of {IDLE_CONNECTIONS} idle connections, {door}",
                unit="KB",
                rounds=tuple(size / 1000 for size in sizes),
                bar=60,
            )
            for door, sizes in self._idle.items()
        ]
        return [
            *own,
            Figure(name="  shared memory, once", unit="MB", rounds=tuple(size / _MB for size in self._shared)),
            *idle,
            Figure(name="start to ready", unit="s", rounds=tuple(self._starts), bar=5),
        ]

    def details(self) -> Any:
        """See ``Section``."""
        processes = [[{"role": role, **used._asdict()} for role, used in found] for found in self._processes]
        return {
            "processes": processes,
            "shared_bytes": self._shared,
            "start_seconds": self._starts,
            "idle_connection_bytes": self._idle,
        }

    def _largest(self, role: str) -> tuple[float, ...]:
        """Round by round, the largest process of a role: the bar holds for each."""
        sizes = [[used.own / _MB for name, used in found if name == role] for found in self._processes]
        return tuple(max(found) for found in sizes if found)


def _bytes_per_connection(server: Server, open_one: Callable[[str, int], socket.socket]) -> float:
    """PSS of the whole server with many idle connections, over that with a few, by connection."""
    few = 20
    connections = [open_one("127.0.0.1", server.port) for _ in range(few)]  # what the first ones import is not theirs
    try:
        time.sleep(_SETTLE_S)
        before = total_pss(server.pids())
        connections += [open_one("127.0.0.1", server.port) for _ in range(IDLE_CONNECTIONS)]
        time.sleep(_SETTLE_S)
        return (total_pss(server.pids()) - before) / IDLE_CONNECTIONS
    finally:
        for connection in connections:
            connection.close()


def enter_socketio(host: str, port: int) -> socket.socket:
    """Open Socket.IO over websocket and wait for ``ready``.

    Raises:
        NotServed: something else came.
    """
    connection = rfc6455.connect(host, port, f"{SOCKETIO_PATH}?EIO=4&transport=websocket")
    _expect(connection, "0")
    text = b"40" + json.dumps({}).encode()
    connection.sendall(rfc6455.head(len(text), rfc6455.TEXT) + text)
    _expect(connection, "40")
    _expect(connection, '42["ready"')
    return connection


def _expect(connection: socket.socket, beginning: str) -> None:
    _, payload = rfc6455.receive(connection)
    if not payload.startswith(beginning.encode()):
        raise NotServed(f"instead of {beginning!r} the server sent {payload[:200]!r}")
