"""Frame heads, against the `websockets` library."""

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from framelane.loadtests import rfc6455


def parsed(data: bytes, mask: bool) -> Frame:
    reader = StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    parser = Frame.parse(reader.read_exact, mask=mask)
    try:
        while True:
            next(parser)
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 70000])
def test_frame_with_mask_key_zero_is_read_by_any_server(length):
    payload = bytes(index % 251 for index in range(length))
    frame = parsed(rfc6455.head(length) + payload, mask=True)
    assert (frame.opcode, bytes(frame.data)) == (Opcode.BINARY, payload)


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536])
def test_head_of_a_servers_frame(length):
    data = b"before" + Frame(Opcode.BINARY, bytes(length)).serialize(mask=False)
    head = rfc6455.read_head(data, 6, len(data))
    assert head is not None
    assert (head.opcode, head.stop - head.start, head.stop) == (rfc6455.BINARY, length, len(data))


@pytest.mark.parametrize("length", [50, 200, 70000])
def test_incomplete_frame_has_no_head_yet(length):
    data = Frame(Opcode.BINARY, bytes(length)).serialize(mask=False)
    cuts = {0, 1, 2, 3, 4, 9, len(data) - 1}
    assert all(rfc6455.read_head(data, 0, cut) is None for cut in cuts)
