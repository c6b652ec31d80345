"""Columns that one process writes and another reads."""

import math

import pytest

from framelane.loadtests.overload.records import CODES, RESULT, Happening, Recorded, Records, together


@pytest.fixture
def recorded(tmp_path):
    def save(first=0):
        records = Records()
        one, two = records.add(10.0, 0.001, first), records.add(10.5, 0.002, first + 1)
        records.answer(one, 10.04, RESULT)
        records.settle(two, CODES["replaced"])
        records.happened(9.0, first, Happening.READY)
        records.totals.errors["bad_seq"] = 1
        records.totals.foreign = 3
        records.save(tmp_path / "records")
        return Recorded.load(tmp_path / "records")

    return save


def test_columns_survive_saving(recorded):
    frames, events, totals = recorded()
    assert frames.intended.tolist() == [10.0, 10.5]
    assert frames.ages_ms[0] == pytest.approx(40.0)
    assert math.isnan(frames.ages_ms[1])
    assert frames.outcome.tolist() == [RESULT, CODES["replaced"]]
    assert events.of(Happening.READY).at.tolist() == [9.0]
    assert totals.errors == {"bad_seq": 1}


def test_frames_are_chosen_by_the_time_they_were_due_and_by_client(recorded):
    frames = recorded().frames
    assert frames.between(10.0, 10.5).client.tolist() == [0]
    assert frames.below(1).client.tolist() == [0]


def test_several_generators_are_read_as_one(recorded):
    both = together([recorded(), recorded(first=2)])
    assert both.frames.client.tolist() == [0, 1, 2, 3]
    assert (both.totals.foreign, both.totals.errors) == (6, {"bad_seq": 2})
