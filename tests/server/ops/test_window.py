"""Rates, shares and means between two looks."""

from typing import Any

import pytest

from framelane.preprocess.stages import NO_BATCH, NO_STAGE, Stage, Tally
from framelane.server.lanes.accounts import AGE_BUCKETS_S
from framelane.server.ops.window import Reading, Sample, between, quantile


def sample(at: float, **changes: Any) -> Sample:
    zero = dict.fromkeys(
        ("received", "delivered", "refused", "left", "shed", "told", "bytes_in", "bytes_out", "turned_away", "clients",
         "admitted", "waiting", "senders", "blocked"), 0
    )  # fmt: skip
    usual = {
        **zero,
        "dropped": {},
        "ages": (0,) * (len(AGE_BUCKETS_S) + 1),
        "stages": dict.fromkeys(Stage, NO_STAGE),
        "batches": NO_BATCH,
        "lag": (0,) * 13,
        "processes": (),
        "machine_s": 0.0,
        "capacity_fps": 100.0,
        "pace_ms": 33,
        "held_back": False,
    }
    return Sample(at=at, **{**usual, **changes})


def test_counters_become_rates() -> None:
    before = sample(10.0, received=100, delivered=90, dropped={"expired": 3})
    after = sample(12.0, received=200, delivered=170, dropped={"expired": 5, "invalid": 4}, shed=2)
    seen = between(before, after, cores=2.0)
    assert (seen.seconds, seen.received_fps, seen.delivered_fps, seen.shed_fps) == (2.0, 50.0, 40.0, 1.0)
    assert seen.dropped_fps == {"expired": 1.0, "invalid": 2.0}
    assert seen.delivery == pytest.approx(40 / 44)


def test_nothing_gives_no_figures_rather_than_zeros() -> None:
    seen = between(sample(1.0), sample(2.0), cores=2.0)
    assert (seen.delivery, seen.age_s(0.5), seen.batch, seen.stages) == (None, None, None, {})


def test_processes_have_shares_of_the_window() -> None:
    before = Reading("slot", "slot-0", 7, "active", 100.0, 50.0, 1.0, 10, 0)
    after = Reading("slot", "slot-0", 7, "active", 101.0, 50.5, 1.2, 30, 0)
    new = Reading("slot", "slot-1", 8, "active", 500.0, 50.0, 0.0, 9, 0)
    seen = between(sample(0.0, processes=[before]), sample(2.0, processes=[after, new], machine_s=3.0), cores=2.0)
    load, unknown = seen.loads
    assert (load.busy, load.cpu, load.done_fps) == (0.5, 0.25, 10.0)
    assert load.core_wait == pytest.approx(0.1)
    assert (unknown.busy, unknown.cpu) == (0.0, 0.0), "a process that has just come has no past"
    assert seen.others == pytest.approx(1.25)


def test_stages_and_batches_are_means_of_the_window_alone() -> None:
    long_ago, now = Tally((5,) + (0,) * 15, 5.0), Tally((7,) + (0,) * 15, 5.5)
    before = sample(0.0, stages={**dict.fromkeys(Stage, NO_STAGE), Stage.RUN: long_ago}, batches=NO_BATCH)
    runs = Tally((0, 0, 2, 0, 0, 0, 0, 0), 7.0)
    after = sample(1.0, stages={**dict.fromkeys(Stage, NO_STAGE), Stage.RUN: now}, batches=runs)
    seen = between(before, after, cores=1.0)
    assert seen.stages == {Stage.RUN: 0.25}
    assert seen.batch == 3.5


def test_quantiles_lie_between_the_edges_of_their_bucket() -> None:
    assert quantile((1.0, 2.0, 4.0), (0, 10, 0, 0), 0.5) == pytest.approx(1.5)
    assert quantile((1.0, 2.0, 4.0), (10, 10, 0, 0), 0.25) == pytest.approx(0.5)
    assert quantile((1.0, 2.0, 4.0), (0, 0, 0, 3), 0.5) == 4.0
    assert quantile((1.0, 2.0), (0, 0, 0), 0.5) is None
