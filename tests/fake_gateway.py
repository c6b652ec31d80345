"""A gateway on real sockets with real uvicorn; only the pool is fake."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from fake_pool import FakePool

from framelane.server.doors.bounded_http import BoundedHttpProtocol
from framelane.server.doors.gate import Gate
from framelane.server.doors.partial import PartialMessages
from framelane.server.doors.routes import Doors
from framelane.server.doors.transport import GatewayProtocol
from framelane.server.lanes.accounts import Accounts
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.limits import Limits
from framelane.server.lanes.passes import Passes
from framelane.server.protocol import max_message_bytes


class Provider:
    """What app.py tells the HTTP door about the rest of the server."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def degraded(self) -> list[str]:
        return []

    def ready(self) -> list[str]:
        return self.reasons

    def status(self) -> dict[str, Any]:
        return {"version": "test", "workers": [], "slots": []}


@dataclass
class Gateway:
    port: int
    exchange: Exchange
    pool: FakePool
    provider: Provider
    doors: Doors
    server: uvicorn.Server

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    async def until(self, condition: Callable[[], bool], within_s: float = 5.0) -> None:
        """Wait for something that another task does."""
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def until_gone(self) -> None:
        """Wait until no lane, socket or task of a client is left."""
        await self.until(lambda: not self.exchange.delivery.lanes)
        await self.until(lambda: not self.server.server_state.connections and not self.server.server_state.tasks)

    def books(self) -> dict[str, int]:
        accounts = self.exchange.accounts
        parts = {"received": accounts.received, "delivered": accounts.delivered, "left": accounts.left}
        parts |= {"dropped": accounts.dropped.total(), "refused": accounts.refused.total()}
        return parts | {"slow_reader": accounts.slow_reader, "inside": accounts.inside}


@contextlib.asynccontextmanager
async def run_gateway(
    pool: FakePool,
    *,
    passes: Passes | None = None,
    gate: Callable[[Accounts], Gate] | None = None,
    tls: Mapping[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    listening = socket.create_server(("127.0.0.1", 0))
    values = Limits(**{"pipeline": "echo", **limits})
    exchange = Exchange(pool, values, time.monotonic, passes=passes)
    provider = Provider()
    doors = Doors(exchange, provider, gate=gate(exchange.accounts) if gate else None)
    config = uvicorn.Config(
        doors,
        http=BoundedHttpProtocol,
        ws=GatewayProtocol,
        ws_max_size=max_message_bytes(values.max_frame_bytes),
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        log_config=None,
        lifespan="off",
        proxy_headers=False,
        **(tls or {}),
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve(sockets=[listening]))
    partial = PartialMessages(values.mailbox_bytes, max_message_bytes(values.max_frame_bytes), exchange.accounts)
    ticking = asyncio.create_task(tick(exchange, partial, server))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    try:
        yield Gateway(listening.getsockname()[1], exchange, pool, provider, doors, server)
    finally:
        server.should_exit = True
        server.force_exit = True
        await serving
        ticking.cancel()
        listening.close()


async def tick(exchange: Exchange, partial: PartialMessages, server: uvicorn.Server) -> None:
    while True:
        await asyncio.sleep(0.05)
        exchange.tick()
        partial.check(server.server_state.connections)
