"""The Socket.IO door: stock clients, both parsers on one server, websocket transport only.

python-socketio keeps the clients' namespaces and decides, with the connect handler, who comes in. What it would do per
frame is done below it (``engine.py``), and what it would emit goes through ``delivery``: it encodes for one parser
before it knows the target, and takes an empty target as everybody. These parts of it are replaced, all private:

    _engineio_server_class   an Engine.IO server that takes websockets and hands them to ``Connection``
    _send_packet             encode for the parser of that connection
    disconnect               also close the websocket, which it leaves open
"""

from __future__ import annotations

import logging
from typing import Any, cast
from urllib.parse import parse_qs

import engineio
import msgspec
import socketio
from socketio.exceptions import ConnectionRefusedError as SocketRefused

from framelane.preprocess.packets import SOCKETIO
from framelane.server.errors import BadMessage, Refused
from framelane.server.lanes.exchange import Exchange
from framelane.server.protocol import Refusal, hello_from

from .engine import Connection
from .gate import address_of
from .origin import check_origin
from .parsers import Envelope, auth_of, packet
from .transport import Receive, Send

_libraries = logging.getLogger("socketio")

_NO_POLLING = "only the websocket transport is served: create the client with transports: ['websocket']"


class SocketIODoor(socketio.AsyncServer):  # type: ignore[misc]  # it ships no types
    """The ASGI application of /socket.io/.

    Args:
        exchange: where clients and frames go.

    Attributes:
        connections: open Engine.IO sockets by their id.
    """

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(
            async_mode="asgi",
            async_handlers=False,
            monitor_clients=False,
            cors_allowed_origins=[],
            logger=_libraries,  # without one, both libraries install handlers of their own
            engineio_logger=_libraries,
        )
        self._exchange = exchange
        self.connections: dict[str, Connection] = {}
        self.on("connect", self._admit)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one connection until it ends, or say why there is none."""
        problem = _problem(scope)
        if problem is not None:
            await _turn_down(scope, receive, send, *problem)
            return
        await receive()  # websocket.connect
        sid = self.eio.generate_id()
        connection = Connection(sid, scope, receive, send, self._exchange, self)
        self.connections[sid] = connection
        await self._handle_eio_connect(sid, scope)
        await connection.run()

    async def connect(self, connection: Connection, envelope: Envelope) -> None:
        """A client's CONNECT: python-socketio asks ``_admit``, and its answer goes back through ``_send_packet``."""
        try:
            auth = auth_of(envelope)
        except BadMessage as error:
            refused = self._refusal(Refused(error.message, code=Refusal.BAD_REQUEST))
            reason = refused.error_args
            await connection.say(packet(connection.flavour or SOCKETIO, 4, reason, envelope.namespace))
            return
        greeted = connection.lane is not None
        await self._handle_connect(connection.sid, envelope.namespace, auth)
        if connection.lane is not None and not greeted and not connection.lane.left:
            self._exchange.greet(connection.lane)

    def forget(self, connection: Connection) -> None:
        """The connection has ended: nothing of it stays here, whatever its handlers have done."""
        self.connections.pop(connection.sid, None)
        self.environ.pop(connection.sid, None)
        for namespace in list(self.manager.get_namespaces()):
            sid = self.manager.sid_from_eio_sid(connection.sid, namespace)
            if sid is not None:
                self.manager.basic_disconnect(sid, namespace)

    async def disconnect(self, sid: str, namespace: str | None = None, ignore_queue: bool = False) -> None:
        """Disconnect a client: its Socket.IO client sees a server disconnect, then the websocket closes."""
        connection = self.connections.get(self.manager.eio_sid_from_sid(sid, namespace or "/") or "")
        await super().disconnect(sid, namespace, ignore_queue)
        if connection is not None:
            await connection.close()

    def _admit(self, sid: str, scope: Any, auth: Any = None) -> None:
        """python-socketio's connect handler."""
        connection = self.connections[self.manager.eio_sid_from_sid(sid, "/")]
        flavour = cast(int, connection.flavour)
        try:
            check_origin(scope["headers"], self._exchange.limits)
            writer = connection.new_writer(flavour)
            lane = self._exchange.admit(hello_from(auth), flavour, writer, address=address_of(scope))
            connection.attach(lane, writer)
        except BadMessage as error:
            raise self._refusal(Refused(error.message, code=Refusal.BAD_REQUEST)) from None
        except Refused as error:
            raise self._refusal(error) from None

    def _refusal(self, refused: Refused) -> SocketRefused:
        self._exchange.accounts.turned_away[refused.code] += 1
        data: dict[str, Any] = {"code": str(refused.code)}
        if refused.retry_after_ms is not None:
            data["retry_after_ms"] = refused.retry_after_ms
        return SocketRefused(refused.message, data)

    async def _send_packet(self, eio_sid: str, pkt: Any) -> None:
        connection = self.connections.get(eio_sid)
        if connection is not None:
            flavour = connection.flavour or SOCKETIO
            # An error as text shows up without its message in JavaScript clients.
            data = {"message": pkt.data} if isinstance(pkt.data, str) else pkt.data
            await connection.say(packet(flavour, pkt.packet_type, data, pkt.namespace, pkt.id))

    def _engineio_server_class(self) -> type[Any]:
        return _Engine


class _Engine(engineio.AsyncServer):  # type: ignore[misc]  # it ships no types
    """Makes ids. Connections do without the rest of it."""


def _problem(scope: Any) -> tuple[int, str] | None:
    """Why a request cannot become a connection: Engine.IO's error code and a message."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=32)
    if query.get("EIO") != ["4"]:
        return 5, "Unsupported protocol version: Socket.IO clients from version 3 on speak EIO=4"
    if scope["type"] != "websocket" or query.get("transport") != ["websocket"]:
        return 0, f"Transport unknown: {_NO_POLLING}"
    if "sid" in query:
        return 1, f"Session ID unknown: {_NO_POLLING}"
    return None


async def _turn_down(scope: Any, receive: Receive, send: Send, code: int, message: str) -> None:
    """400 with Engine.IO's error object, which clients show; any page may read it."""
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await receive()
    headers = [(b"content-type", b"application/json"), (b"access-control-allow-origin", b"*")]
    body = msgspec.json.encode({"code": code, "message": message})
    await send({"type": f"{kind}.start", "status": 400, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
