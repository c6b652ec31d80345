"""Which door a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute

from framelane.server.lanes.exchange import Exchange
from framelane.server.ops.watch import Watch
from framelane.server.protocol import SOCKETIO_PATH, WEBSOCKET_PATH

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
    """

    def __init__(
        self, exchange: Exchange, provider: Provider, further: Sequence[BaseRoute] = (), watch: Watch | None = None
    ) -> None:
        self.http = HttpDoor(exchange, provider, further, watch)
        self.socketio = SocketIODoor(exchange)
        self.websocket = WebSocketDoor(exchange)
        self._pages: Any = self.http.app()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one connection or request. ``lifespan`` is Starlette's."""
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
