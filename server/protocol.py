"""The wire protocol, version 1: what a client and Framelane say to each other, on one page.

Two doors, the same events with the same arguments:

    Socket.IO   path /socket.io/, namespace "/", websocket transport; default parser or socket.io-msgpack-parser
    websocket   path /ws, subprotocol framelane.v1; each binary message is one msgpack array [name, ...args]

    direction    event      arguments
    → server     hello      Hello: Socket.IO's `auth`, or the first message of /ws; never in a URL
    → server     frame      seq, data: an unsigned, rising integer; the bytes of a JPEG, PNG or WebP
    → server     renew      Renew      another token, before the one that was shown expires
    → client     ready      Ready      the lane is open: send frames
    → client     waiting    Waiting    no place yet; `ready` follows when there is one
    → client     result     {seq, …the pipeline's fields…, timing: {queue_ms, preprocess_ms, inference_ms, total_ms}}
    → client     dropped    Dropped    this frame gets no result
    → client     error      Error      a message that was no frame
    → client     pace       Pace       how often this client may send now
    → client     drain      Drain      this server is going away
    → client     expires    Expires    how long the token lasts that was shown; after `ready` or `waiting`, and `renew`
    → client     refused    Refusal as below, of a connection that is not kept any longer; then it is closed
    → client     notice     Notice     an operator's words, to be shown to people
    refusal      Socket.IO: connect_error with data {code, retry_after_ms?}
                 /ws: refused, Refusal as {code, message, retry_after_ms?}, then close with CLOSE_CODES[code]

Every `frame` has exactly one answer (`result`, `dropped` or `error`) while its connection lives and is read.
A client has at most `window` unanswered frames; a newer one replaces an older one that no worker has begun. With the
policy "queue" none is replaced: who sends more is slowed down by TCP. Frames sent before `ready` are `not_admitted`.
A `notice` may come at any time after `ready` or `waiting`, and changes no state.

A connection does not outlive its token. Whoever streams for an hour sends `renew` with another token every few minutes,
while it waits for a place or is live: it is answered with `expires`, or with an `error` (bad_token), after which the
old token still counts. A connection whose token expires all the same is `refused` as `unauthorized`, and its client may
come back with a new one. A token opens one connection only, except for the client that shows the `ticket` which that
connection was given (``lanes/passes.py`` says why).

The client's states. Both SDKs follow this table; `close` is the application's own, and ends in `closed` from anywhere:

    state        on                                  next state   and
    idle         connect                             connecting
    connecting   transport open                      greeting     /ws: send hello (Socket.IO sent `auth` already)
    connecting   transport error                     backoff      wait: full jitter, 0.5 s doubling to 10 s
    greeting     ready                               live         forget earlier waits; send the newest picture
    greeting     waiting                             waiting      tell position
    greeting     refused, connect_error (retryable)  backoff      wait: at least retry_after_ms, with jitter
    greeting     refused, connect_error (other)      closed       tell why
    waiting      waiting                             waiting      tell position
    waiting      ready                               live
    live         result, dropped, error              live         one frame fewer unanswered
    live         pace                                live         send no more often than interval_ms
    waiting,live drain                               draining     send nothing more
    waiting      expires                             waiting      send renew at half of that time, if there is a source
    live         expires                             live         of tokens
    waiting,live,draining refused (retryable)        backoff      wait: at least retry_after_ms, with jitter
    waiting,live,draining refused (other)            closed       tell why
    draining     result, dropped                     draining
    draining     all answered, or transport lost     backoff      wait: reconnect_after_ms
    greeting … live: transport lost                  backoff      unanswered frames are lost; wait: full jitter
    backoff      the wait is over                    connecting   a new connection is a new lane: seq may start at 0
    closed       connect                             connecting
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from .errors import BadMessage

VERSION: Final = 1
SUBPROTOCOL: Final = "framelane.v1"
WEBSOCKET_PATH: Final = "/ws"
SOCKETIO_PATH: Final = "/socket.io/"

MAX_FRAME_BYTES: Final = 1024 * 1024
MAX_RESULT_BYTES: Final = 256 * 1024
DEADLINE_MS: Final = 500
WINDOW: Final = 2
MAX_SEQ: Final = 2**53 - 1
"""The largest integer that JavaScript holds exactly."""
HELLO_TIMEOUT_S: Final = 10.0
MAX_HELLO_BYTES: Final = 16 * 1024

Seq = Annotated[int, Meta(ge=0, le=MAX_SEQ)]


class Drop(StrEnum):
    """Why a frame has no result."""

    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    INVALID = "invalid"
    RATE_LIMITED = "rate_limited"
    NOT_ADMITTED = "not_admitted"
    FAILED = "failed"
    DRAINING = "draining"


class Fault(StrEnum):
    """What was wrong with a message that is no frame."""

    BAD_MESSAGE = "bad_message"
    UNKNOWN_EVENT = "unknown_event"
    BAD_FRAME = "bad_frame"
    BAD_SEQ = "bad_seq"
    BAD_TOKEN = "bad_token"


class Cut(StrEnum):
    """Why the server ends a connection."""

    FLOOD = "flood"
    FATAL_FRAMES = "fatal_frames"
    SLOW_READER = "slow_reader"
    SILENT = "silent"
    RESUMED = "resumed"
    UNFINISHED = "unfinished"
    EXPIRED = "expired"
    IDLE = "idle"
    RATE_LIMITED = "rate_limited"
    KICKED = "kicked"


class Refusal(StrEnum):
    """Why a connection is not taken, or not kept."""

    UNAUTHORIZED = "unauthorized"
    ORIGIN = "origin"
    FULL = "full"
    RATE_LIMITED = "rate_limited"
    DRAINING = "draining"
    BAD_REQUEST = "bad_request"
    IDLE = "idle"
    KICKED = "kicked"


class Close(IntEnum):
    """Close codes of /ws that are Framelane's own; the rest are those of RFC 6455."""

    BAD_REQUEST = 4400
    UNAUTHORIZED = 4401
    ORIGIN = 4403
    NO_HELLO = 4408
    RATE_LIMITED = 4429
    FLOOD = 4430
    FATAL_FRAMES = 4431
    IDLE = 4432
    KICKED = 4433
    FULL = 4503
    DRAINING = 4512


