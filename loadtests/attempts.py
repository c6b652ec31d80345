"""Attempts: closed-loop clients of /ws in threads, each with one frame in flight, until enough were made.

For counts of attempts rather than for load: a thread per client is nothing for a handful, and each answer's own timing
is looked at. ``generator`` is for load.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from framelane.loadtests import rfc6455
from framelane.loadtests.generator import Message, NotServed, enter
from framelane.loadtests.overload.precedence import run_on_time
from framelane.loadtests.probe import Attempt

_JOIN_S = 5.0


class _Timing(msgspec.Struct, frozen=True):
    inference_ms: float = 0.0


class _Answer(msgspec.Struct, frozen=True):
    seq: int = -1
    reason: str = ""
    code: str = ""
    timing: _Timing = _Timing()


_read = msgspec.msgpack.Decoder(tuple[str, _Answer]).decode


class Course(NamedTuple):
    """All attempts after the warm-up, in the order in which they ended, and the seconds that they took together."""

    attempts: list[Attempt]
    seconds: float


class Attempts:
    """Clients that share a number of attempts.

    Args:
        host, port: of the server.
        frames: encoded images; attempts take them in turn.
        timeout: seconds after which an attempt has failed.
    """

    def __init__(self, host: str, port: int, frames: Sequence[bytes], timeout: float = 30.0) -> None:
        self._address = (host, port)
        self._frames = list(frames)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(
        self, clients: int, attempts: int, warm_up: int = 2, tell: Callable[[int], None] = lambda count: None
    ) -> Course:
        """Make so many attempts with so many clients at once.

        Args:
            clients: connections, each with one frame in flight.
            attempts: in all.
            warm_up: attempts per client before them that do not count.
            tell: called now and then with the number of attempts that have ended.

        Raises:
            NotServed, HandshakeFailed, OSError: a client did not get in.
        """
        made: list[Attempt] = []
        numbers = itertools.count()
        sockets = self._connect(clients)
        started: list[float] = []  # before anybody goes on: this thread may be woken when all attempts have ended
        ready = threading.Barrier(clients + 1, action=lambda: started.append(time.perf_counter()))
        threads = [
            threading.Thread(target=self._client, args=(s, made, numbers, attempts, warm_up, ready), daemon=True)
            for s in sockets
        ]
        for thread in threads:
            thread.start()
        try:
            ready.wait(self._timeout * (warm_up + 1))
            while any(thread.is_alive() for thread in threads):
                threads[0].join(0.1)
                time.sleep(0.05)
                tell(len(made))
        finally:
            self._stop.set()
            for connection in sockets:
                connection.close()
            for thread in threads:
                thread.join(_JOIN_S)
            self._stop.clear()
        made.sort(key=lambda attempt: attempt.ended)
        return Course(made, made[-1].ended - started[0] if made else 0.0)

    def _connect(self, clients: int) -> list[socket.socket]:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(contextlib.closing(enter(*self._address))) for _ in range(clients)]
            stack.pop_all()
            return sockets

    def _client(
        self,
        connection: socket.socket,
        made: list[Attempt],
        numbers: itertools.count[int],
        attempts: int,
        warm_up: int,
        ready: threading.Barrier,
    ) -> None:
        run_on_time()
        client = _Client(connection, self._frames, self._timeout)
        for _ in range(warm_up):
            client.attempt()
        ready.wait()
        while not self._stop.is_set():
            with self._lock:
                if next(numbers) >= attempts:
                    return
            attempt = client.attempt()
            if self._stop.is_set() and not attempt.ok:
                return
            made.append(attempt)
            if client.broken:
                return


class _Client:
    """One connection; after a broken one every attempt fails at once."""

    def __init__(self, connection: socket.socket, frames: Sequence[bytes], timeout: float) -> None:
        connection.settimeout(timeout)
        self._socket = connection
        self._messages = [Message(data) for data in frames]
        self._timeout = timeout
        self._seq = -1
        self.broken = False

    def attempt(self) -> Attempt:
        """Send one frame and wait for its answer."""
        self._seq += 1
        message = self._messages[self._seq % len(self._messages)]
        message.head[message.seq_at : message.seq_at + 4] = self._seq.to_bytes(4, "big")
        started = time.perf_counter()
        try:
            self._socket.sendall(message.head + message.data)
            name, answer = self._wait(started + self._timeout)
        except TimeoutError:
            self.broken = True
            return self._failed(started, "timeout")
        except (OSError, NotServed) as error:
            self.broken = True
            return self._failed(started, type(error).__name__)
        ended = time.perf_counter()
        if name != "result":
            return self._failed(started, answer.reason or answer.code or name)
        return Attempt(True, ended - started, ended, answer.timing.inference_ms)

    def _wait(self, until: float) -> tuple[str, _Answer]:
        while time.perf_counter() < until:
            opcode, payload = rfc6455.receive(self._socket)
            if opcode == rfc6455.PING:
                self._socket.sendall(rfc6455.head(len(payload), rfc6455.PONG) + payload)
            elif opcode == rfc6455.CLOSE:
                raise NotServed("the server closed a connection")
            elif opcode == rfc6455.BINARY:
                name, answer = _read(payload)
                if name == "error" or (name in ("result", "dropped") and answer.seq == self._seq):
                    return name, answer
        raise TimeoutError

    def _failed(self, started: float, why: str) -> Attempt:
        ended = time.perf_counter()
        return Attempt(False, ended - started, ended, 0.0, why)
