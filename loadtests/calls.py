"""Python calls per frame in the gateway, and in a bare echo of the same door on the same uvicorn.

The interpreter is what limits a gateway, and calls are how much it has to do: the count is exact and the same on every
machine, where times are not. ``sys.setprofile`` counts the ``call`` events of the gateway's only thread while a few
closed-loop clients send the sample picture, minus what the same process does in the same time when nobody sends.

    websocket          the echo is a plain ASGI function: receive, send
    socketio           the echo is python-socketio with its default parser: one event each way, with bytes
    socketio_msgpack   the same with its msgpack serializer

    python -m framelane.loadtests.calls            a table
    python -m framelane.loadtests.calls --json     {door: {server, echo}}
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import http.client
import importlib.resources
import json
import mmap
import runpy
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import websockets

from framelane.loadtests.processes import Process, clean_environment, free_port
from framelane.server.protocol import SOCKETIO_PATH, SUBPROTOCOL, WEBSOCKET_PATH

DOORS = ("websocket", "socketio", "socketio_msgpack")
_CLIENTS = 8
_WARM_UP = 80
_IDLE_S = 1.0
_PATIENCE_S = 30.0

Socket = websockets.ClientConnection
_pack = msgspec.msgpack.encode


# -- clients ---------------------------------------------------------------------------------------------------------


async def _open(door: str, port: int) -> Socket:
    """A connection that may send frames."""
    options: dict[str, Any] = {"proxy": None, "compression": None, "max_size": None}
    if door == "websocket":
        address = f"ws://127.0.0.1:{port}{WEBSOCKET_PATH}"
        socket = await websockets.connect(address, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)], **options)
        await socket.send(_pack(["hello", {}]))
        await socket.recv()
        return socket
    socket = await websockets.connect(f"ws://127.0.0.1:{port}{SOCKETIO_PATH}?EIO=4&transport=websocket", **options)
    await socket.recv()
    await socket.send("40" if door == "socketio" else _pack({"type": 0, "nsp": "/"}))
    await socket.recv()
    return socket


async def _ask(door: str, socket: Socket, seq: int, picture: bytes) -> None:
    """Send a frame and wait for the whole of its answer."""
    if door == "websocket":
        await socket.send(_pack(["frame", seq, picture]))
    elif door == "socketio":
        await socket.send(f'451-["frame",{seq},{{"_placeholder":true,"num":0}}]')
        await socket.send(picture)
    else:
        await socket.send(_pack({"type": 2, "nsp": "/", "data": ["frame", seq, picture]}))
    while not await _answered(socket):
        pass


async def _answered(socket: Socket) -> bool:
    """Receive one event with its attachments; whether it was a result."""
    message = await socket.recv()
    if isinstance(message, str) and message.startswith("45"):
        for _ in range(int(message[2 : message.index("-")])):
            await socket.recv()
    head = message[:40] if isinstance(message, bytes) else message[:40].encode()
    if b"dropped" in head or b"error" in head:
        raise RuntimeError(f"a frame was not answered with a result: {message[:200]!r}")
    return b"result" in head


async def _drive(door: str, port: int, frames: int, counter: Callable[[], int]) -> float:
    """Calls per frame, without those of an idle process in the same time."""
    picture = (importlib.resources.files("framelane.models") / "samples" / "astronaut.jpg").read_bytes()
    sockets = [await _open(door, port) for _ in range(_CLIENTS)]

    async def run(socket: Socket, first: int, count: int) -> None:
        for seq in range(first, first + count):
            await _ask(door, socket, seq, picture)

    async def all_clients(first: int, total: int) -> None:
        await asyncio.gather(*(run(socket, first, total // _CLIENTS) for socket in sockets))

    await all_clients(0, _WARM_UP)
    idle = -counter()
    await asyncio.sleep(_IDLE_S)
    idle += counter()
    calls, started = -counter(), time.monotonic()
    await all_clients(_WARM_UP, frames)
    calls += counter()
    calls -= round(idle * (time.monotonic() - started) / _IDLE_S)
    for socket in sockets:
        await socket.close()
    return calls / (frames // _CLIENTS * _CLIENTS)


# -- what is counted -------------------------------------------------------------------------------------------------


class Counted(Process):
    """A process that counts its main thread's Python calls where this one can read them."""

    def __init__(self, side: str, port: int, folder: Path, arguments: tuple[str, ...]) -> None:
        page = folder / f"{side}-{port}.count"
        page.write_bytes(bytes(8))
        self._file = page.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 8)
        command = ["-m", "framelane.loadtests.calls", "--child", side, "--port", str(port), "--count", str(page)]
        super().__init__([*command, *arguments], folder / f"{side}-{port}.log", clean_environment())

    def calls(self) -> int:
        """Calls since the start."""
        return int(struct.unpack("<Q", self._page[:8])[0])

    def stop(self, patience: float = 15.0) -> float:
        """As ``Process.stop``."""
        took = super().stop(patience)
        self._page.close()
        self._file.close()
        return took


