"""What users say who do not keep to the protocol, and what the server's own decoders think of it."""

import random

import pytest

from framelane.loadtests import rfc6455
from framelane.loadtests.swarm.strangers import OLD_REQUESTS, garbage
from framelane.server.protocol import UNREADABLE, decode_websocket_frame


def test_garbage_is_of_every_kind_and_never_a_frame_with_a_picture():
    draw = random.Random(5)
    unreadable = frames = texts = 0
    for _ in range(500):
        opcode, payload = garbage(draw)
        if opcode == rfc6455.TEXT:
            texts += 1
            continue
        try:
            _name, _seq, data = decode_websocket_frame(payload)
        except UNREADABLE:
            unreadable += 1
        else:
            frames += 1
            assert not bytes(data).endswith(b"\xff\xd9")
    assert min(unreadable, frames, texts) > 20


@pytest.mark.parametrize("name", OLD_REQUESTS)
def test_old_clients_speak_http_of_their_time(name):
    request = OLD_REQUESTS[name]("host")
    assert request.startswith(b"GET /")
    assert request.endswith(b"\r\n\r\n")
    assert request.count(b"Host: host\r\n") == 1
