"""What was wrong with a message that is no frame, in words for the one who sent it.

This runs for bad messages only, and they may be hostile: an event is read no further than it takes to name the fault,
so that a bomb of nested or countless values is skipped, not built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from framelane.server.errors import BadMessage
from framelane.server.protocol import MAX_SEQ, UNREADABLE, Fault


class Event(Struct, frozen=True, array_like=True):
    """Any event; `more` is there if it has more than two arguments."""

    name: Raw
    first: Raw = Raw()
    second: Raw = Raw()
    more: Raw = Raw()


def explain_msgpack(event: bytes | memoryview | Raw) -> BadMessage:
    """Say why a msgpack array [name, ...args] is no frame."""
    try:
        return _explain_event(_event_msgpack(event), _peek_msgpack)
    except UNREADABLE as error:
        return BadMessage(f"not a msgpack array [name, ...args]: {_short(error)}")


def explain_json(event: str) -> BadMessage:
    """Say why a JSON array [name, ...args] is no frame; a placeholder counts as bytes."""
    try:
        return _explain_event(_event_json(event), _peek_json)
    except UNREADABLE as error:
        return BadMessage(f"not a JSON array [name, ...args]: {_short(error)}")


def _explain_event(event: Event, peek: Callable[[Raw], Any]) -> BadMessage:
    name = peek(event.name)
    if not isinstance(name, str):
        return BadMessage(f"an event's name is text, not {_kind(name)}")
    if name != "frame":
        return BadMessage(f"unknown event {name[:40]!r}: a client sends 'frame'", code=Fault.UNKNOWN_EVENT)
    args = [peek(arg) for arg in (event.first, event.second, event.more) if bytes(memoryview(arg)[:1])]
    if len(args) != 2:
        return BadMessage("frame takes two arguments: seq, data", code=Fault.BAD_FRAME)
    return BadMessage(_wrong_argument(*args), code=Fault.BAD_FRAME)


def _wrong_argument(seq: Any, data: Any) -> str:
    if isinstance(seq, bool) or not isinstance(seq, int):
        return f"seq must be an unsigned integer, not {_kind(seq)}"
    if not 0 <= seq <= MAX_SEQ:
        return "seq must be between 0 and 2^53 - 1"
    if not isinstance(data, bytes):
        return f"data must be bytes, not {_kind(data)}{_HINTS.get(type(data), '')}"
    return "frame takes exactly one attachment, its data"


def _peek_msgpack(item: Raw) -> Any:
    """Decode numbers and text; of bytes, arrays and objects only the type."""
    head = memoryview(item)[0]
    if head in (0xC4, 0xC5, 0xC6):
        return b""
    if head & 0xF0 == 0x90 or head in (0xDC, 0xDD):
        return []
    if head & 0xF0 == 0x80 or head in (0xDE, 0xDF):
        return {}
    if 0xC7 <= head <= 0xC9 or 0xD4 <= head <= 0xD8:
        return Ellipsis
    return _anything(item)


def _peek_json(item: Raw) -> Any:
    head = bytes(memoryview(item)[:1])
    if head == b"[":
        return []
    if head == b"{":
        return b"" if bytes(memoryview(item)[:20]).startswith(b'{"_placeholder":true') else {}
    return msgspec.json.decode(item)


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "an extension type")


def _short(error: BaseException) -> str:
    return str(error)[:120]


_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a fraction",
    str: "text",
    bytes: "bytes",
    list: "an array",
    dict: "an object",
}

_event_msgpack = msgspec.msgpack.Decoder(Event).decode
_event_json = msgspec.json.Decoder(Event).decode
_anything = msgspec.msgpack.Decoder().decode
_HINTS: Mapping[type, str] = {dict: " (with the msgpack parser, browsers send an ArrayBuffer, not a Uint8Array)"}
