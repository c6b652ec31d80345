"""A user on the stock clients: ``locust.contrib.socketio``, python-socketio's synchronous client below it.

It shows what a page written with the stock client gets, at several times the cost of a lean user per frame: three
greenlets and two queues for each, a packet object and a text message beside each picture. Of the contributed user's
traps these are avoided: its ``emit`` and every event would be told to Locust as taking 0 ms, and a failed connect would
go unnoticed.
"""

from __future__ import annotations

import time
from typing import Any

import gevent
import msgspec
import socketio
from locust.contrib.socketio import SocketIOClient

from framelane.server.protocol import Drain, Dropped, Error, Pace, Ready, RefusedData, Waiting

from .doors import Answer, Heard, Picture
from .streams import Stream
from .users import Streamer

_EVENTS = {
    "ready": Ready, "waiting": Waiting, "result": Answer, "dropped": Dropped, "error": Error, "pace": Pace,
    "drain": Drain,
}  # fmt: skip
_CONNECT_S = 10


class StockTransport:
    """python-socketio's client as a ``Transport``."""

    def __init__(self, stream: Stream, url: str, request_event: Any) -> None:
        self._stream = stream
        self._url = url
        self._request_event = request_event
        self._client: SocketIOClient | None = None
        self.busy = False

    @property
    def is_open(self) -> bool:
        """See ``Transport``."""
        return self._client is not None

    def open(self, resume: str) -> None:
        """See ``Transport``."""
        client = SocketIOClient(self._request_event, reconnection=False, handle_sigint=False)
        self._client = client
        for name, kind in _EVENTS.items():
            client.on(name, lambda payload, name=name, kind=kind: self._hear(client, name, kind, payload))
        client.on("connect_error", lambda data: self._refused(client, data))
        client.on("disconnect", lambda reason=None: self._gone(client, str(reason or "the connection ended")))
        gevent.spawn(self._connect, client, resume)

    def send(self, picture: Picture, seq: int) -> None:
        """See ``Transport``."""
        if self._client is not None and self._client.connected:
            socketio.Client.emit(self._client, "frame", (seq, picture.data))

    def close(self) -> None:
        """See ``Transport``."""
        client, self._client = self._client, None
        if client is not None:
            gevent.spawn(client.disconnect)

    def _connect(self, client: SocketIOClient, resume: str) -> None:
        try:
            self._stream.opened(time.monotonic())
            socketio.Client.connect(
                client, self._url, auth={"resume": resume}, transports=["websocket"], wait_timeout=_CONNECT_S
            )
        except Exception as error:  # every way to fail is one: the client's own, engine.io's, the websocket's
            self._gone(client, str(error) or type(error).__name__)

    def _hear(self, client: SocketIOClient, name: str, kind: Any, payload: Any) -> None:
        if self._client is client:
            faces = payload.get("faces") if name == "result" else None
            tracked = bool(faces and isinstance(faces[0], dict) and faces[0].get("tracked"))
            if name == "result":
                payload = {"seq": payload["seq"]}
            self._stream.hear(Heard(name, msgspec.convert(payload, kind), tracked), time.monotonic())

    def _refused(self, client: SocketIOClient, data: Any) -> None:
        details = data.get("data") if isinstance(data, dict) else None
        if self._client is client and isinstance(details, dict):
            self._stream.hear(Heard("refused", msgspec.convert(details, RefusedData)), time.monotonic())

    def _gone(self, client: SocketIOClient, reason: str) -> None:
        if self._client is client:
            self._client = None
            self._stream.lost(time.monotonic(), reason)


class StockSocketIOUser(Streamer):
    """A user of Socket.IO with the stock client."""

    door = "socketio-stock"
    usual = False

    def transport(self, persona: Any) -> StockTransport:
        """See ``Streamer``; the network is not shaped."""
        return StockTransport(self.stream, self.environment.host, self.environment.events.request)