def count_calls(page: Path) -> None:
    """Count from now on, in this thread."""
    file = page.open("r+b")
    counter = ctypes.c_uint64.from_buffer(mmap.mmap(file.fileno(), 8))

    def profile(_frame: Any, event: str, _arg: Any) -> None:
        if event == "call":
            counter.value += 1

    sys.setprofile(profile)


def run_child(side: str, port: int, page: Path, arguments: list[str]) -> None:
    """Be what is counted."""
    if side == "server":
        sys.argv = ["framelane", "serve", "--host", "127.0.0.1", "--port", str(port), *arguments]
        count_calls(page)
        runpy.run_module("framelane.server.cli", run_name="__main__")
        return
    application = websocket_echo if side == "websocket" else socketio_echo(side)
    count_calls(page)
    serve_bare(application, port)


async def websocket_echo(
    scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[..., Awaitable[None]]
) -> None:
    """The least that a websocket server can do: each message goes back, its first bytes at least."""
    await receive()
    await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
    answer = _pack(["result", {"seq": 0, "data": bytes(5616)}])
    while (await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": answer})


def socketio_echo(side: str) -> Any:
    """python-socketio as its documentation shows it: an event with bytes comes, one goes back to its sender."""
    import socketio

    sio = socketio.AsyncServer(async_mode="asgi", serializer="default" if side == "socketio" else "msgpack")
    answer = {"seq": 0, "data": bytes(5616)}

    @sio.on("frame")  # type: ignore[untyped-decorator]
    async def frame(sid: str, seq: int, data: bytes) -> None:
        await sio.emit("result", answer, to=sid)

    return socketio.ASGIApp(sio)


def serve_bare(application: Any, port: int) -> None:
    """uvicorn as Framelane's gateway runs it."""
    import uvicorn

    uvicorn.run(
        application,
        host="127.0.0.1",
        port=port,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        access_log=False,
        log_config=None,
        lifespan="off",
    )


# -- the measurement -------------------------------------------------------------------------------------------------


def measure(door: str, frames: int, arguments: tuple[str, ...]) -> dict[str, float]:
    """Calls per frame of the server and of the door's echo."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for side in ("server", door):
            port = free_port()
            with Counted(side, port, Path(name), arguments if side == "server" else ()) as process:
                _wait(process, port, ready=side == "server")
                found[side] = asyncio.run(_drive(door, port, frames, process.calls))
    return {"server": found["server"], "echo": found[door]}


def _wait(process: Counted, port: int, ready: bool) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not _answers(port, ready):
        process.check()
        if time.monotonic() > deadline:
            raise TimeoutError(process.tail())
        time.sleep(0.05)


def _answers(port: int, ready: bool) -> bool:
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200 or not ready
    except (OSError, http.client.HTTPException):
        return False


def main() -> None:
    """The command line; what it does not know goes to ``framelane serve``."""
    parser = argparse.ArgumentParser(
        prog="python -m framelane.loadtests.calls", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=DOORS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    given, rest = parser.parse_known_args()
    if given.child:
        run_child(given.child, given.port, given.count, rest)
        return
    results = {door: measure(door, given.frames, tuple(rest)) for door in given.doors}
    if given.json:
        print(json.dumps(results))
        return
    print(f"{'Python calls per frame':<24}{'server':>10}{'echo':>10}{'above':>10}")
    for door, found in results.items():
        above = found["server"] - found["echo"]
        print(f"{door:<24}{found['server']:>10.1f}{found['echo']:>10.1f}{above:>10.1f}")


if __name__ == "__main__":
    main()
