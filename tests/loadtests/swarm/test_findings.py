"""From what was recorded to what is said."""

import math

import numpy as np
import pytest

from framelane.loadtests.overload.records import CODES, Columns, Happening, Happenings, Recorded, Totals
from framelane.loadtests.swarm import findings
from framelane.loadtests.swarm.findings import Objective
from framelane.loadtests.swarm.ledger import Account, Found, User
from framelane.loadtests.swarm.shapes import Mark


def columns(*frames, lag=0.001):
    """Of (due, age in ms or None, client, outcome)."""
    due, ages, clients, outcomes = zip(*frames, strict=True)
    answered = [at + (math.nan if age is None else age / 1000) for at, age in zip(due, ages, strict=True)]
    return Columns(
        np.array(due),
        np.array(answered),
        np.full(len(due), lag, np.float32),
        np.array(clients, np.uint32),
        np.array([CODES[name] for name in outcomes], np.uint8),
    )


def happenings(*events):
    at, client, kind = zip(*events, strict=True)
    return Happenings(np.array(at), np.array(client, np.uint32), np.array(kind, np.uint8))


EVENTS = happenings(
    (0.0, 0, Happening.ATTEMPT),
    (0.02, 0, Happening.READY),
    (0.1, 1, Happening.ATTEMPT),
    (0.2, 1, Happening.LOST),
    (0.5, 1, Happening.ATTEMPT),
    (0.54, 1, Happening.READY),
    (9.0, 0, Happening.ATTEMPT),
)
USERS = [User(0, "ws"), User(1, "socketio", "wifi"), User(2, "ws", "deaf", honest=False)]


def found(frames, tracked=()):
    account = Account(users=USERS, deadline_ms=500)
    return Found(Recorded(frames, EVENTS, Totals()), (account,), np.array(tracked, np.float64))


FRAMES = columns(
    (1.0, 20, 0, "result"),
    (2.0, 40, 0, "result"),
    (2.5, 60, 1, "expired"),
    (3.0, 30, 1, "result"),
    (3.5, None, 1, "away"),
    (4.0, None, 2, "unanswered"),
)
HONEST = findings.of_users(FRAMES, findings.numbers_of({user.number: user for user in USERS}, honest=True))


def judge(frames=HONEST, objective=None, mark=None, tracked=(), samples=()):
    mark = mark or Mark(3, 0.0, 10.0)
    return findings.level(
        found(frames, tracked), mark, frames, samples, objective or Objective(delivery=0.7, p50_ms=40)
    )


def test_level_counts_the_honest_only_and_what_was_sent_only():
    level = judge()
    assert (level.summary.sent, level.summary.results) == (4, 3)
    assert level.verdict == "met"
    assert level.connect_p50_ms == pytest.approx(30)


def test_objective_needs_both_of_its_halves():
    assert judge(objective=Objective(delivery=0.8, p50_ms=40)).verdict == "missed"
    assert judge(objective=Objective(delivery=0.7, p50_ms=25)).verdict == "missed"
    assert judge(objective=Objective(delivery=0.7, p50_ms=0)).verdict == "met"
    assert not Objective().holds(math.nan, math.nan)


def test_late_generator_voids_the_level_and_is_named():
    late = columns((1.0, 20, 0, "result"), (2.0, 20, 0, "result"), lag=0.08)
    level = judge(late)
    assert level.verdict == "void"
    (said,) = findings.why_void([level])
    assert "lag p99 was 80 ms" in said


def test_level_without_a_frame_is_void_and_not_perfect():
    level = judge(mark=Mark(3, 100.0, 110.0))
    assert level.verdict == "void"
    assert "not a single frame" in findings.why_void([level])[0]
    assert "no level was reached" in findings.why_void([])[0]


def test_users_who_are_kept_out_are_not_forgotten_because_they_could_not_send():
    frames = columns(*[(0.1 * n, 5, 0, "result") for n in range(10)], *[(0.1 * n, None, 1, "away") for n in range(5)])
    level = judge(frames)
    assert level.summary.delivery == 1
    assert level.unserved == pytest.approx(1 / 3)
    assert level.verdict == "missed"


def test_run_is_as_bad_as_its_worst_level():
    met, missed, void = judge(), judge(objective=Objective(delivery=1)), judge(mark=Mark(3, 100.0, 110.0))
    assert findings.overall([met, met]) == "met"
    assert findings.overall([met, missed]) == "missed"
    assert findings.overall([met, missed, void]) == "void"
    assert findings.overall([]) == "void"


def test_tracked_share_is_that_of_the_window_and_unknown_where_nobody_says():
    assert judge(tracked=(1.0, 3.0, 99.0)).tracked == pytest.approx(2 / 3)
    assert math.isnan(judge().tracked)


def test_cores_are_those_of_the_window():
    samples = [(t, {"gateway": 0.1 * t, "generator": 0.02 * t}) for t in range(20)]
    level = judge(samples=samples)
    assert level.cores == {"gateway": pytest.approx(0.1), "generator": pytest.approx(0.02)}
    assert level.cpu_ms["gateway"] == pytest.approx(1000 * 0.1 / 0.3)
    assert findings.cores_used(samples[:1], 0, 10) == {}


def test_connect_time_is_that_of_the_attempt_that_succeeded():
    assert findings.connect_times(EVENTS).tolist() == pytest.approx([20, 40])


def test_every_user_has_figures_of_its_own():
    first, second, deaf = findings.per_user(found(FRAMES))
    assert (first.sent, first.results, first.delivery, first.p50_ms, first.connect_ms) == (
        2, 2, 1.0, pytest.approx(30), pytest.approx(20),
    )  # fmt: skip
    assert (second.persona, second.sent, second.delivery) == ("wifi", 2, 0.5)
    assert (deaf.sent, deaf.results) == (1, 0)
    assert math.isnan(deaf.connect_ms)


def test_personas_are_told_apart():
    summaries = findings.by_persona(found(FRAMES), 0.0, 10.0)
    assert {name: summary.results for name, summary in summaries.items()} == {"steady": 2, "wifi": 1, "deaf": 0}


def test_slices_follow_the_run():
    frames = columns(*[(0.1 * n, 10 + n // 50, n % 2, "result") for n in range(101)])
    parts = findings.slices(frames)
    assert len(parts) == 5
    assert [part.result_fps for part in parts] == pytest.approx([10] * 5, abs=0.6)
    assert parts[0].users == 2
    assert parts[-1].p50_ms > parts[0].p50_ms
    assert findings.slices(columns((0.0, 1, 0, "result")).between(5, 6)) == []
