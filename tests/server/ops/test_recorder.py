"""What a server writes down of its sessions: when and how much, and nothing of what."""

import json

import pytest
from lane_world import Client, World

from framelane.preprocess.packets import SOCKETIO, WEBSOCKET
from framelane.server.config import ConfigError
from framelane.server.lanes.limits import Limits
from framelane.server.ops import recorder
from framelane.server.ops.recorder import RecordedExchange, Recorder
from framelane.server.protocol import Hello


class Recorded(World):
    def __init__(self, path) -> None:
        super().__init__()
        self.path = path
        self.stopped = False
        self.recorder = Recorder(path)
        self.exchange = RecordedExchange(self.recorder, self.pool, Limits(pipeline="echo"), lambda: self.now)

    def stop(self):
        if not self.stopped:
            self.stopped = True
            self.recorder.start()
            self.recorder.stop()

    def lines(self):
        self.stop()
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def world(tmp_path):
    world = Recorded(tmp_path / "sessions.ndjson")
    yield world
    world.stop()


def test_session_is_written_when_it_ends_with_the_times_and_sizes_of_its_frames(world):
    world.now = 10.0
    lane, _client = world.client()
    world.now = 10.5
    world.exchange.frame(lane, 0, b"x" * 70)
    world.pool.finish()
    world.now = 12.0
    world.exchange.frame(lane, 1, memoryview(b"y" * 90))
    world.now = 13.25
    world.exchange.disconnect(lane)
    world.exchange.disconnect(lane)
    (line,) = world.lines()
    assert line == {"v": 1, "door": "ws", "start_ms": 10_000, "seconds": 3.25, "at_ms": [500, 2000], "bytes": [70, 90]}
    assert b"xxx" not in world.path.read_bytes()


def test_recording_changes_nothing_for_a_client(world):
    lane, client = world.client()
    world.exchange.frame(lane, 0, b"x")
    world.pool.finish()
    assert client.results() == [0]
    assert world.exchange.accounts.inside == 0


def test_door_is_named_and_who_sent_nothing_is_no_session(world):
    lane = world.exchange.admit(Hello(), SOCKETIO, Client())
    silent = world.exchange.admit(Hello(), WEBSOCKET, Client())
    world.exchange.frame(lane, 0, b"x")
    for each in (lane, silent):
        world.exchange.disconnect(each)
    assert [line["door"] for line in world.lines()] == ["socketio"]


def test_single_picture_is_no_session(world):
    lane = world.exchange.admit(Hello(), WEBSOCKET, Client(), may_wait=False)
    world.exchange.frame(lane, 0, b"x")
    world.exchange.disconnect(lane)
    assert world.lines() == []


def test_everything_is_bounded_and_what_did_not_fit_is_counted(world, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_SESSIONS", 2)
    monkeypatch.setattr(recorder, "MOST_FRAMES", 3)
    monkeypatch.setattr(recorder, "MOST_LINES", 1)
    lanes = [world.client()[0] for _ in range(3)]
    for lane in lanes:
        for seq in range(5):
            world.exchange.frame(lane, seq, b"x")
        world.exchange.disconnect(lane)
    assert [len(line["at_ms"]) for line in world.lines()] == [3]
    assert world.recorder.missed == 2


def test_full_file_takes_no_more(world, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_BYTES", 120)
    for _ in range(3):
        lane, _client = world.client()
        world.exchange.frame(lane, 0, b"x")
        world.exchange.disconnect(lane)
    assert len(world.lines()) == 1
    assert world.recorder.missed == 2


def test_file_is_its_owners_alone(world):
    world.lines()
    assert world.path.stat().st_mode & 0o777 == 0o600


def test_file_that_cannot_be_written_is_an_error_that_names_the_setting(tmp_path):
    with pytest.raises(ConfigError, match=r"record = '.*missing/file': No such file"):
        Recorder(tmp_path / "missing" / "file").start()