CLOSE_CODES: Mapping[str, Close] = {
    Refusal.UNAUTHORIZED: Close.UNAUTHORIZED,
    Refusal.ORIGIN: Close.ORIGIN,
    Refusal.FULL: Close.FULL,
    Refusal.RATE_LIMITED: Close.RATE_LIMITED,
    Refusal.DRAINING: Close.DRAINING,
    Refusal.BAD_REQUEST: Close.BAD_REQUEST,
    Refusal.IDLE: Close.IDLE,
    Refusal.KICKED: Close.KICKED,
}

Policy = Literal["latest", "queue"]


class Hello(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is calling, and what for. Unknown fields are ignored, so that later clients can say more.

    `resume` is the ticket that the last connection was given, or "" at first, from a client that will come back with
    its ticket: only for such a client a place is held while its connection is lost.
    """

    token: Annotated[str, Meta(max_length=4096)] | None = None
    pipeline: Annotated[str, Meta(max_length=200)] | None = None
    policy: Policy | None = None
    resume: Annotated[str, Meta(max_length=64)] | None = None


class Renew(Struct, frozen=True, kw_only=True):
    """Another token, of the same campaign."""

    token: Annotated[str, Meta(max_length=4096)]


class Expires(Struct, frozen=True, kw_only=True):
    """How long the connection may go on without another token."""

    expires_in_ms: int


class Ready(Struct, frozen=True, kw_only=True):
    """The lane is open; `lane` is its name in logs, random and of no use to others. `ticket`: see ``Waiting``."""

    protocol: int = VERSION
    lane: str
    pipeline: str
    window: int
    max_frame_bytes: int
    interval_ms: int
    deadline_ms: int
    ticket: str = ""


class Waiting(Struct, frozen=True, kw_only=True):
    """The position in the waiting room, from 1, and about how long until a `ready`.

    The `ticket` is random and told to this client only. Whoever shows it in ``Hello.resume`` soon after its connection
    was lost comes back to its position or its place; an older connection that still shows it is ended.
    """

    position: int
    retry_after_ms: int
    ticket: str = ""


class Dropped(Struct, frozen=True, kw_only=True):
    """The frame `seq` gets no result."""

    seq: int
    reason: Drop
    message: str | UnsetType = UNSET


class Error(Struct, frozen=True, kw_only=True):
    """A message that was no frame; `code` is a ``Fault``."""

    code: str
    message: str


class Pace(Struct, frozen=True, kw_only=True):
    """The shortest interval between frames that the server can sustain for this client."""

    interval_ms: int


class Drain(Struct, frozen=True, kw_only=True):
    """Reconnect after this time: it differs between clients, so that they do not all come at once."""

    reconnect_after_ms: int


class Notice(Struct, frozen=True, kw_only=True):
    """What an operator says to a client, or to those of a campaign; it changes no state."""

    text: str


class RefusedData(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The refusal as data: `message` is absent in Socket.IO, whose `connect_error` carries it beside the data."""

    code: str
    message: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET


class Placeholder(Struct, frozen=True):
    """Where the one attachment of a frame stands in the default parser's text."""

    mark: bool = msgspec.field(name="_placeholder")
    num: Literal[0]


class MsgpackEvent(Struct, frozen=True):
    """A frame as socket.io-msgpack-parser sends it; in Node a Uint8Array comes as extension type 0."""

    type: Literal[2]
    nsp: Literal["/"]
    data: tuple[Literal["frame"], Seq, memoryview | msgspec.msgpack.Ext]
    id: Annotated[int, Meta(ge=0, le=MAX_SEQ)] | None = None


# The three forms of a frame. These are called for every frame, so they are the decoders' own methods, without a
# function around them. Each raises one of UNREADABLE; ``doors/explain.py`` then says what was wrong. `data` is a view
# into the message: it keeps the message alive, and nothing is copied.
decode_websocket_frame = msgspec.msgpack.Decoder(tuple[Literal["frame"], Seq, memoryview]).decode
decode_socketio_header = msgspec.json.Decoder(tuple[Literal["frame"], Seq, Placeholder]).decode
decode_socketio_msgpack = msgspec.msgpack.Decoder(MsgpackEvent).decode

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding a client's bytes may raise; msgspec stops nested bombs with RecursionError."""

_hello = msgspec.msgpack.Decoder(tuple[Literal["hello"], Hello]).decode
_renew_msgpack = msgspec.msgpack.Decoder(tuple[Literal["renew"], Renew]).decode
_renew_json = msgspec.json.Decoder(tuple[Literal["renew"], Renew]).decode


def max_message_bytes(max_frame_bytes: int) -> int:
    """The largest message that a door reads. A frame slightly too big is answered by name, a larger one with 1009."""
    return max_frame_bytes + 64 * 1024


def decode_websocket_hello(message: bytes) -> Hello:
    """Decode the first message of /ws.

    Raises:
        BadMessage: it is no ``["hello", {…}]``.
    """
    if len(message) > MAX_HELLO_BYTES:
        raise BadMessage(f"hello has {len(message)} bytes; the limit is {MAX_HELLO_BYTES}")
    try:
        return _hello(message)[1]
    except UNREADABLE as error:
        raise BadMessage(f'the first message must be msgpack ["hello", {{…}}]: {str(error)[:120]}') from None


def hello_from(auth: Any) -> Hello:
    """Read Socket.IO's `auth`, which is absent or an object.

    Raises:
        BadMessage: a field has a wrong type.
    """
    try:
        return msgspec.convert({} if auth is None else auth, Hello)
    except UNREADABLE as error:
        raise BadMessage(f"auth must be {{token?, pipeline?, policy?, resume?}}: {str(error)[:120]}") from None


def renewal_in(event: bytes | str | msgspec.Raw) -> str | None:
    """The token of a `renew`, as msgpack, or as JSON text; None if the event is none."""
    if len(memoryview(event.encode() if isinstance(event, str) else event)) > MAX_HELLO_BYTES:
        return None
    try:
        return (_renew_json(event) if isinstance(event, str) else _renew_msgpack(event))[1].token
    except UNREADABLE:
        return None
