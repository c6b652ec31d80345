"""The server as it was before Framelane: one Python process, images on its event loop, every answer to everybody.

\b
  python -m framelane.loadtests.legacy.server                          all three faults
  python -m framelane.loadtests.legacy.server --no-broadcast           answers go to their senders
  python -m framelane.loadtests.legacy.server --no-inline              images beside the loop, in threads
  python -m framelane.loadtests.legacy.server --no-process             models in processes of their own
  python -m framelane.loadtests.legacy.server --no-inline --no-process --device sim:8 --parallel 4

It speaks the product's wire protocol, version 1, over Socket.IO (default parser) and /ws, so that the same clients and
load generators measure both. Results carry one more field, `lane`, the sender's: with broadcast, a client tells its own
answers from those of others by it. It is Starlette, uvicorn and python-socketio as their documentation shows them:
a task per message, no queue with a bound, no deadline, no admission, no drop. It exists to be measured; the product
has no such path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec
import numpy as np
import socketio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from framelane.models.errors import FramelaneError, InvalidFrame
from framelane.preprocess.packets import WEBSOCKET, encode_event
from framelane.server.protocol import (
    DEADLINE_MS,
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    WEBSOCKET_PATH,
    WINDOW,
    Drop,
    Dropped,
    Ready,
    decode_websocket_frame,
    decode_websocket_hello,
    max_message_bytes,
)

from .faults import Faults
from .runners import Runner, Work, make_runner

log = logging.getLogger(__name__)

_DRAIN_S = 2


class Client:
    """A connection: its lane's name, its pipeline's state, and its plain websocket if it has one."""

    __slots__ = ("lane", "sid", "state", "websocket")

    def __init__(self, sid: str | None = None, websocket: WebSocket | None = None) -> None:
        self.lane = secrets.token_urlsafe(12)
        self.state = b""
        self.sid = sid
        self.websocket = websocket


class Legacy:
    """The service: clients by their lane, and what happens to a frame.

    Args:
        runner: works on frames.
        faults: `broadcast` is looked at here.
        pipeline: its name, for `ready`.
        send_ms: for so long each message holds the event loop, without using the processor (SIMULATED).
    """

    def __init__(self, runner: Runner, faults: Faults, pipeline: str, send_ms: float = 0.0) -> None:
        self._runner = runner
        self._faults = faults
        self._pipeline = pipeline
        self._send_s = send_ms / 1000
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_sid: dict[str, Client] = {}
        self.clients: dict[str, Client] = {}
        self.sio = socketio.AsyncServer(
            async_mode="asgi", cors_allowed_origins="*", max_http_buffer_size=max_message_bytes(MAX_FRAME_BYTES)
        )
        self.sio.on("connect", self.connect)
        self.sio.on("disconnect", self.disconnect)
        self.sio.on("frame", self.frame)

    # -- Socket.IO ---------------------------------------------------------------------------------------------------

    async def connect(self, sid: str, environ: Any, auth: Any = None) -> None:
        """A Socket.IO client has come."""
        client = self._by_sid[sid] = Client(sid=sid)
        await self._enter(client)

    def disconnect(self, sid: str, reason: str = "") -> None:
        """A Socket.IO client has gone."""
        self.clients.pop(self._by_sid.pop(sid).lane, None)

    async def frame(self, sid: str, seq: int, data: bytes) -> None:
        """A frame over Socket.IO, in a task of its own."""
        await self._answer(self._by_sid[sid], seq, data)

    # -- /ws ---------------------------------------------------------------------------------------------------------

    async def websocket(self, websocket: WebSocket) -> None:
        """One connection on /ws."""
        await websocket.accept(SUBPROTOCOL)
        client = Client(websocket=websocket)
        with contextlib.suppress(WebSocketDisconnect, FramelaneError, msgspec.MsgspecError):
            decode_websocket_hello(await websocket.receive_bytes())
            await self._enter(client)
            while True:
                _name, seq, view = decode_websocket_frame(await websocket.receive_bytes())
                task = asyncio.get_running_loop().create_task(self._answer(client, seq, bytes(view)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self.clients.pop(client.lane, None)

    # -- frames ------------------------------------------------------------------------------------------------------

    async def _enter(self, client: Client) -> None:
        self.clients[client.lane] = client
        ready = Ready(
            lane=client.lane,
            pipeline=self._pipeline,
            window=WINDOW,
            max_frame_bytes=MAX_FRAME_BYTES,
            interval_ms=33,
            deadline_ms=DEADLINE_MS,
        )
        await self._tell(client, "ready", msgspec.to_builtins(ready))

    async def _answer(self, client: Client, seq: int, data: bytes) -> None:
        started = time.perf_counter()
        try:
            result, client.state = await self._runner.run(data, client.state)
        except InvalidFrame as error:
            await self._drop(client, seq, Drop.INVALID, error.message)
        except FramelaneError:
            log.exception("a frame failed")
            await self._drop(client, seq, Drop.FAILED, "the pipeline failed")
        else:
            total = (time.perf_counter() - started) * 1000
            timing = {"queue_ms": 0.0, "preprocess_ms": total, "inference_ms": 0.0, "total_ms": total}
            payload = {"lane": client.lane, "seq": seq, **result, "timing": timing}
            await self._emit(client, "result", payload)

    async def _drop(self, client: Client, seq: int, reason: Drop, message: str) -> None:
        await self._tell(client, "dropped", msgspec.to_builtins(Dropped(seq=seq, reason=reason, message=message)))

    async def _emit(self, client: Client, name: str, payload: dict[str, Any]) -> None:
        """To everybody, or to the sender."""
        if not self._faults.broadcast:
            await self._tell(client, name, payload)
            return
        if self._by_sid:
            await self.sio.emit(name, _sendable(payload))
        packet = encode_event(WEBSOCKET, name, payload)
        for other in list(self.clients.values()):
            if other.websocket is not None:
                await self._send(other.websocket, packet)

    async def _tell(self, client: Client, name: str, payload: dict[str, Any]) -> None:
        if client.websocket is not None:
            await self._send(client.websocket, encode_event(WEBSOCKET, name, payload))
        elif client.sid is not None:
            await self.sio.emit(name, _sendable(payload), to=client.sid)

    async def _send(self, websocket: WebSocket, packet: bytes) -> None:
        if self._send_s:
            time.sleep(self._send_s)  # noqa: ASYNC251 - it holds the loop on purpose
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):  # it has gone; its own handler sees that
            await websocket.send_bytes(packet)


def _sendable(value: Any) -> Any:
    """A result as python-socketio takes it: arrays as their bytes."""
    if isinstance(value, dict):
        return {key: _sendable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.astype(value.dtype.newbyteorder("<")).tobytes()
    return value.item() if isinstance(value, np.generic) else value


def make_app(faults: Faults, work: Work, send_ms: float = 0.0) -> Any:
    """The ASGI application; its runner lives as long as its lifespan."""
    runner = make_runner(faults, work)
    legacy = Legacy(runner, faults, work.pipeline, send_ms)

    async def alive(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    async def status(request: Request) -> JSONResponse:
        simulated = work.device.startswith("sim")
        facts = {"legacy": True, "faults": str(faults), "device": work.device, "simulated": simulated}
        return JSONResponse({**facts, "lanes": len(legacy.clients), "workers": [], "slots": [], "pid": os.getpid()})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        runner.close()

    routes = [
        WebSocketRoute(WEBSOCKET_PATH, legacy.websocket),
        Route("/livez", alive),
        Route("/readyz", alive),
        Route("/v1/status", status),
    ]
    return socketio.ASGIApp(legacy.sio, Starlette(routes=routes, lifespan=lifespan))


@click.command(help=__doc__)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True)
@click.option("--pipeline", default="face_mesh", show_default=True, help="as in `framelane serve`")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="setting of the pipeline")
@click.option("--models", multiple=True, metavar="DIR", help="folder of models of your own")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda[:N], or sim:MS…, as in `framelane serve`")
@click.option("--inline/--no-inline", default=True, show_default=True, help="the event loop works on images")
@click.option("--process/--no-process", default=True, show_default=True, help="models share the sockets' process")
@click.option("--broadcast/--no-broadcast", default=True, show_default=True, help="every result goes to everybody")
@click.option("--parallel", default=2, show_default=True, help="threads or processes, where a fault is switched off")
@click.option("--send-ms", default=0.0, show_default=True, help="for so long each message holds the loop (SIMULATED)")
def main(host: str, port: int, inline: bool, process: bool, broadcast: bool, send_ms: float, **given: Any) -> None:
    """Entry point of the process."""
    faults = Faults(inline=inline, process=process, broadcast=broadcast)
    options = dict(option.split("=", 1) for option in given.pop("options"))
    work = Work(options=options, **given)
    simulated = " (SIMULATED)" if work.device.startswith("sim") else ""
    click.echo(f"legacy server: pipeline {work.pipeline}, device {work.device}{simulated}; faults: {faults}")
    uvicorn.run(
        make_app(faults, work, send_ms),
        host=host,
        port=port,
        log_level="warning",
        ws_max_size=max_message_bytes(MAX_FRAME_BYTES),
        timeout_graceful_shutdown=_DRAIN_S,
    )


if __name__ == "__main__":
    main()
