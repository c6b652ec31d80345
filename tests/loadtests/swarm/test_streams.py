"""One user, with a transport that only remembers, and a server that is played here."""

import time

import pytest

from framelane.loadtests.overload.records import CODES, OUTCOMES
from framelane.loadtests.swarm.doors import Answer, Heard
from framelane.loadtests.swarm.ledger import Found, Ledger
from framelane.loadtests.swarm.streams import DRAIN_S, Stream
from framelane.server.protocol import Drain, Dropped, Error, Pace, Ready, RefusedData, Waiting


class Line:
    """A transport."""

    def __init__(self):
        self.is_open = self.busy = False
        self.opened_with = []
        self.sent = []

    def open(self, resume):
        self.is_open = True
        self.opened_with.append(resume)

    def send(self, picture, seq):
        self.sent.append(seq)

    def close(self):
        self.is_open = False


class Eye:
    """A camera."""

    def look(self, now):
        return b"picture"


class World:
    def __init__(self, folder):
        self.folder = folder
        self.ledger = Ledger(folder, 0)
        self.told = []
        user = self.ledger.enrol("ws")
        self.stream = Stream(user, self.ledger, Eye(), lambda *fate: self.told.append(fate), lambda: 0.5)
        self.stream.interval_ms = 1333
        self.line = self.stream.transport = Line()
        self.now = time.monotonic()

    def enter(self, window=2):
        self.stream.begin(self.now)
        self.stream.opened(self.now)
        self.say("ready", Ready(lane="l", pipeline="p", window=window, max_frame_bytes=9, interval_ms=40,
                                deadline_ms=500, ticket="mine"))  # fmt: skip
        return self

    def say(self, name, payload, tracked=False):
        self.stream.hear(Heard(name, payload, tracked), time.monotonic())

    def result(self, seq, tracked=False):
        self.say("result", Answer(seq=seq), tracked)

    def found(self):
        self.ledger.save()
        return Found.load(self.folder)

    @property
    def outcomes(self):
        return [OUTCOMES[code] for code in self.found().recorded.frames.outcome]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_age_counts_from_the_moment_a_frame_was_due_and_not_from_when_it_was_sent(world):
    world.enter().stream.due(world.now - 0.25)
    world.result(0, tracked=True)
    found = world.found()
    assert 250 <= found.recorded.frames.ages_ms[0] < 2000
    assert found.recorded.frames.lag[0] >= 0.25
    assert found.tracked[0] == pytest.approx(world.now - 0.25)
    assert [name for name, *_ in world.told] == ["connect", "result"]


def test_closed_window_holds_the_newest_frame_only(world):
    world.enter(window=1)
    for number in range(3):
        world.stream.due(world.now + number)
    assert world.line.sent == [0]
    world.result(0)
    assert world.line.sent == [0, 1]
    assert world.outcomes == ["result", "replaced", "unanswered"]


def test_bytes_that_still_wait_hold_the_next_frame_back(world):
    world.enter().line.busy = True
    world.stream.due(world.now)
    assert world.line.sent == []
    world.line.busy = False
    world.stream.writable(world.now)
    assert world.line.sent == [0]


def test_every_answer_has_its_name_and_one_to_nothing_is_wrong(world):
    world.enter(window=9)
    for _ in range(3):
        world.stream.due(world.now)
    world.result(1)
    world.say("dropped", Dropped(seq=0, reason="superseded"))
    world.say("error", Error(code="bad_frame", message=""))
    world.result(0)
    assert world.outcomes == ["superseded", "result", "error"]
    assert world.found().recorded.totals.wrong == 1
    assert world.found().recorded.totals.errors == {"bad_frame": 1}


def test_frames_due_without_a_place_or_a_connection_are_never_sent(world):
    world.stream.begin(world.now)
    world.stream.due(world.now)
    world.stream.opened(world.now)
    world.say("waiting", Waiting(position=2, retry_after_ms=500, ticket="t"))
    world.stream.due(world.now)
    assert world.line.sent == []
    assert world.outcomes == ["away", "waiting"]
    assert world.found().accounts[0].waited == [0]


def test_user_who_waited_streams_once_there_is_a_place(world):
    world.stream.begin(world.now)
    world.stream.opened(world.now)
    world.say("waiting", Waiting(position=2, retry_after_ms=500, ticket="t"))
    world.say("ready", Ready(lane="l", pipeline="p", window=2, max_frame_bytes=9, interval_ms=40, deadline_ms=500))
    world.stream.due(world.now)
    assert world.line.sent == [0]


def test_lost_connection_loses_its_frames_and_comes_back_with_its_ticket(world):
    world.enter().stream.due(world.now)
    world.line.is_open = False
    world.stream.lost(world.now, "reset by peer")
    world.stream.tick(world.now + 11)
    assert world.line.opened_with == ["", "mine"]
    found = world.found()
    assert world.outcomes == ["lost"]
    assert found.sum("lost") == {"reset by peer": 1}
    assert found.sum("failed") == {}


def test_connect_that_comes_to_nothing_is_a_failed_connect(world):
    world.stream.begin(world.now)
    world.line.is_open = False
    world.stream.lost(world.now, "connection refused")
    assert world.found().sum("failed") == {"connection refused": 1}
    assert world.ledger.failed_connects == 1


def test_server_that_never_greets_is_a_failed_connect(world):
    world.stream.begin(world.now)
    world.stream.opened(world.now)
    world.stream.tick(world.now + 11)
    assert world.found().sum("failed") == {"no answer in time": 1}
    assert not world.line.is_open


def test_refusal_is_told_by_its_code_and_for_now_means_again(world):
    world.stream.begin(world.now)
    world.stream.opened(world.now)
    world.say("refused", RefusedData(code="full", message="", retry_after_ms=1000))
    assert not world.line.is_open
    world.stream.tick(world.now + 13)
    assert world.line.is_open
    assert world.found().sum("refused") == {"full": 1}


def test_drain_lets_answers_come_and_then_goes_elsewhere(world):
    world.enter().stream.due(world.now)
    world.say("drain", Drain(reconnect_after_ms=700))
    world.stream.due(world.now)
    assert world.line.is_open
    world.result(0)
    assert not world.line.is_open
    assert world.outcomes == ["result", "away"]
    assert world.found().sum("lost") == {}


def test_slower_pace_than_ones_own_is_written_down_and_a_faster_one_is_not(world):
    world.enter()
    world.say("pace", Pace(interval_ms=1000))
    world.say("pace", Pace(interval_ms=4000))
    world.say("pace", Pace(interval_ms=2000))
    assert world.found().accounts[0].paced == {0: 4000}


def test_finished_user_is_done_when_answered_or_when_the_wait_is_over(world):
    world.enter(window=3)
    world.stream.due(world.now)
    world.stream.finish(world.now)
    assert not world.stream.done(world.now + 0.1)
    assert world.stream.done(world.now + DRAIN_S)
    world.stream.due(world.now)
    assert world.line.sent == [0]
    world.result(0)
    assert world.stream.done(world.now + 0.1)


def test_frames_of_a_user_who_is_stopped_by_force_are_lost_and_not_forgotten(world):
    world.enter().stream.due(world.now)
    world.stream.close()
    assert world.outcomes == ["lost"]
    assert CODES["lost"] == world.found().recorded.frames.outcome[0]


def test_user_may_begin_again_after_its_end_of_a_session(world):
    world.enter().stream.due(world.now)
    world.result(0)
    world.stream.close()
    world.enter().stream.due(world.now)
    assert world.line.sent == [0, 0]
