"""The wire protocol: what is a frame, what is a hello, and what every refusal closes with."""

import json
from typing import Any

import msgpack
import pytest

from framelane.server.errors import BadMessage
from framelane.server.protocol import (
    CLOSE_CODES,
    MAX_FRAME_BYTES,
    UNREADABLE,
    Hello,
    Refusal,
    decode_socketio_header,
    decode_socketio_msgpack,
    decode_websocket_frame,
    decode_websocket_hello,
    hello_from,
    max_message_bytes,
)


def test_frame_is_decoded_without_copying_its_bytes() -> None:
    message = msgpack.packb(["frame", 7, b"picture"])
    name, seq, data = decode_websocket_frame(message)
    assert (name, seq, bytes(data)) == ("frame", 7, b"picture")
    assert data.obj is message


def test_default_parser_header_gives_the_seq() -> None:
    assert decode_socketio_header('["frame",7,{"_placeholder":true,"num":0}]')[1] == 7


def test_msgpack_parser_frame_gives_seq_data_and_ack() -> None:
    packet = {"type": 2, "nsp": "/", "data": ["frame", 7, b"x"], "options": {"compress": True}, "id": 3}
    event = decode_socketio_msgpack(msgpack.packb(packet))
    assert (event.data[1], event.id) == (7, 3)


@pytest.mark.parametrize("seq", [0, 2**53 - 1])
def test_seq_may_be_any_integer_that_javascript_holds(seq: int) -> None:
    assert decode_websocket_frame(msgpack.packb(["frame", seq, b""]))[1] == seq


@pytest.mark.parametrize("seq", [-1, 2**53, 2**64 - 1, 1.0, "1", None, True])
def test_other_seqs_are_no_frames(seq: Any) -> None:
    with pytest.raises(UNREADABLE):
        decode_websocket_frame(msgpack.packb(["frame", seq, b""]))
    with pytest.raises(UNREADABLE):
        decode_socketio_header(json.dumps(["frame", seq, {"_placeholder": True, "num": 0}]))


def test_hello_ignores_what_it_does_not_know() -> None:
    message = msgpack.packb(["hello", {"token": "t", "later": [1]}])
    assert decode_websocket_hello(message) == Hello(token="t")
    assert hello_from(None) == hello_from({}) == Hello()


@pytest.mark.parametrize("auth", [[], 1, "token", {"token": 1}, {"policy": "all"}, {"token": "x" * 5000}])
def test_hello_of_wrong_types_is_bad(auth: Any) -> None:
    with pytest.raises(BadMessage):
        hello_from(auth)
    with pytest.raises(BadMessage):
        decode_websocket_hello(msgpack.packb(["hello", auth]))


def test_every_refusal_has_a_close_code_of_its_own() -> None:
    assert set(CLOSE_CODES) == set(Refusal)
    assert len(set(CLOSE_CODES.values())) == len(CLOSE_CODES)
    assert all(4400 <= code < 4600 for code in CLOSE_CODES.values())


def test_frame_slightly_too_large_can_still_be_read() -> None:
    assert max_message_bytes(MAX_FRAME_BYTES) > MAX_FRAME_BYTES + 1000
