"""Socket.IO packets in both parsers, without I/O: envelopes in, finished packets out.

The hot path never comes here: a well-formed frame is decoded by ``protocol.decode_socketio_…``. What does come here is
rare or wrong: CONNECT, DISCONNECT, acks, other events. It may be hostile, so text is bounded before it is parsed, and
of a msgpack packet only the envelope is read.

    default   <type>[<attachments>-][<namespace>,][<id>][<JSON>]        text; attachments follow as binary messages
    msgpack   {type, nsp, data?, id?}                                   binary
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from framelane.preprocess.packets import SOCKETIO, text_packet
from framelane.server.errors import BadMessage
from framelane.server.protocol import MAX_HELLO_BYTES, MAX_SEQ, UNREADABLE

from .explain import explain_json, explain_msgpack

_TEXT = re.compile(r"([0-6])(?:(\d{1,10})-)?(?:(/[^,]{0,200}),?)?(\d{0,15})(.*)", re.DOTALL | re.ASCII)


class Kind(IntEnum):
    """Socket.IO packet types."""

    CONNECT = 0
    DISCONNECT = 1
    EVENT = 2
    ACK = 3
    CONNECT_ERROR = 4
    BINARY_EVENT = 5
    BINARY_ACK = 6


class Envelope(NamedTuple):
    """A packet whose payload has not been decoded."""

    kind: int
    namespace: str
    id: int | None
    attachments: int
    payload: str | Raw


class _Msgpack(Struct, frozen=True):
    type: Annotated[int, Meta(ge=0, le=6)]
    nsp: Annotated[str, Meta(max_length=200)] = "/"
    data: Raw = Raw()
    id: Annotated[int, Meta(ge=0, le=MAX_SEQ)] | None = None


_decode_msgpack = msgspec.msgpack.Decoder(_Msgpack).decode


def open_text(text: str) -> Envelope:
    """Read the envelope of a default-parser packet, the Engine.IO type taken off.

    Raises:
        BadMessage: it is none, or it is longer than anything a client has to say in text.
    """
    if len(text) > MAX_HELLO_BYTES:
        raise BadMessage(f"a text message of {len(text)} characters: frames are sent as bytes")
    found = _TEXT.fullmatch(text)
    if found is None:
        raise BadMessage(f"no Socket.IO packet: {text[:20]!r}")
    kind, attachments, namespace, number, payload = found.groups()
    name = (namespace or "/").partition("?")[0]
    return Envelope(int(kind), name, int(number) if number else None, int(attachments or 0), payload)


def open_binary(message: bytes) -> Envelope:
    """Read the envelope of a msgpack packet.

    Raises:
        BadMessage: it is none.
    """
    try:
        packet = _decode_msgpack(message)
    except UNREADABLE as error:
        raise BadMessage(f"no msgpack Socket.IO packet: {str(error)[:120]}") from None
    return Envelope(packet.type, packet.nsp, packet.id, 0, packet.data)


def auth_of(envelope: Envelope) -> Any:
    """The `auth` object of a CONNECT, or None.

    Raises:
        BadMessage: it cannot be decoded, or is too large.
    """
    payload = envelope.payload
    size = len(payload) if isinstance(payload, str) else memoryview(payload).nbytes
    if size > MAX_HELLO_BYTES:
        raise BadMessage(f"auth has {size} bytes; the limit is {MAX_HELLO_BYTES}")
    try:
        if isinstance(payload, str):
            return msgspec.json.decode(payload) if payload else None
        auth = msgspec.msgpack.decode(payload) if size else None
        return None if isinstance(auth, msgspec.msgpack.Ext) else auth  # JavaScript's undefined
    except UNREADABLE as error:
        raise BadMessage(f"auth cannot be read: {str(error)[:120]}") from None


def explain(envelope: Envelope) -> BadMessage:
    """Say why a packet is no frame."""
    if envelope.namespace != "/":
        return BadMessage(f"not connected to the namespace {envelope.namespace[:40]!r}")
    if envelope.attachments > 1:
        return BadMessage(f"{envelope.attachments} attachments announced: a frame has one")
    if envelope.kind not in (Kind.EVENT, Kind.BINARY_EVENT):
        return BadMessage(f"unexpected packet {Kind(envelope.kind).name}")
    if isinstance(envelope.payload, str):
        return explain_json(envelope.payload)
    return explain_msgpack(envelope.payload)


def packet(flavour: int, kind: int, data: Any = None, namespace: str | None = None, number: int | None = None) -> bytes:
    """Finish a packet that is no event: CONNECT, CONNECT_ERROR, DISCONNECT, ACK.

    There are no None values in a msgpack packet: the JavaScript parser takes one for a parse error.
    """
    space = namespace or "/"
    if flavour == SOCKETIO:
        place = "" if space == "/" else f"{space},"
        payload = "" if data is None else msgspec.json.encode(data).decode()
        return text_packet(f"4{int(kind)}{place}{'' if number is None else number}{payload}")
    fields: dict[str, Any] = {"type": int(kind), "nsp": space}
    if data is not None:
        fields["data"] = data
    if number is not None:
        fields["id"] = number
    return msgspec.msgpack.encode(fields)
