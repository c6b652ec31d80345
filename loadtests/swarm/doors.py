"""The two doors from a user's side, without I/O: what goes out first, what a frame looks like, what has come in.

Both are the least that their protocol needs: Engine.IO 4 and Socket.IO's default parser over one websocket, and
msgpack arrays on ``/ws``. A frame is encoded once per picture, apart from its number. An instance belongs to one
connection, since Socket.IO's attachments follow their event as messages of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from framelane.loadtests import rfc6455
from framelane.loadtests.generator import Message as FrameMessage
from framelane.loadtests.overload.links import Message
from framelane.server.protocol import (
    SOCKETIO_PATH,
    SUBPROTOCOL,
    WEBSOCKET_PATH,
    Drain,
    Dropped,
    Error,
    Pace,
    Ready,
    RefusedData,
    Waiting,
)


class Answer(msgspec.Struct, frozen=True):
    """What is looked at in a result."""

    seq: int = -1


class Heard(NamedTuple):
    """One event of the server: its name, its argument, and whether it is a result that was tracked."""

    name: str
    payload: Any
    tracked: bool = False


class Reply(NamedTuple):
    """What the protocol itself wants to be answered, ready to be sent."""

    data: bytes


class Picture(NamedTuple):
    """One encoded frame, and its message for ``/ws``."""

    data: bytes
    message: FrameMessage

    @classmethod
    def of(cls, data: bytes) -> Picture:
        """From the bytes of an image."""
        return cls(data, FrameMessage(data))


class Door(Protocol):
    """One connection's side of a protocol above websockets."""

    name: str
    path: str
    subprotocol: str | None

    def greeting(self, resume: str) -> bytes:
        """What is sent as soon as the websocket is open; ``resume`` is the ticket of the last connection."""

    def frame(self, picture: Picture, seq: int) -> Sequence[bytes | bytearray]:
        """A frame as pieces of websocket messages; valid until the next call."""

    def hear(self, message: Message) -> Heard | Reply | None:
        """Read one message. None: there is nothing to do yet. Raises msgspec.MsgspecError or ValueError."""


_CONTROL: Final = {
    "ready": Ready,
    "waiting": Waiting,
    "dropped": Dropped,
    "error": Error,
    "pace": Pace,
    "drain": Drain,
    "refused": RefusedData,
}
_MSGPACK = {name: msgspec.msgpack.Decoder(tuple[str, kind]) for name, kind in _CONTROL.items()}  # type: ignore[valid-type]
_JSON = {name: msgspec.json.Decoder(tuple[str, kind]) for name, kind in _CONTROL.items()}  # type: ignore[valid-type]
_read_msgpack = msgspec.msgpack.Decoder(tuple[str, Answer]).decode
_read_json = msgspec.json.Decoder(tuple[str, Answer]).decode
_TRACKED_MSGPACK, _TRACKED_JSON = b"\xa7tracked\xc3", b'"tracked":true'


class WebSocketDoor:
    """``/ws``."""

    name = "ws"
    path = WEBSOCKET_PATH
    subprotocol: str | None = SUBPROTOCOL

    def greeting(self, resume: str) -> bytes:
        """See ``Door``."""
        hello = msgspec.msgpack.encode(["hello", {"resume": resume}])
        return rfc6455.head(len(hello)) + hello

    def frame(self, picture: Picture, seq: int) -> Sequence[bytes | bytearray]:
        """See ``Door``."""
        message = picture.message
        message.head[message.seq_at : message.seq_at + 4] = seq.to_bytes(4, "big")
        return message.head, message.data

    def hear(self, message: Message) -> Heard | Reply | None:
        """See ``Door``."""
        opcode, payload = message
        if opcode == rfc6455.PING:
            return Reply(rfc6455.head(len(payload), rfc6455.PONG) + payload)
        if opcode != rfc6455.BINARY:
            return None
        name, answer = _read_msgpack(payload)
        if name == "result":
            return Heard(name, answer, _TRACKED_MSGPACK in payload)
        return Heard(name, _MSGPACK[name].decode(payload)[1]) if name in _MSGPACK else None


class SocketIODoor:
    """``/socket.io/`` with the default parser."""

    name = "socketio"
    path = f"{SOCKETIO_PATH}?EIO=4&transport=websocket"
    subprotocol: str | None = None

    def __init__(self) -> None:
        self._resume = ""
        self._awaited = 0
        self._complete: Heard | None = None

    def greeting(self, resume: str) -> bytes:
        """Nothing: the server speaks first, and is answered with CONNECT."""
        self._resume = resume
        return b""

    def frame(self, picture: Picture, seq: int) -> Sequence[bytes | bytearray]:
        """See ``Door``."""
        text = b'451-["frame",%d,{"_placeholder":true,"num":0}]' % seq
        size = len(picture.data)
        return rfc6455.head(len(text), rfc6455.TEXT) + text + rfc6455.head(size), picture.data

    def hear(self, message: Message) -> Heard | Reply | None:
        """See ``Door``."""
        opcode, payload = message
        if opcode == rfc6455.BINARY and self._awaited:
            self._awaited -= 1
            return self._complete if not self._awaited else None
        if opcode == rfc6455.PING:
            return Reply(rfc6455.head(len(payload), rfc6455.PONG) + payload)
        if opcode != rfc6455.TEXT:
            return None
        if payload.startswith(b"45"):
            count, _, rest = payload[2:].partition(b"-")
            heard = self._event(rest)
            self._awaited, self._complete = int(count), heard
            return None if self._awaited else heard
        return self._plain(payload)

    def _plain(self, text: bytes) -> Heard | Reply | None:
        """Text without attachments: an event, a ping, or a step of the handshake."""
        if text.startswith(b"42"):
            return self._event(text[2:])
        if text == b"2":
            return _text(b"3")
        if text.startswith(b"0"):
            return _text(b"40" + msgspec.json.encode({"resume": self._resume}))
        if text.startswith(b"44"):
            refusal = msgspec.json.decode(text[2:], type=_ConnectError)
            code = refusal.data.code if refusal.data else "bad_request"
            after = refusal.data.retry_after_ms if refusal.data else msgspec.UNSET
            return Heard("refused", RefusedData(code=code, message=refusal.message, retry_after_ms=after))
        return None

    def _event(self, text: bytes) -> Heard | None:
        name, answer = _read_json(text)
        if name == "result":
            return Heard(name, answer, _TRACKED_JSON in text)
        return Heard(name, _JSON[name].decode(text)[1]) if name in _JSON else None


class _ConnectError(msgspec.Struct, frozen=True):
    message: str = ""
    data: RefusedData | None = None


def _text(payload: bytes) -> Reply:
    return Reply(rfc6455.head(len(payload), rfc6455.TEXT) + payload)


DOORS: Final[dict[str, type[WebSocketDoor] | type[SocketIODoor]]] = {"ws": WebSocketDoor, "socketio": SocketIODoor}
