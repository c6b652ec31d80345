"""What processes say to each other, in pieces and as nonsense: read as it was written, and never beyond it."""

import itertools
import socket

from hypothesis import given
from hypothesis import strategies as st

from framelane.preprocess.messages import SIZE, Channel, Message, pack, unpack

_BYTE, _SHORT, _LONG = st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_FLOAT, _SINGLE = st.floats(allow_nan=False), st.floats(allow_nan=False, width=32)
MESSAGES = st.builds(
    dict,
    kind=_BYTE,
    status=_BYTE,
    flavour=_BYTE,
    model=_BYTE,
    cell=_SHORT,
    request=_LONG,
    seq=_LONG,
    epoch=_SHORT,
    generation=_SHORT,
    length=_SHORT,
    state=_SHORT,
    t0=_FLOAT,
    t1=_FLOAT,
    f0=_SINGLE,
    f1=_SINGLE,
)


@given(MESSAGES)
def test_message_says_what_was_packed(fields: dict[str, float]) -> None:
    packed = pack(**fields)  # type: ignore[arg-type]
    assert len(packed) == SIZE
    assert unpack(packed) == [Message(**fields)]  # type: ignore[arg-type]


@given(st.integers(0, 40).flatmap(lambda count: st.binary(min_size=count * SIZE, max_size=count * SIZE)))
def test_any_bytes_are_messages_and_no_more_of_them_than_fit(data: bytes) -> None:
    assert len(unpack(data)) == len(data) // SIZE


@given(st.lists(st.binary(min_size=SIZE, max_size=SIZE), max_size=20), st.lists(st.integers(0, 2000), max_size=12))
def test_messages_that_come_in_pieces_are_put_together(messages: list[bytes], cuts: list[int]) -> None:
    ours, theirs = socket.socketpair()
    channel, data = Channel(ours), b"".join(messages)
    try:
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        got = []
        for start, end in itertools.pairwise(edges):
            if start < end:
                theirs.sendall(data[start:end])
                got += channel.receive()
        assert [list(map(repr, message)) for message in got] == [list(map(repr, message)) for message in unpack(data)]
    finally:
        channel.close()
        theirs.close()
