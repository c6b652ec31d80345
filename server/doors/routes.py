"""Which door a request goes to, and whom a trusted proxy brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from framelane.server.lanes.exchange import Exchange
from framelane.server.ops.watch import Watch
from framelane.server.protocol import SOCKETIO_PATH, WEBSOCKET_PATH

from .answers import answer
from .gate import ADDRESS, RETRY_S, Gate, group_of, plain
from .http import HttpDoor, Provider
from .socketio import SocketIODoor
from .transport import Receive, Send
from .websocket import WebSocketDoor


class Doors:
    """The ASGI application of the gateway.

    Args:
        exchange: where clients and frames go.
        provider: readiness and status of the rest of the server.
        further: routes of long jobs and operators.
        watch: looks at the replica, for /metrics.
        gate: counts connections; by default it has no limits but on strangers.

    Attributes:
        gate: the same, for uvicorn's protocols (``bounded_http.py``, ``transport.py``).
    """

    def __init__(
        self,
        exchange: Exchange,
        provider: Provider,
        further: Sequence[BaseRoute] = (),
        watch: Watch | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate or Gate(exchange.accounts)
        # What a proxy has added comes last, so the last address that is no proxy's is the caller's.
        brought: Any = self._brought
        self._proxied: Any = ProxyHeadersMiddleware(brought, [str(network) for network in self.gate.trusted])
        self.http = HttpDoor(exchange, provider, further, watch)
        self.socketio = SocketIODoor(exchange)
        self.websocket = WebSocketDoor(exchange)
        self._pages: Any = self.http.app()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        peer = scope.get("client")
        if peer is not None and self.gate.trusts(peer[0]):
            await self._proxied({**scope, "client": (plain(peer[0]), peer[1])}, receive, send)
        else:
            if peer is not None:
                scope[ADDRESS] = group_of(peer[0])
            await self._route(scope, receive, send)

    async def _brought(self, scope: Any, receive: Receive, send: Send) -> None:
        """A request that a proxy brings counts for the address that the proxy names, not for its own."""
        host = scope["client"][0]
        address = "" if self.gate.trusts(host) else group_of(host)  # a proxy that names nobody asks for itself
        if address and not self.gate.enter(address):
            await _too_many(scope, receive, send)
            return
        scope[ADDRESS] = address
        try:
            await self._route(scope, receive, send)
        finally:
            self.gate.leave(address)

    async def _route(self, scope: Any, receive: Receive, send: Send) -> None:
        """``lifespan`` is Starlette's."""
        kind, path = scope["type"], scope.get("path", "")
        if kind != "lifespan" and path.startswith(SOCKETIO_PATH):
            await self.socketio(scope, receive, send)
        elif kind != "websocket":
            await self._pages(scope, receive, send)
        elif path == WEBSOCKET_PATH:
            await self.websocket(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})


async def _too_many(scope: Any, receive: Receive, send: Send) -> None:
    """429, for a websocket in place of its handshake."""
    response: Any = answer(429, "rate_limited", "too many connections from this address", 1000 * RETRY_S)
    if scope["type"] == "websocket":
        await receive()
    await response(scope, receive, send)
