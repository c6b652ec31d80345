"""The crowd's clients, against a server that answers as we tell it to."""

import contextlib
import threading
import time

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from framelane.loadtests.generator import FrameFile
from framelane.loadtests.overload.arrivals import Phase
from framelane.loadtests.overload.crowd import Crowd, Orders
from framelane.loadtests.overload.records import CODES, RESULT, Happening, Recorded, Records
from framelane.server.protocol import SUBPROTOCOL, decode_websocket_frame

CLIP = FrameFile(fps=30.0, frames=[b"a" * 300, b"b" * 70_000])
encode = msgspec.msgpack.encode
READY = ("ready", {"lane": "own", "window": 2})


def say(connection, event):
    connection.send(encode(event))


class Script:
    """Greets each connection, and answers each of its frames, as told; a greeting of None closes the connection."""

    def __init__(self, answer, greetings=(READY,)):
        self.answer = answer
        self.greetings = list(greetings)
        self.got = []

    def __call__(self, connection):
        with contextlib.suppress(ConnectionClosed):
            assert msgspec.msgpack.decode(connection.recv()) == ["hello", {}]
            greeting = self.greetings.pop(0) if len(self.greetings) > 1 else self.greetings[0]
            if greeting is None:
                return
            say(connection, greeting)
            while True:
                _name, seq, data = decode_websocket_frame(connection.recv())
                self.got.append((seq, bytes(data)))
                for event in self.answer(seq):
                    say(connection, event)


@contextlib.contextmanager
def listening(handler):
    with serve(handler, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def run(tmp_path):
    def play(script, rate=50.0, seconds=0.3, **more):
        records = Records()
        with listening(script) as port:
            phases = (Phase(seconds, rate),)
            given = {"clients": 1, "kind": "fixed", "drain_s": 0.3, "gather_s": 2.0, **more}
            orders = Orders(host="127.0.0.1", port=port, frames=tmp_path, phases=phases, **given)
            crowd = Crowd(orders, CLIP, records)
            with contextlib.closing(crowd):
                crowd.gather()
                crowd.play(time.monotonic())
        records.save(tmp_path / "records")
        return Recorded.load(tmp_path / "records")

    return play


def result(seq, lane="own"):
    return ("result", {"seq": seq, "lane": lane, "faces": []})


def outcomes(recorded):
    return set(recorded.frames.outcome.tolist())


def test_frames_are_sent_when_due_and_answers_are_recorded(run):
    script = Script(lambda seq: [result(seq)])
    recorded = run(script, clients=2)
    assert outcomes(recorded) == {RESULT}
    assert len(recorded.frames.client) == len(script.got) == pytest.approx(30, abs=2)
    assert {data for _, data in script.got} <= set(CLIP.frames)
    assert (recorded.frames.ages_ms > 0).all()
    assert recorded.events.of(Happening.SERVED).client.tolist() == [0, 1]


def test_open_loop_does_not_wait_for_answers(run):
    script = Script(lambda seq: [])
    recorded = run(script)
    assert [seq for seq, _ in script.got] == list(range(len(recorded.frames.client)))
    assert outcomes(recorded) == {CODES["unanswered"]}


def test_window_that_is_followed_holds_the_newest_frame_back(run):
    script = Script(lambda seq: [])
    recorded = run(script, window="follow")
    assert [seq for seq, _ in script.got] == [0, 1]
    assert outcomes(recorded) == {CODES["unanswered"], CODES["replaced"]} | set(recorded.frames.outcome[-1:].tolist())


def test_drops_are_recorded_by_reason(run):
    recorded = run(Script(lambda seq: [("dropped", {"seq": seq, "reason": "superseded"})]))
    assert outcomes(recorded) == {CODES["superseded"]}


def test_results_of_others_are_counted_apart(run):
    recorded = run(Script(lambda seq: [result(seq, lane="other"), result(seq)]))
    assert outcomes(recorded) == {RESULT}
    assert recorded.totals.foreign == len(recorded.frames.client)


def test_answer_to_nothing_is_wrong(run):
    recorded = run(Script(lambda seq: [result(seq), result(seq)]))
    assert recorded.totals.wrong == len(recorded.frames.client)


def test_client_without_a_place_sends_nothing(run):
    script = Script(lambda seq: [], [("waiting", {"position": 1, "retry_after_ms": 100})])
    recorded = run(script)
    assert script.got == []
    assert outcomes(recorded) == {CODES["waiting"]}


def test_client_that_is_refused_for_good_stays_away(run):
    recorded = run(Script(lambda seq: [], [("refused", {"code": "unauthorized", "message": "no"})]))
    assert outcomes(recorded) == {CODES["away"]}
    assert len(recorded.events.of(Happening.ATTEMPT).at) == 1


def test_client_that_is_refused_for_now_comes_back(run):
    refused = ("refused", {"code": "full", "message": "later", "retry_after_ms": 1})
    recorded = run(Script(lambda seq: [result(seq)], [refused, READY]), seconds=0.8)
    assert len(recorded.events.of(Happening.REFUSED).at) == 1
    assert RESULT in outcomes(recorded)


def test_client_comes_back_after_a_lost_connection_and_sends_at_once(run):
    def answer(seq):
        if seq == 2:
            raise ConnectionClosed(None, None)
        return [result(seq)]

    recorded = run(Script(answer), seconds=1.5, greets=True)
    assert CODES["lost"] in outcomes(recorded)
    assert len(recorded.events.of(Happening.SERVED).at) >= 2


def test_drained_client_leaves_when_all_is_answered_and_comes_back(run):
    recorded = run(
        Script(lambda seq: [("drain", {"reconnect_after_ms": 20}), result(seq)] if seq == 1 else [result(seq)])
    )
    assert CODES["lost"] not in outcomes(recorded)
    assert len(recorded.events.of(Happening.DRAIN).at) >= 1
    assert len(recorded.events.of(Happening.READY).at) >= 2


def test_deaf_client_sends_and_never_reads(run):
    script = Script(lambda seq: [result(seq)])
    recorded = run(script, deaf=True)
    assert len(script.got) > 3
    assert outcomes(recorded) == {CODES["unanswered"]}
