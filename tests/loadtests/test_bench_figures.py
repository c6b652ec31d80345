"""Figures and their verdicts."""

import math

import pytest

from framelane.loadtests.figures import Figure, ratios


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.0, "goal"), (1.05, "goal"), (1.06, "pass"), (1.12, "pass"), (1.121, "miss")]
)
def test_figure_that_must_be_small(value, verdict):
    assert Figure(name="x", unit="×", rounds=(value,), bar=1.12, goal=1.05).verdict == verdict


@pytest.mark.parametrize(("value", "verdict"), [(0.95, "goal"), (0.87, "pass"), (0.85, "miss")])
def test_figure_that_must_be_large(value, verdict):
    assert Figure(name="x", unit="×", rounds=(value,), bar=0.86, goal=0.90, at_most=False).verdict == verdict


def test_figure_is_the_median_with_its_spread():
    figure = Figure(name="fps", unit="fps", rounds=(9.0, 450.0, 448.0))
    assert figure.row() == ("fps", "448 fps", "9 – 450", "", "", "")


def test_figure_without_rounds_is_not_measured_and_not_passed():
    figure = Figure(name="x", unit="ms", rounds=(), bar=1.0)
    assert figure.row()[-1] == "not measured"
    assert figure.record()["median"] is None
    assert math.isnan(figure.value)


def test_figure_without_a_bar_has_no_verdict():
    assert Figure(name="x", unit="ms", rounds=(1.0,)).verdict == ""


def test_ratios_are_taken_round_by_round():
    assert ratios([1.0, 6.0], [2.0, 3.0]) == (0.5, 2.0)
