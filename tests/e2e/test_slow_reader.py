"""Clients that stop reading are shed from, then cut, and their memory comes back (invariant 3)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from e2e.clients import FLAVOURS, bystander, encode_event
from e2e.frames import signed
from e2e.servers import PATIENCE_S, Serve, serving, wait_until

from framelane.loadtests import rfc6455
from framelane.server.protocol import SUBPROTOCOL

MB = 1 << 20
PICTURE = signed(10, 10)
MOST_BYTES_EACH = 12 * MB  # the outbox of 1 MB, what is being written, and the buffers below, with a margin

STOPPED = {
    "python-socketio": """
import sys, time, socketio
client = socketio.Client(reconnection=False)
client.on("ready", lambda _fields: print("ready", flush=True))
client.connect(f"http://127.0.0.1:{sys.argv[1]}", transports=["websocket"])
time.sleep(1000)
""",
    "websockets": """
import sys, time
from websockets.sync.client import connect
client = connect(f"ws://127.0.0.1:{sys.argv[1]}/ws", subprotocols=["framelane.v1"])
client.send(b"\\x92\\xa5hello\\x80")
client.recv()
print("ready", flush=True)
time.sleep(1000)
""",
}


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Serve]:
    """Answers of 200 kB, so that socket buffers are soon full."""
    options = ["--pipeline", "pipelines:Large", "--deadline-ms", "20000", "--workers", "1", "--active-slots", "1"]
    with serving(logs, *options) as server:
        yield server


def never_reads(port: int, flavour: str) -> socket.socket:
    """A connection whose client has said hello and will never read again."""
    plain = flavour == "websocket"
    path = "/ws" if plain else "/socket.io/?EIO=4&transport=websocket"
    connection = rfc6455.connect("127.0.0.1", port, path, SUBPROTOCOL if plain else None)
    if plain:
        send(connection, msgspec.msgpack.encode(["hello", {}]))
    elif flavour == "msgpack":
        send(connection, msgspec.msgpack.encode({"type": 0, "nsp": "/"}))
    else:
        send(connection, "40")
    return connection


def send(connection: socket.socket, message: str | bytes) -> None:
    opcode = rfc6455.TEXT if isinstance(message, str) else rfc6455.BINARY
    data = message.encode() if isinstance(message, str) else message
    connection.sendall(rfc6455.head(len(data), opcode) + data)


async def keep_sending(connection: socket.socket, flavour: str) -> None:
    """A frame every few milliseconds, until the server ends the connection."""
    for seq in range(100_000):
        try:
            for message in encode_event(flavour, "frame", seq, PICTURE):
                await asyncio.to_thread(send, connection, message)
        except OSError:
            return
        await asyncio.sleep(0.01)


async def test_clients_that_never_read_are_shed_from_and_cut(server: Serve) -> None:
    """One at each door, all at once, while somebody else is served."""
    before, memory = server.quiet_books(), server.pss()
    peak = 0
    async with bystander(server.port, PICTURE):
        with contextlib.ExitStack() as connections:
            sending = []
            for flavour in FLAVOURS:
                connection = connections.enter_context(never_reads(server.port, flavour))
                sending.append(asyncio.create_task(keep_sending(connection, flavour)))
            async with asyncio.timeout(PATIENCE_S):
                while not all(task.done() for task in sending):
                    peak = max(peak, await asyncio.to_thread(server.pss))
                    await asyncio.sleep(0.2)
            await asyncio.to_thread(
                wait_until, lambda: server.books().lanes == before.lanes + 1, "their lanes are gone"
            )
    books = (await asyncio.to_thread(server.quiet_books)).since(before)
    assert books.cut["slow_reader"] == len(FLAVOURS)
    assert books.shed >= len(FLAVOURS)
    assert books.received == books.ended
    assert peak - memory < len(FLAVOURS) * MOST_BYTES_EACH
    assert await asyncio.to_thread(server.pss) - memory < MOST_BYTES_EACH


@pytest.mark.prove
@pytest.mark.timeout(240)
@pytest.mark.parametrize("client", STOPPED)
def test_a_client_whose_process_is_stopped_is_missed_and_cut(server: Serve, client: str) -> None:
    """It is not gone: its kernel goes on acknowledging. Only that nobody answers a ping tells."""
    before = server.quiet_books()
    arguments = [sys.executable, "-c", STOPPED[client], str(server.port)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert server.books().lanes == before.lanes + 1
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: server.books().lanes == before.lanes, "its lane is gone", patience=100)
        finally:
            process.kill()
