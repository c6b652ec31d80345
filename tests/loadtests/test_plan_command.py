"""The command `plan`, and a calibration on a real server."""

import json

import pytest
from click.testing import CliRunner

from framelane.loadtests import plan_command
from framelane.loadtests.plan_calibration import Effortful, calibrate


def plan(tmp_path, *arguments):
    done = CliRunner().invoke(plan_command.main, [*arguments, "-o", str(tmp_path / "out")])
    path = tmp_path / "out" / "plan.json"
    return done, json.loads(path.read_text()) if path.exists() else {}


def test_campaign_demand_and_projection(tmp_path):
    arguments = [
        "-u",
        "700",
        "--slot-ms",
        "6.67",
        "--slots-per-gpu",
        "1",
        "--headroom",
        "0.1",
        "--project",
        "22:0.64:1.48:45",
    ]
    done, record = plan(tmp_path, *arguments)
    assert done.exit_code == 0, done.output
    assert record["data"]["plan"]["machines"] == 4
    assert "$0.0106 per user-hour" in done.output
    assert "22 s become 28.8 s, 1.31 ×; the limit of 45 s holds" in done.output
    assert "price as of 2026-05" in done.output
    assert "was not held against a measured run" in done.output


def test_campaign_demand_of_500_users_costs_what_it_cost(tmp_path):
    done, record = plan(tmp_path, "-u", "500", "--slot-ms", "6.67", "--slots-per-gpu", "1")
    assert done.exit_code == 0, done.output
    assert record["data"]["plan"]["machines"] == 4
    assert "$0.0149 per user-hour" in done.output


def test_broken_limit_is_the_exit_status(tmp_path):
    done, _ = plan(tmp_path, "-u", "10", "--project", "40:0.9:1.48:45")
    assert done.exit_code == 1
    assert "is broken" in done.output


@pytest.mark.parametrize(
    "arguments",
    [["--price", "cheap"], ["--project", "22"], ["--tax", "x"], ["--slots-per-gpu", "99"], ["--project", "a:b:c"]],
)
def test_unusable_question_is_refused(tmp_path, arguments):
    done, record = plan(tmp_path, *arguments)
    assert done.exit_code == 2
    assert record == {}


def test_simulated_curve_holds_the_plan_and_breaks_beyond_it(tmp_path):
    _, record = plan(tmp_path, "-u", "700")
    curve = record["data"]["curve"]
    assert curve[2]["users"] == 700
    assert curve[2]["delivery"] > 0.979
    assert curve[-1]["delivery"] < 0.9


@pytest.mark.timeout(180)
def test_measured_replica_calibrates_later_plans(tmp_path):
    effort = Effortful(serve=("--device", "sim:8"), workers=1, clients=3, seconds=0.8, patience=0)
    found = calibrate(effort, tmp_path, lambda text: None)
    assert found.simulated_device
    assert found.stages.slot_ms >= 16
    assert [check.figure for check in found.checks] == ["results per second", "p50 ms", "p95 ms"]
    assert all(check.simulated > 0 and check.error == check.error for check in found.checks)
    path = tmp_path / "calibration.json"
    path.write_bytes(plan_command.msgspec.json.encode({"data": {"calibration": found}}))
    done, record = plan(tmp_path, "-u", "100", "--calibration", str(path))
    assert done.exit_code == 0, done.output
    assert record["data"]["stages"]["slot_ms"] == found.stages.slot_ms
    assert "the simulation's error against a run of 3 clients" in done.output
    assert record["simulated"]
