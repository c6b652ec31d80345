"""A Redis of its own, and a wire to it that can be cut or go dead."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from framelane.loadtests.processes import free_port
from support import require_program

_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


class RedisServer:
    """redis-server on a port of this machine, which keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [require_program("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1"]
        self._command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import redis

        command = ["python3", "-c", _DIE_WITH_PARENT, *self._command]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(redis.RedisError), redis.Redis(port=self.port) as client:
                client.ping()
                return
            assert time.monotonic() < until, "redis does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


class Wire:
    """A connection to Redis through this process. While it is `dead`, subscribers hear nothing, and nothing fails."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.dead = False
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        subscribed = asyncio.Event()
        await asyncio.gather(
            self._forward(reader, far_writer, subscribed), self._forward(far_reader, writer, subscribed, back=True)
        )

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, subscribed: asyncio.Event, back: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if b"SUBSCRIBE" in data and not back:
                    subscribed.set()
                if not (back and self.dead and subscribed.is_set()):
                    writer.write(data)
                    await writer.drain()
        writer.close()


@pytest.fixture
async def wire(redis_server: RedisServer) -> AsyncIterator[Wire]:
    wire = Wire(redis_server.port)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    yield wire
    server.close()
