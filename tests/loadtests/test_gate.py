"""The gates, with the campaign's figures."""

import datetime as dt
import importlib.resources

import pytest

from framelane.loadtests.gate import (
    Day,
    Gate,
    GateError,
    Outcome,
    Promotion,
    Reading,
    Sample,
    decide,
    decide_promotion,
    parse_gates,
    rule,
    whole_days,
)

GATES = parse_gates(importlib.resources.files("framelane.loadtests").joinpath("gates.toml").read_text())
ONE = Reading(slots=1, attempts=10, successes=10, p95_ms=1544, per_second=1.0)
TWO = Reading(slots=2, attempts=20, successes=20, p95_ms=2223, throughput_ratio=1.35)
THREE = Reading(slots=3, attempts=30, successes=30, p95_ms=3207, throughput_ratio=1.40)
TODAY = dt.date(2026, 11, 20)


def outcomes(decision, slots):
    return {r.figure: r.outcome.value for r in decision.rulings if r.slots == slots}


@pytest.mark.parametrize("two", [2207, 2223])
@pytest.mark.parametrize("three", [3207, 3222])
def test_campaign_keeps_two_active_and_the_third_warm(two, three):
    readings = [ONE, *(Reading(slots=n, attempts=10 * n, successes=10 * n, p95_ms=p95, throughput_ratio=ratio)
                       for n, p95, ratio in ((2, two, 1.35), (3, three, 1.40)))]  # fmt: skip
    decision = decide(readings, GATES)
    assert outcomes(decision, 2) == {"success": "pass", "p95": "pass", "throughput": "borderline"}
    assert outcomes(decision, 3) == {"success": "pass", "p95": "fail", "throughput": "fail"}
    assert (decision.active, decision.spare) == (2, True)
    assert decision.reasons[-1] == "keep 2 active; one more warm: standby, audit runs, later measurement"


def test_campaign_margins():
    margins = {(r.slots, r.figure): r.margin for r in decide([ONE, TWO, THREE], GATES).rulings}
    assert margins[2, "throughput"] == pytest.approx(-0.036, abs=0.001)
    assert -0.04 <= margins[3, "p95"] <= -0.03
    assert margins[3, "throughput"] == pytest.approx(-0.18, abs=0.005)


def test_campaign_gates_in_milliseconds():
    assert 1544 * GATES.slots["2"].p95.limit == 2702
    assert 1544 * GATES.slots["3"].p95.limit == 3088


def test_ruling_reads_as_a_sentence():
    ruling = next(r for r in decide([ONE, TWO, THREE], GATES).rulings if r.slots == 3 and r.figure == "throughput")
    assert str(ruling) == "3 slots, throughput: 1.4 × against ≥ 1.7 ×: fail, 17.6% short"


def test_more_slots_after_a_failing_number_do_not_become_active():
    good = Reading(slots=3, attempts=30, successes=30, p95_ms=1544, throughput_ratio=3.0)
    bad = Reading(slots=2, attempts=20, successes=10, p95_ms=1544, throughput_ratio=2.0)
    assert decide([ONE, bad, good], GATES).active == 1
    assert decide([ONE, good], GATES).active == 1


def test_number_without_a_gate_is_not_decided_on():
    four = Reading(slots=4, attempts=1, successes=1, p95_ms=1.0, throughput_ratio=4.0)
    decision = decide([ONE, TWO, four], GATES)
    assert decision.active == 2
    assert "no gate" in decision.reasons[1]


def test_without_a_reading_of_one_slot_nothing_can_be_compared():
    with pytest.raises(GateError, match="one slot"):
        decide([TWO], GATES)


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(1.4, "pass"), (1.39, "borderline"), (1.33, "borderline"), (1.32, "fail"), (float("nan"), "fail")],
)
def test_borderline_is_a_share_of_the_limit(value, outcome):
    assert rule("throughput", 2, value, Gate(limit=1.4, borderline=0.05)).outcome is Outcome(outcome)


@pytest.mark.parametrize(
    "text", ["", "[slots.x]", "[slots.1]\np95={limit=1}\nsuccess={limit=1}\nthroughput={limit=1}", "x"]
)
def test_gates_that_cannot_be_used_are_refused(text):
    with pytest.raises(GateError):
        parse_gates(text)


def history(count, p95=1.5 * 1544, per_second=2.0, **changed):
    days = [Day(date=TODAY - dt.timedelta(days=n), p95_ms=p95, per_second=per_second) for n in range(count, 0, -1)]
    return [changed.get(f"d{(TODAY - day.date).days}", day) for day in days]


def test_spare_is_promoted_exactly_at_the_trigger():
    decided = decide_promotion(history(7), ONE, GATES.promotion, TODAY)
    assert decided.promote
    assert decided.missing == ()
    assert len(decided.days) == 7


@pytest.mark.parametrize(
    ("days", "missing"),
    [
        (history(6), "2026-11-13: no data"),
        (history(7, p95=1.51 * 1544), "2026-11-13: p95 was 1.51 ×; it must be ≤ 1.5 ×"),
        (history(7, per_second=1.9), "2026-11-13: throughput was 1.90 ×; it must be ≥ 2 ×"),
    ],
)
def test_spare_is_not_promoted_and_what_is_missing_is_said(days, missing):
    decided = decide_promotion(days, ONE, GATES.promotion, TODAY)
    assert not decided.promote
    assert decided.missing[1] == missing


def test_both_halves_of_the_trigger_are_needed():
    decided = decide_promotion(history(7, p95=1544, per_second=1.4), ONE, Promotion(), TODAY)
    assert not decided.promote
    assert decided.missing[0] == "0 of 7 whole days meet the trigger"


def test_one_bad_day_breaks_the_row():
    bad = Day(date=TODAY - dt.timedelta(days=3), p95_ms=5000, per_second=2.0)
    decided = decide_promotion(history(7, d3=bad), ONE, Promotion(), TODAY)
    assert decided.missing == ("6 of 7 whole days meet the trigger", "2026-11-17: p95 was 3.24 ×; it must be ≤ 1.5 ×")


def test_today_and_days_that_were_hardly_seen_do_not_count():
    half = Day(date=TODAY - dt.timedelta(days=1), p95_ms=1000, per_second=3.0, coverage=0.5)
    today = Day(date=TODAY, p95_ms=1000, per_second=3.0)
    decided = decide_promotion([*history(7, d1=half), today], ONE, Promotion(), TODAY)
    assert "only 50% of the day was seen" in decided.missing[1]


def test_day_without_traffic_shows_no_throughput_and_no_latency():
    night = Day(date=TODAY - dt.timedelta(days=1), p95_ms=float("nan"), per_second=0.0)
    decided = decide_promotion(history(7, d1=night), ONE, Promotion(), TODAY)
    assert len(decided.missing) == 3


def test_days_are_made_of_samples_the_worst_p95_and_the_busiest_step():
    hour = dt.timedelta(hours=1)
    start = dt.datetime(2026, 11, 19, tzinfo=dt.UTC)
    samples = [
        Sample(time=start + n * hour, p95_ms=float("nan") if n < 6 else 100.0 + n, per_second=n % 20)
        for n in range(1, 25)
    ]
    (day,) = whole_days(samples, hour)
    assert day == Day(date=start.date(), p95_ms=124.0, per_second=19, coverage=1.0)


def test_baseline_without_throughput_cannot_promote():
    with pytest.raises(GateError, match="throughput"):
        decide_promotion([], Reading(slots=1, attempts=1, successes=1, p95_ms=5), Promotion(), TODAY)
