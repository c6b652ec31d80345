"""The closed-loop generator, against a server that answers as we tell it to."""

import contextlib
import itertools
import threading
import time

import msgspec
import pytest
from websockets.sync.server import serve

from framelane.loadtests.generator import FrameFile, Generator, Message, NotServed
from framelane.loadtests.tally import Counts, Tally
from framelane.server.protocol import SUBPROTOCOL, decode_websocket_frame

CLIP = FrameFile(fps=30.0, frames=[b"a" * 300, b"b" * 70_000, b"c" * 5])
encode = msgspec.msgpack.encode


class Echo:
    """Answers each frame with `answer(seq)`, keeps what it got, and closes the connection after `frames` frames."""

    def __init__(self, answer, frames=4, greetings=(("ready", {"lane": "x"}),)):
        self.answer = answer
        self.frames = frames
        self.greetings = greetings
        self.got = []

    def __call__(self, connection):
        assert msgspec.msgpack.decode(connection.recv()) == ["hello", {}]
        for greeting in self.greetings:
            if greeting == "ping":
                assert connection.ping().wait(5)
            else:
                connection.send(encode(greeting))
        for _ in range(self.frames):
            _name, seq, data = decode_websocket_frame(connection.recv())
            self.got.append((seq, bytes(data)))
            for answer in self.answer(seq):
                connection.send(encode(answer))


@contextlib.contextmanager
def listening(handler):
    with serve(handler, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


def run(folder, echo, clients=1, **options):
    """Run a generator until the server closes a connection; returns its tally's counts."""
    tally = Tally.create(folder / "tally")
    with listening(echo) as port, contextlib.closing(Generator(CLIP, tally, **options)) as generator:
        generator.connect("127.0.0.1", port, clients)
        with pytest.raises(NotServed, match="closed a connection"):
            generator.run()
    return tally.counts()


def result(seq):
    return [("result", {"seq": seq, "faces": [{"landmarks": bytes(5616)}], "timing": {}})]


def test_each_answer_is_followed_by_the_next_frame_of_the_clip(tmp_path):
    echo = Echo(result)
    assert run(tmp_path, echo) == Counts(results=4, dropped=0, errors=0)
    assert echo.got == [(seq, CLIP.frames[seq % 3]) for seq in range(4)]


def test_clients_start_at_different_places_of_the_clip(tmp_path):
    echo = Echo(result)
    run(tmp_path, echo, clients=3)
    assert {data for seq, data in echo.got if seq == 0} == set(CLIP.frames)


def test_client_in_the_waiting_room_waits_for_ready(tmp_path):
    waiting = ("waiting", {"position": 1, "retry_after_ms": 2000})
    echo = Echo(result, greetings=(waiting, "ping", waiting, ("ready", {"lane": "x"})))
    assert run(tmp_path, echo).results == 4


def test_dropped_frame_counts_and_the_client_goes_on(tmp_path):
    echo = Echo(lambda seq: [("dropped", {"seq": seq, "reason": "expired"})] if seq == 0 else result(seq))
    assert run(tmp_path, echo) == Counts(results=3, dropped=1, errors=0)


def test_answer_to_another_frame_is_an_error(tmp_path):
    echo = Echo(lambda seq: [*result(seq + 7), ("pace", {"interval_ms": 5}), *result(seq)])
    assert run(tmp_path, echo) == Counts(results=4, dropped=0, errors=4)


def test_pause_is_kept_between_an_answer_and_the_next_frame(tmp_path):
    times = []
    echo = Echo(lambda seq: times.append(time.monotonic()) or result(seq), frames=3)
    run(tmp_path, echo, pause=0.05)
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(times))


def test_refusal_is_told_with_what_the_server_said(tmp_path):
    echo = Echo(result, greetings=[("refused", {"code": "full", "message": "all places are taken"})])
    tally = Tally.create(tmp_path / "tally")
    with (
        listening(echo) as port,
        contextlib.closing(Generator(CLIP, tally)) as generator,
        pytest.raises(NotServed, match="all places are taken"),
    ):
        generator.connect("127.0.0.1", port, 1)


@pytest.mark.parametrize("size", [0, 100, 70_000])
def test_message_is_a_frame_of_the_protocol_whatever_its_seq(size):
    message = Message(b"x" * size)
    message.head[message.seq_at : message.seq_at + 4] = (123_456_789).to_bytes(4, "big")
    event = bytes(message.head[message.seq_at - 8 :]) + message.data
    assert decode_websocket_frame(event) == ("frame", 123_456_789, b"x" * size)


def test_frame_file_survives_saving(tmp_path):
    CLIP.save(tmp_path / "frames")
    assert FrameFile.load(tmp_path / "frames") == CLIP
