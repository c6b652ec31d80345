"""Finished packets: an event encoded once, by whoever made it, as the bytes that the client's websocket gets.

A worker encodes a result in the flavour of the door that the frame came through; the gateway hands the bytes on and
never looks inside. One packet is one event:

    WEBSOCKET          [name, ...args] as msgpack, one binary message
    SOCKETIO           Socket.IO's default parser: a text message with placeholders, and a binary one per attachment
    SOCKETIO_MSGPACK   socket.io-msgpack-parser: {type: 2, nsp: "/", data: [name, ...args]}, one binary message
    JSON               [name, ...args] as JSON; an HTTP answer is the first argument

The Engine.IO packet type is included where there is one ("4" before text; binary messages have none). Only SOCKETIO
needs several messages: its packet is ``count: u16, length: u32 x count``, little-endian, then the messages in order.

Values are JSON-like; NumPy arrays travel as little-endian bytes in C order on the sockets and as nested lists in JSON;
NumPy scalars and 0-d arrays as numbers. Not-a-number and infinities are null in JSON and in SOCKETIO's text.

NumPy is not imported here: the gateway uses this module too, and whoever passes an array has imported it.
"""

from __future__ import annotations

import struct
import sys
from enum import IntEnum
from typing import Any

import msgspec


class Flavour(IntEnum):
    """How the events of a connection are encoded; it travels with each frame."""

    WEBSOCKET = 0
    SOCKETIO = 1
    SOCKETIO_MSGPACK = 2
    JSON = 3


WEBSOCKET, SOCKETIO, SOCKETIO_MSGPACK, JSON = Flavour

_MSGPACK_EVENT = b"\x83\xa4type\x02\xa3nsp\xa1/\xa4data"  # {"type": 2, "nsp": "/", "data": …
_JSON_RESULT = b'["result",'
_BIG_ENDIAN = ">=" if sys.byteorder == "big" else ">"
_CONTAINERS = (dict, list, tuple)
_BYTES = (bytes, bytearray, memoryview)


def encode_event(flavour: int, name: str, *args: Any) -> bytes:
    """Encode one event as a finished packet.

    Raises:
        TypeError: a value that no client could read, for example an array of objects or a set.
        OverflowError: an integer beyond 64 bits.
    """
    if flavour == WEBSOCKET:
        return _msgpack.encode([name, *args])
    if flavour == SOCKETIO_MSGPACK:
        return _MSGPACK_EVENT + _msgpack.encode([name, *args])
    if flavour == JSON:
        return _json.encode([name, *args])
    return _frame(_socketio_messages([name, *args]))


def parts(flavour: int, packet: bytes | memoryview) -> list[str | bytes]:
    """The websocket messages of a packet, in order: ``str`` goes out as text, ``bytes`` as binary.

    The messages are owned copies where the packet has several; a ``bytes`` packet of one message is returned as is.
    """
    if flavour != SOCKETIO:
        return [bytes(packet)]
    (count,) = struct.unpack_from("<H", packet)
    text, *lengths = struct.unpack_from(f"<{count}I", packet, 2)
    start = 2 + 4 * count
    messages: list[str | bytes] = [str(packet[start : start + text], "utf-8")]
    start += text
    for length in lengths:
        messages.append(bytes(packet[start : start + length]))
        start += length
    return messages


def json_result(packet: bytes) -> bytes | None:
    """The fields of a result in a JSON packet, as they were encoded and without looking at them; None: no result."""
    return packet[len(_JSON_RESULT) : -1] if packet.startswith(_JSON_RESULT) else None


def text_packet(text: str) -> bytes:
    """A SOCKETIO packet of one text message, which the caller has finished: the handshake's, for example."""
    return _frame([text.encode()])


def _socketio_messages(data: list[Any]) -> list[bytes | memoryview]:
    """Engine.IO text with placeholders, then the attachments they stand for."""
    attachments: list[bytes | memoryview] = []

    def attach(value: Any) -> Any:
        plain = _plain(value)
        if isinstance(plain, memoryview):
            attachments.append(plain)
            return {"_placeholder": True, "num": len(attachments) - 1}
        return plain

    text = msgspec.json.encode(_placeholders(data, attachments), enc_hook=attach)
    prefix = b"45%d-" % len(attachments) if attachments else b"42"
    return [prefix + text, *attachments]


def _placeholders(value: Any, attachments: list[bytes | memoryview]) -> Any:
    """Replace bytes, which JSON would take for base64; arrays are found by the encoder itself."""
    if isinstance(value, _BYTES):
        attachments.append(value if isinstance(value, memoryview) else bytes(value))
        return {"_placeholder": True, "num": len(attachments) - 1}
    searched = _CONTAINERS + _BYTES
    if isinstance(value, dict):
        return {k: _placeholders(v, attachments) if isinstance(v, searched) else v for k, v in value.items()}
    return [_placeholders(v, attachments) if isinstance(v, searched) else v for v in value]


def _frame(messages: list[bytes | memoryview]) -> bytes:
    lengths = [len(m) if isinstance(m, bytes) else m.nbytes for m in messages]
    return b"".join([struct.pack(f"<H{len(lengths)}I", len(lengths), *lengths), *messages])


def _plain(value: Any) -> Any:
    """A NumPy value as what msgpack can carry: arrays as a view of their bytes, scalars as numbers."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "tobytes"):
        raise TypeError(f"a result cannot carry a value of type {type(value).__name__}")
    if value.ndim == 0:
        return _scalar(value)
    if dtype.kind not in "biuf":
        raise TypeError(f"a result cannot carry an array of {dtype}: use booleans, integers or floats")
    if dtype.byteorder in _BIG_ENDIAN:
        value = value.astype(dtype.newbyteorder("<"))
    if not value.flags.c_contiguous:
        value = value.copy("C")
    return memoryview(value).cast("B") if value.size else memoryview(b"")


def _scalar(value: Any) -> Any:
    if value.dtype.kind not in "biufU":
        raise TypeError(f"a result cannot carry a value of {value.dtype}: use booleans, numbers or text")
    return value.item()


def _lists(value: Any) -> Any:
    """As `_plain`, with arrays as nested lists."""
    plain = _plain(value)
    return value.tolist() if isinstance(plain, memoryview) else plain


_msgpack = msgspec.msgpack.Encoder(enc_hook=_plain)
_json = msgspec.json.Encoder(enc_hook=_lists)
