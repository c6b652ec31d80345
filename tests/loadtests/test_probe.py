"""What the probe reads from attempts; and that it reads the truth of a simulated device."""

import json
import os

import pytest
from click.testing import CliRunner

from framelane.loadtests import probe_command
from framelane.loadtests.probe import Attempt, Level, concurrency_of, depth_for, level, merged, percentile, read


def made(slots, p50, per_second, p95=None):
    return Level(
        slots=slots, depth=2, attempts=100, successes=100, p50_ms=p50, p95_ms=p95 or p50, per_second=per_second,
        inference_ms=p50,
    )  # fmt: skip


CAMPAIGN = [made(1, 1544, 1.0), made(2, 2215, 1.35), made(3, 3215, 1.40)]
SERIAL = [made(1, 32, 62.5), made(2, 64, 62.0), made(3, 97, 61.0)]
FULL = [made(1, 32, 62.5), made(2, 32.4, 124), made(3, 32.6, 186)]


def test_campaign_is_concurrent_and_looks_like_shared_bandwidth():
    found = read(CAMPAIGN)
    assert [round(step.p95, 2) for step in found.steps] == [1.0, 1.43, 2.08]
    assert found.concurrency == "shared"
    assert found.ceiling.startswith("shared bandwidth: each slot adds about 54%")
    assert [step.serial_p95 for step in found.steps] == [1, 2, 3]
    assert found.best == 2


def test_serial_queueing_is_called_so():
    found = read(SERIAL)
    assert found.concurrency == "serial"
    assert found.ceiling.startswith("serial")
    assert found.best == 1


def test_slots_that_do_not_disturb_each_other_have_no_ceiling_yet():
    found = read(FULL)
    assert (found.concurrency, found.best) == ("full", 3)


def test_each_slot_adding_more_is_contention():
    assert "contention" in read([made(1, 10, 100), made(2, 11, 180), made(3, 20, 150)]).ceiling


def test_two_slots_alone_do_not_tell_the_kind_of_ceiling():
    assert "a third tells" in read(CAMPAIGN[:2]).ceiling


def test_one_slot_alone_tells_nothing():
    assert read(CAMPAIGN[:1]).concurrency == "unknown"


@pytest.mark.parametrize(("p50", "per_second", "p95"), [(10, 100, 137), (40, 30, 40)])
def test_figures_that_no_device_has_are_not_decided_on(p50, per_second, p95):
    levels = [made(1, p50, per_second, p95), made(2, 48, 76, 68)]
    assert "quiet machine" in read(levels).implausible


def test_campaign_figures_are_plausible():
    assert not any(read(levels).implausible for levels in (CAMPAIGN, SERIAL, FULL))


@pytest.mark.parametrize(
    ("slots", "latency", "throughput", "kind"),
    [(2, 1.0, 2.0, "full"), (2, 1.48, 1.35, "shared"), (2, 2.0, 1.0, "serial"), (3, 2.08, 1.44, "shared"),
     (3, 3.1, 0.97, "serial"), (3, 1.4, 0.97, "serial"), (1, 1.0, 1.0, "unknown"), (2, float("nan"), 1.0, "unknown")],
)  # fmt: skip
def test_kind_of_concurrency(slots, latency, throughput, kind):
    assert concurrency_of(slots, latency, throughput) == kind


def test_level_counts_failures_by_reason_and_times_successes_only():
    attempts = [Attempt(True, 0.010, 1.0), Attempt(True, 0.030, 2.0), Attempt(False, 9.0, 3.0, 0.0, "timeout")]
    found = level(1, 1, attempts, 2.0)
    assert (found.attempts, found.successes, found.failures) == (3, 2, {"timeout": 1})
    assert (found.p50_ms, found.per_second) == (20.0, 1.0)


def test_rounds_are_merged_by_their_medians():
    found = merged([made(2, 10, 50), made(2, 90, 1), made(2, 12, 49)])
    assert (found.attempts, found.p50_ms, found.per_second) == (300, 12, 49)


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.0), (95, 2.9), (100, 3.0)])
def test_percentile_lies_between_values(percent, value):
    assert percentile([1.0, 2.0, 3.0], percent) == pytest.approx(value)


@pytest.mark.parametrize(("share", "depth"), [(0.0, 1), (0.02, 1), (0.1, 3), (0.5, 4), (0.75, 6), (1.0, 12)])
def test_depth_covers_what_is_not_inference(share, depth):
    assert depth_for(share) == depth
    assert depth_for(share, wanted=7) == 7


def probe(tmp_path, device, *arguments):
    command = ["--device", device, "--output", str(tmp_path), *arguments]
    done = CliRunner().invoke(probe_command.main, command, catch_exceptions=False)
    assert (tmp_path / "probe.json").exists(), done.output
    record = json.loads((tmp_path / "probe.json").read_text())
    assert "SIMULATED" in done.output
    assert [step["success"] for step in record["data"]["findings"]["steps"]] == [1.0] * len(record["data"]["levels"])
    return record["data"]


def skip_if_disturbed(found):
    foreign = max(level["foreign_cores"] for level in found["rounds"])
    if foreign > 0.15:
        pytest.skip(f"other programs used {foreign:.1f} cores of this machine: times mean nothing")


@pytest.mark.prove  # it asserts times: on a machine that others use it says nothing
def test_taxed_device_reads_its_tax_within_five_percent(tmp_path):
    device = f"sim:8:group=probe{os.getpid()}:tax=1,1.44,2.08"
    found = probe(tmp_path, device, "--rounds", "1", "--attempts", "80")
    skip_if_disturbed(found)
    steps = found["findings"]["steps"]
    assert [step["latency"] for step in steps] == pytest.approx([1, 1.44, 2.08], rel=0.05)
    assert [step["p95"] for step in steps] == pytest.approx([1, 1.44, 2.08], rel=0.05)
    assert found["findings"]["concurrency"] == "shared"
    assert found["decision"]["active"] == 2


@pytest.mark.prove
def test_serial_device_is_called_serial(tmp_path):
    device = f"sim:8:group=serial{os.getpid()}:serial"
    found = probe(tmp_path, device, "--slots", "1,3", "--rounds", "1", "--attempts", "40")
    skip_if_disturbed(found)
    assert found["findings"]["concurrency"] == "serial"
    assert found["decision"]["active"] == 1


def test_numbers_must_start_at_one(tmp_path):
    done = CliRunner().invoke(probe_command.main, ["--slots", "2,3", "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert "start at 1" in done.output
