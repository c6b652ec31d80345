"""From columns to figures."""

import math

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from framelane.loadtests.overload.outcomes import Ages, jain, results_by_client, sliding_p99, summarize
from framelane.loadtests.overload.records import CODES, Columns
from framelane.loadtests.overload.scenarios.recovery import back_to_normal


def columns(*frames):
    """Of (due, age in ms or None, client, outcome)."""
    due, ages, clients, outcomes = zip(*frames, strict=True)
    answered = [at + (math.nan if age is None else age / 1000) for at, age in zip(due, ages, strict=True)]
    return Columns(
        np.array(due),
        np.array(answered),
        np.full(len(due), 0.001, np.float32),
        np.array(clients, np.uint32),
        np.array([CODES[name] for name in outcomes], np.uint8),
    )


FRAMES = columns(
    (0.0, 20, 0, "result"),
    (0.5, 600, 0, "result"),
    (0.6, 30, 1, "superseded"),
    (0.7, None, 1, "replaced"),
    (0.8, None, 2, "waiting"),
    (0.9, None, 0, "unanswered"),
    (3.0, 20, 0, "result"),
)


def test_window_counts_what_was_offered_sent_answered_and_in_time():
    found = summarize(FRAMES, 0.0, 2.0, 500)
    assert (found.offered, found.sent, found.results, found.good) == (5, 4, 2, 1)
    assert found.fates == {"result": 2, "superseded": 1, "replaced": 1, "waiting": 1, "unanswered": 1}
    assert (found.offered_fps, found.goodput, found.delivery) == (2.5, 0.5, 0.5)
    assert found.age.most == pytest.approx(600, rel=0.001)
    assert not found.sick


def test_generator_that_is_late_makes_a_window_void():
    late = FRAMES._replace(lag=np.full(len(FRAMES.lag), 0.06, np.float32))
    assert summarize(late, 0.0, 2.0, 500).sick


def test_window_without_frames_has_no_ratio():
    empty = summarize(FRAMES, 10.0, 11.0, 500)
    assert math.isnan(empty.delivery)
    assert math.isnan(empty.age.p99)


def test_clients_that_sent_and_got_nothing_count_for_fairness():
    assert results_by_client(FRAMES).tolist() == [3, 0]


@pytest.mark.parametrize(("shares", "index"), [([5, 5, 5, 5], 1.0), ([8, 0, 0, 0], 0.25), ([1, 3], 0.8)])
def test_jain_index(shares, index):
    assert jain(np.array(shares)) == pytest.approx(index)


def test_ages_keep_their_histogram():
    ages = Ages.of(np.arange(1.0, 101.0))
    assert (ages.p50, ages.p99, ages.most) == pytest.approx((50, 99, 100), rel=0.001)
    assert HdrHistogram.decode(ages.histogram.encode()).get_total_count() == 100


def test_recovery_ends_with_the_first_second_behind_which_hardly_any_is_slow():
    frames = columns(*((0.1 * i, 900 if i < 25 or i == 70 else 20, 0, "result") for i in range(1000)))
    windows = sliding_p99(frames, 0.0, 100.0, 1.0, 0.25)
    assert windows[0][0] == 1.0
    assert back_to_normal(windows, 25.0) == pytest.approx(3.5, abs=0.3)
    assert back_to_normal(windows, 1000.0) == 1.0
    assert back_to_normal(windows, 5.0) == math.inf
