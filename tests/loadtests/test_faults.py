"""The fault harness: what its figures say, and one fault in its shortest form."""

import asyncio
from pathlib import Path

import pytest

from framelane.loadtests.faults import clock as clock_module
from framelane.loadtests.faults.__main__ import FAULTS
from framelane.loadtests.faults.floods import half_open
from framelane.loadtests.faults.hostile import bad_pictures
from framelane.loadtests.faults.lab import Lab
from framelane.loadtests.faults.load import RESULT, Fate, Load
from framelane.loadtests.faults.pictures import grey, is_right, told_apart
from framelane.loadtests.faults.report import Report, at_least, at_most
from support import require_program


def load_with(*fates: tuple[float, float, str]) -> Load:
    load = Load(0, [b""])
    load.fates = [Fate(0, *fate) for fate in fates]
    return load


def test_goodput_counts_results_by_when_they_came() -> None:
    load = load_with((0.0, 0.5, RESULT), (0.1, 1.5, RESULT), (0.2, 1.6, "failed"))
    assert load.goodput(0, 1) == 1
    assert load.goodput(1, 3) == 0.5


def test_lost_counts_frames_by_when_they_were_sent() -> None:
    load = load_with((0.0, 5.0, "failed"), (2.0, 2.1, "failed"), (0.5, 0.6, RESULT), (0.7, 0.8, "superseded"))
    assert load.lost(0, 1) == {"failed": 1, "superseded": 1}
    assert load.lost(0, 1, but=["superseded"]) == {"failed": 1}


def test_recovery_is_the_end_of_the_last_silence() -> None:
    times = [0.05, 0.1, 0.6, 0.7, 0.8]
    assert load_with(*((time, time, RESULT) for time in times)).recovered(0, 1) == pytest.approx(0.6)
    assert load_with(*((time, time, RESULT) for time in times[3:])).recovered(0.65, 1) == 0


def test_percentile_is_of_results_in_milliseconds() -> None:
    load = load_with(*((number, number + number / 1000, RESULT) for number in range(100)))
    assert load.percentile(0.5, 0, 100) == pytest.approx(50)
    assert load.percentile(0.99, 0, 100) == pytest.approx(99)


def test_a_report_passes_if_all_bars_are_reached_and_nothing_is_left() -> None:
    good, bad = at_most("x", 1, 2), at_least("y", 1, 2)
    assert Report(fault="f", figures=(good, at_most("told", 9, None))).passed
    assert not Report(fault="f", figures=(good, bad)).passed
    assert not Report(fault="f", figures=(good,), leftovers=("process 1",)).passed
    assert Report(fault="f", lost={"failed": 2}, recover_s=0.5).row() == (
        "f",
        "2 failed",
        "0.50 s",
        "0",
        "none",
        "pass",
    )


def test_pictures_are_told_apart_by_their_answers() -> None:
    assert len(set(told_apart(15))) == 15
    assert is_right(3, {"brightness": grey(3) + 2})
    assert not is_right(3, {"brightness": grey(4)})


def test_every_fault_says_what_it_is() -> None:
    assert all(fault.__doc__ for fault in FAULTS.values())


@pytest.mark.prove
def test_a_clock_that_jumps_is_noticed_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        clock_module.library()
    except FileNotFoundError:
        require_program("faketime")
    monkeypatch.setattr(clock_module, "_QUICK_PHASE_S", 2.5)
    report = asyncio.run(clock_module.clock(Lab(tmp_path, quick=True, say=lambda _text: None)))
    assert report.passed, report.record()


def test_a_fault_in_its_shortest_form(tmp_path: Path) -> None:
    report = asyncio.run(bad_pictures(Lab(tmp_path, quick=True, say=lambda _text: None)))
    assert report.connections == 0
    assert report.record()["fault"] == "bad-pictures"
    assert {figure.name for figure in report.figures} >= {"delivery to the honest"}


def test_a_flood_in_its_shortest_form(tmp_path: Path) -> None:
    report = asyncio.run(half_open(Lab(tmp_path, quick=True, say=lambda _text: None)))
    figures = {figure.name: figure.value for figure in report.figures}
    assert figures["connections of the flood"] == 500
    assert (report.connections, figures["honest clients that were not let in"], report.leftovers) == (0, 0, ())
