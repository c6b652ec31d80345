"""What lean users say and understand, against the product's own encoders and decoders."""

import msgspec
import numpy as np
import pytest

from framelane.loadtests import rfc6455
from framelane.loadtests.overload.links import Message
from framelane.loadtests.swarm.doors import Heard, Picture, Reply, SocketIODoor, WebSocketDoor
from framelane.preprocess.packets import SOCKETIO, WEBSOCKET, encode_event, parts
from framelane.server.doors.parsers import Kind, packet
from framelane.server.protocol import (
    Drain,
    Dropped,
    Error,
    Pace,
    Ready,
    RefusedData,
    Waiting,
    decode_socketio_header,
    decode_websocket_frame,
    decode_websocket_hello,
)

READY = Ready(lane="l", pipeline="p", window=2, max_frame_bytes=9, interval_ms=40, deadline_ms=500, ticket="t")
EVENTS = {
    "ready": READY,
    "waiting": Waiting(position=3, retry_after_ms=100, ticket="t"),
    "dropped": Dropped(seq=4, reason="expired"),
    "error": Error(code="bad_seq", message="m"),
    "pace": Pace(interval_ms=70),
    "drain": Drain(reconnect_after_ms=900),
}
DOORS = {WEBSOCKET: WebSocketDoor, SOCKETIO: SocketIODoor}
FACE = {"score": 0.5, "box": [1.0, 2.0, 3.0, 4.0], "landmarks": np.zeros((468, 3), np.float32)}


def messages(data):
    """The websocket messages of a client's bytes: opcode and payload."""
    data = bytearray(data)
    while data:
        length, start = data[1] & 0x7F, 2
        if length >= 126:
            start += 2 if length == 126 else 8
            length = int.from_bytes(data[2:start], "big")
        start += 4  # the mask key, which is 0
        yield data[0] & 0x0F, bytes(data[start : start + length])
        del data[: start + length]


def hear(door, flavour, name, payload):
    """What a door makes of one event of the server; only its last message may say something."""
    heard = []
    for part in parts(flavour, encode_event(flavour, name, payload)):
        opcode = rfc6455.TEXT if isinstance(part, str) else rfc6455.BINARY
        heard.append(door.hear(Message(opcode, part.encode() if isinstance(part, str) else part)))
    assert heard[:-1] == [None] * (len(heard) - 1)
    return heard[-1]


@pytest.mark.parametrize("flavour", DOORS)
@pytest.mark.parametrize("name", EVENTS)
def test_every_event_of_the_server_is_understood(flavour, name):
    heard = hear(DOORS[flavour](), flavour, name, EVENTS[name])
    assert heard == Heard(name, EVENTS[name])


@pytest.mark.parametrize("flavour", DOORS)
@pytest.mark.parametrize("tracked", [None, False, True])
def test_result_is_heard_once_it_is_whole_and_says_whether_it_was_tracked(flavour, tracked):
    face = FACE if tracked is None else {**FACE, "tracked": tracked}
    for faces in ([face], []):
        heard = hear(DOORS[flavour](), flavour, "result", {"seq": 7, "faces": faces, "timing": {"total_ms": 1.5}})
        assert (heard.name, heard.payload.seq, heard.tracked) == ("result", 7, bool(faces) and tracked is True)


@pytest.mark.parametrize("flavour", DOORS)
def test_unknown_event_is_passed_over(flavour):
    assert hear(DOORS[flavour](), flavour, "news", {"from": "a later server"}) is None


@pytest.mark.parametrize("size", [10, 200, 40_000, 70_000])
def test_frames_are_what_the_server_reads(size):
    picture = Picture.of(bytes(range(10)) * (size // 10))
    ((opcode, payload),) = messages(b"".join(WebSocketDoor().frame(picture, 70_000)))
    assert opcode == rfc6455.BINARY
    name, seq, data = decode_websocket_frame(payload)
    assert (name, seq, bytes(data)) == ("frame", 70_000, picture.data)
    (first, header), (second, attachment) = messages(b"".join(SocketIODoor().frame(picture, 70_000)))
    assert (first, second) == (rfc6455.TEXT, rfc6455.BINARY)
    assert decode_socketio_header(header[4:].decode())[:2] == ("frame", 70_000)
    assert header.startswith(b"451-")
    assert attachment == picture.data


def test_websocket_shows_its_ticket_in_the_hello():
    ((_, payload),) = messages(WebSocketDoor().greeting("again"))
    assert decode_websocket_hello(payload).resume == "again"


def test_socketio_answers_the_servers_open_with_connect_and_its_pings():
    door = SocketIODoor()
    assert door.greeting("again") == b""
    reply = door.hear(Message(rfc6455.TEXT, b'0{"sid":"x","pingInterval":25000}'))
    assert list(messages(reply.data)) == [(rfc6455.TEXT, b'40{"resume":"again"}')]
    assert door.hear(Message(rfc6455.TEXT, b'40{"sid":"y"}')) is None
    pong = door.hear(Message(rfc6455.TEXT, b"2"))
    assert list(messages(pong.data)) == [(rfc6455.TEXT, b"3")]


@pytest.mark.parametrize("door", [WebSocketDoor(), SocketIODoor()])
def test_websocket_pings_are_answered_at_both_doors(door):
    reply = door.hear(Message(rfc6455.PING, b"abc"))
    assert isinstance(reply, Reply)
    assert list(messages(reply.data)) == [(rfc6455.PONG, b"abc")]


def test_refusals_are_understood_at_both_doors():
    data = RefusedData(code="full", message="no place", retry_after_ms=500)
    assert hear(WebSocketDoor(), WEBSOCKET, "refused", data) == Heard("refused", data)
    refusal = {"message": "no place", "data": {"code": "full", "retry_after_ms": 500}}
    (text,) = parts(SOCKETIO, packet(SOCKETIO, Kind.CONNECT_ERROR, refusal))
    assert SocketIODoor().hear(Message(rfc6455.TEXT, text.encode())) == Heard("refused", data)


def test_nonsense_of_the_server_is_an_error_and_not_silence():
    with pytest.raises(msgspec.MsgspecError):
        WebSocketDoor().hear(Message(rfc6455.BINARY, b"\xc1"))
    with pytest.raises(msgspec.MsgspecError):
        SocketIODoor().hear(Message(rfc6455.TEXT, b"42[nonsense"))
