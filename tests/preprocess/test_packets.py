"""Finished packets: what arrives at a stock client must be what the pipeline returned."""

import json
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
import socketio

from framelane.preprocess.packets import JSON, SOCKETIO, SOCKETIO_MSGPACK, WEBSOCKET, encode_event, parts, text_packet

LANDMARKS = np.arange(12, dtype=np.float32).reshape(4, 3)
RESULT = {"seq": 3, "faces": [{"score": np.float32(0.5), "box": (1, 2.5), "landmarks": LANDMARKS}], "timing": {}}
RECEIVED = {"seq": 3, "faces": [{"score": 0.5, "box": [1, 2.5], "landmarks": LANDMARKS.tobytes()}], "timing": {}}


def socketio_data(messages: list[str | bytes]) -> Any:
    """Decode with python-socketio's own default parser, after taking the Engine.IO type off."""
    text = messages[0]
    assert isinstance(text, str)
    assert text[0] == "4"
    packet = socketio.packet.Packet(encoded_packet=text[1:])
    for attachment in messages[1:]:
        packet.add_attachment(attachment)
    return packet.data


def test_websocket_packet_is_a_msgpack_array() -> None:
    packet = encode_event(WEBSOCKET, "result", RESULT)
    assert parts(WEBSOCKET, packet) == [packet]
    assert msgpack.unpackb(packet) == ["result", RECEIVED]


def test_default_parser_gets_placeholders_and_attachments() -> None:
    messages = parts(SOCKETIO, encode_event(SOCKETIO, "result", RESULT))
    assert messages[0].startswith("451-[")  # type: ignore[arg-type]
    assert messages[1:] == [LANDMARKS.tobytes()]
    assert socketio_data(messages) == ["result", RECEIVED]


def test_default_parser_without_attachments_is_a_plain_event() -> None:
    assert parts(SOCKETIO, encode_event(SOCKETIO, "pace", {"interval_ms": 40})) == ['42["pace",{"interval_ms":40}]']


def test_many_attachments_of_arrays_and_bytes_keep_their_places() -> None:
    result = {"a": b"first", "b": np.int16([1, 2]), "c": [bytearray(b"x"), {"d": memoryview(b"y")}], "e": b""}
    messages = parts(SOCKETIO, encode_event(SOCKETIO, "result", result))
    assert len(messages) == 6
    assert socketio_data(messages) == ["result", {"a": b"first", "b": b"\1\0\2\0", "c": [b"x", {"d": b"y"}], "e": b""}]


def test_encoding_leaves_the_result_as_it_was() -> None:
    result = {"data": b"bytes", "list": [b"bytes"]}
    encode_event(SOCKETIO, "result", result)
    assert result == {"data": b"bytes", "list": [b"bytes"]}


def test_msgpack_parser_packet_has_type_namespace_data_and_nothing_else() -> None:
    packet = encode_event(SOCKETIO_MSGPACK, "result", RESULT)
    assert parts(SOCKETIO_MSGPACK, packet) == [packet]
    assert msgpack.unpackb(packet) == {"type": 2, "nsp": "/", "data": ["result", RECEIVED]}


def test_json_has_arrays_as_lists() -> None:
    name, body = json.loads(encode_event(JSON, "result", RESULT))
    assert name == "result"
    assert body["faces"][0] == {"score": 0.5, "box": [1, 2.5], "landmarks": LANDMARKS.tolist()}


@pytest.mark.parametrize("flavour", [SOCKETIO, JSON])
def test_not_a_number_is_null_in_json(flavour: int) -> None:
    packet = encode_event(flavour, "result", {"x": float("nan"), "y": np.float32("inf")})
    assert b'{"x":null,"y":null}' in packet


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1, 2], dtype=">i4"), np.array([1, 2], dtype="<i4").tobytes()),
        (np.arange(6, dtype=np.uint8).reshape(2, 3).T, bytes([0, 3, 1, 4, 2, 5])),
        (np.zeros((0, 3), dtype=np.float32), b""),
        (np.array([True, False]), b"\1\0"),
    ],
    ids=["big_endian", "not_contiguous", "empty", "bool"],
)
@pytest.mark.parametrize("flavour", [WEBSOCKET, SOCKETIO])
def test_arrays_travel_as_little_endian_bytes_in_c_order(flavour: int, array: Any, expected: bytes) -> None:
    packet = encode_event(flavour, "result", {"a": array})
    data = msgpack.unpackb(packet) if flavour == WEBSOCKET else socketio_data(parts(flavour, packet))
    assert data == ["result", {"a": expected}]


@pytest.mark.parametrize("flavour", [WEBSOCKET, SOCKETIO, JSON])
def test_numpy_scalars_are_numbers(flavour: int) -> None:
    values = {"f": np.float64(0.5), "i": np.int64(7), "b": np.bool_(True), "z": np.array(2), "s": np.str_("x")}
    packet = encode_event(flavour, "result", values)
    text = packet[packet.find(b"{") :].rstrip(b"]")
    data = msgspec.msgpack.decode(packet)[1] if flavour == WEBSOCKET else json.loads(text)
    assert data == {"f": 0.5, "i": 7, "b": True, "z": 2, "s": "x"}


@pytest.mark.parametrize("value", [np.array([object()]), np.array([1j]), np.datetime64("2026-01-01"), object()])
@pytest.mark.parametrize("flavour", [WEBSOCKET, SOCKETIO, SOCKETIO_MSGPACK, JSON])
def test_what_no_client_could_read_is_refused(flavour: int, value: Any) -> None:
    with pytest.raises(TypeError, match="cannot carry"):
        encode_event(flavour, "result", {"value": value})


def test_a_finished_text_is_a_packet_of_one_message() -> None:
    assert parts(SOCKETIO, text_packet('40{"sid":"ä"}')) == ['40{"sid":"ä"}']


def test_a_packet_in_shared_memory_is_copied_out() -> None:
    memory = bytearray(encode_event(SOCKETIO, "result", {"a": b"kept"}))
    messages = parts(SOCKETIO, memoryview(memory))
    memory[:] = bytes(len(memory))
    assert messages[1] == b"kept"
