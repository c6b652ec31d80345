"""Hostile bytes against everything that reads them outside the hot path: a fault by name, never another exception."""

import contextlib
import json
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framelane.server.doors.explain import explain_json, explain_msgpack
from framelane.server.doors.parsers import auth_of, explain, open_binary, open_text
from framelane.server.errors import BadMessage
from framelane.server.protocol import Fault

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.binary(max_size=200)
    | VALUES.map(msgpack.packb)
    | st.lists(VALUES).map(lambda args: msgpack.packb(["frame", *args]))
)
def test_any_bytes_have_a_fault_by_name(message: bytes) -> None:
    assert explain_msgpack(message).code in set(Fault)
    with contextlib.suppress(BadMessage):
        envelope = open_binary(message)
        assert explain(envelope).message
        auth_of(envelope)


@given(st.text(max_size=200) | st.from_regex(r"[0-7](\d{1,3}-)?(/\w{1,4},)?\d{0,4}\[.{0,20}", fullmatch=True))
def test_any_text_has_a_fault_by_name(text: str) -> None:
    assert explain_json(text).code in set(Fault)
    with contextlib.suppress(BadMessage):
        envelope = open_text(text)
        assert explain(envelope).message
        auth_of(envelope)


@pytest.mark.parametrize(
    "message",
    [
        b"\xdd\x00\x0f\x00\x00" + b"\x80" * 0xF0000,
        b"\x93\xa5frame\x01\xdd\x00\x0f\x00\x00" + b"\x80" * 0xF0000,
        b"\x93\xdd\x00\x0f\x00\x00" + b"\x80" * 0xF0000 + b"\x01\x02",
        msgpack.packb({"type": 2, "nsp": "/", "data": [{}] * 900_000}),
    ],
    ids=["wide_event", "wide_data", "wide_name", "wide_packet"],
)
def test_countless_values_are_skipped_and_not_built(message: bytes) -> None:
    tracemalloc.start()
    try:
        assert explain_msgpack(message).message
        with contextlib.suppress(BadMessage):
            assert explain(open_binary(message)).message
        assert tracemalloc.get_traced_memory()[1] < 4 * len(message)
    finally:
        tracemalloc.stop()


def test_long_text_is_not_parsed_at_all() -> None:
    with pytest.raises(BadMessage, match="frames are sent as bytes"):
        open_text("2" + json.dumps([{}] * 100_000))


def test_fault_shows_no_more_of_a_message_than_a_log_line_can_bear() -> None:
    assert len(explain_msgpack(msgpack.packb(["x" * 100_000])).message) < 200
    with pytest.raises(BadMessage) as error:
        open_text("9" * 5000)
    assert len(error.value.message) < 200
