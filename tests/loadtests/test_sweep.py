"""Sweeps: what is refused, what survives, and what becomes of planted truths."""

import importlib.resources
import json
import math
import random

import pytest
from click.testing import CliRunner
from rich.console import Console

from framelane.loadtests import sweep_command
from framelane.loadtests.processes import StartFailed
from framelane.loadtests.sweep import (
    Experiment,
    Hypothesis,
    Measurement,
    Result,
    Setup,
    SweepError,
    Verdict,
    conclusion,
    differences,
    interval,
    judge,
    margin,
    order,
    parse_sweep,
    share,
    verdict,
)
from framelane.loadtests.sweep_run import shares, target
from framelane.loadtests.tools import Steps


def built_in(name):
    return parse_sweep(importlib.resources.files("framelane.loadtests").joinpath(f"sweeps/{name}.toml").read_text())


PLANTED = {experiment.name: experiment for experiment in built_in("planted")}
CAMPAIGN = {experiment.name: experiment for experiment in built_in("campaign")}
SEVEN = {"GPU-bound", "interpreter-bound", "fan-out-bound", "preprocess-bound", "decode-bound", "connection-bound",
         "generator-bound"}  # fmt: skip


@pytest.mark.parametrize("experiment", [*PLANTED.values(), *CAMPAIGN.values()], ids=lambda one: one.name)
def test_built_in_experiments_have_the_seven_explanations_with_one_variable_each(experiment):
    assert set(experiment.hypotheses) == SEVEN
    assert len(experiment.configurations) == 7
    variables = [differences(experiment.baseline, setup)[0] for setup in experiment.configurations.values()]
    assert len(set(variables)) == 7


def test_campaign_runs_both_servers_on_simulated_and_real_models():
    assert {(one.baseline.server, one.baseline.device == "cpu") for one in CAMPAIGN.values()} == {
        ("legacy", True), ("legacy", False), ("product", True), ("product", False)
    }  # fmt: skip


def test_planted_bottlenecks_are_five_different_ones():
    assert {one.planted for one in PLANTED.values()} == {
        "GPU-bound", "interpreter-bound", "generator-bound", "preprocess-bound", "fan-out-bound"
    }  # fmt: skip


def sweep(configurations, hypotheses="", more=""):
    parts = ["[experiments.x]", more, "[experiments.x.configurations]", configurations, "[experiments.x.hypotheses]"]
    return "\n".join([*parts, hypotheses])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (sweep("a = {workers = 3, slots = 2}"), r"moves 2 variables \(workers, slots\)"),
        (sweep("a = {options = {x = 1, y = 2}}"), r"moves 2 variables \(options.x, options.y\)"),
        (sweep("a = {workers = 2}"), "moves nothing"),
        (sweep("a = {wrokers = 3}"), "wrokers"),
        (sweep("a = {workers = 0}"), ">= 1"),
        (sweep("a = {workers = 3}", "h = {configuration = 'b', says = 's', predicts = 2.0}"), "no configuration"),
        (sweep("a = {workers = 3}", "h = {configuration = 'a', says = 's'}"), "exactly one number"),
        (
            sweep("a = {workers = 3}", "h = {configuration = 'a', says = 's', predicts = 2, at_least = 1.5}"),
            "exactly one",
        ),
        (sweep("a = {workers = 3}", "h = {configuration = 'a', says = 's', predicts = 1.1}"), "never be falsified"),
        (sweep("a = {workers = 3}", "h = {configuration = 'a', says = 's', at_least = 0.5}"), "never be falsified"),
        (sweep("", more="like = 'y'"), "names no experiment"),
        (sweep("", more="baselime = 1"), "unknown keys: baselime"),
        (sweep("", more="planted = 'h'"), "names no hypothesis"),
        ("x = 1", "no \\[experiments"),
        ("x = = 1", "no \\[experiments"),
    ],
)
def test_sweep_that_would_prove_nothing_is_refused(text, why):
    with pytest.raises(SweepError, match=why):
        parse_sweep(text)


def test_experiment_takes_over_what_it_does_not_say():
    one = PLANTED["one-worker"]
    assert one.baseline.options == {"decode_ms": 8, "preprocess_ms": 8, "python_ms": 8}
    assert one.configurations["smaller-images"].workers == 1
    assert one.moved("lighter-preprocessing") == "options.preprocess_ms: 8 → 4"
    assert CAMPAIGN["legacy-sim"].moved("no-broadcast") == "broadcast: true → false"


def test_rounds_are_interleaved_in_changing_order():
    experiment = PLANTED["slow-device"]
    orders = [order(experiment, number) for number in range(3)]
    assert all(sorted(one) == sorted(["", *experiment.configurations]) for one in orders)
    assert len({tuple(one) for one in orders}) == 3
    assert orders[0][0] == ""
    assert orders[1][-1] != ""


@pytest.mark.parametrize(
    ("ratios", "low", "high"),
    [([2.0, 2.0, 2.0], 2.0, 2.0), ([1.9, 2.0, 2.1], 1.76, 2.26), ([1, 4], 0.0003, 13_300)],
)
def test_interval_is_students(ratios, low, high):
    value, below, above = interval(ratios)
    assert value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert (below, above) == (pytest.approx(low, rel=0.02, abs=0.001), pytest.approx(high, rel=0.05))


def test_one_ratio_could_be_anything_and_none_is_none():
    assert interval([2.0])[1:] == (0.0, math.inf)
    assert math.isnan(interval([])[0])


@pytest.mark.parametrize(
    ("value", "low", "high", "band", "found"),
    [
        (2.0, 1.9, 2.1, (1.7, 2.3), "survived"),
        (1.0, 0.9, 1.1, (1.7, 2.3), "falsified"),
        (3.0, 2.8, 3.2, (1.7, 2.3), "falsified"),
        (2.0, 0.9, 4.0, (1.7, 2.3), "undecided"),
        (1.5, 1.3, 1.8, (1.7, 2.3), "undecided"),
        (8.0, 7.0, 9.0, (2.0, math.inf), "survived"),
        (1.2, 1.1, 1.3, (2.0, math.inf), "falsified"),
        (0.5, 0.4, 0.6, (0.0, 0.7), "survived"),
        (float("nan"), 0.0, math.inf, (1.7, 2.3), "undecided"),
    ],
)
def test_verdict(value, low, high, band, found):
    assert verdict(value, low, high, band) is Verdict(found)


@pytest.mark.parametrize(("value", "found"), [(2.0, 0.13), (1.0, -0.41), (4.6, -1.0)])
def test_margin_is_inside_or_outside_of_the_band(value, found):
    assert margin(value, (1.7, 2.3)) == pytest.approx(found, abs=0.01)


# -- planted truth, with a server made of arithmetic -----------------------------------------------------------------


class Arithmetic:
    """Throughput of a setup as the smallest of its capacities, disturbed a little; counts what was measured."""

    def __init__(self, noise=0.01, stop_after=10_000, says=""):
        self.says = says
        self.noise = noise
        self.left = stop_after
        self.random = random.Random(1)

    def measure(self, setup):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        device = float(setup.device.split(":")[1]) if setup.device.startswith("sim") else 1.0
        width, height = map(int, setup.image.split("x"))
        options = {"decode_ms": 1.0, "preprocess_ms": 1.0, "python_ms": 0.0, **setup.options}
        decode = options["decode_ms"] * width * height / (640 * 480)
        worker = decode + options["preprocess_ms"] + options["python_ms"]
        if setup.server == "product":
            answers = 0.05
            capacity = min(1000 * setup.slots / device, 1000 * setup.workers / worker)
        else:
            answers = (0.05 + setup.send_ms) * (setup.connections if setup.broadcast else 1)
            loop = answers + (worker if setup.inline else 0) + (device if setup.inline and setup.process else 0)
            capacity = min(1000 / loop, 1e9 if setup.inline else 1000 * setup.parallel / (worker + device))
        offered = setup.rate * setup.generators or 1e9
        rate = min(capacity, offered) * (1 + self.random.uniform(-self.noise, self.noise))
        return Measurement(throughput=rate, p50_ms=1000 / rate, p95_ms=2000 / rate, limit=self.says)


def measured(experiment, runner, rounds=3, extra=0):
    found = []
    sweep_command.Sweeping(runner, Steps(None, 1, Console(quiet=True))).run(experiment, rounds, extra, found)
    return found


@pytest.mark.parametrize("experiment", PLANTED.values(), ids=lambda one: one.name)
def test_planted_bottleneck_is_named_and_the_others_are_falsified(experiment):
    results = judge(experiment, measured(experiment, Arithmetic()))
    verdicts = {result.hypothesis: result.verdict for result in results}
    assert verdicts.pop(experiment.planted) is Verdict.SURVIVED
    assert set(verdicts.values()) == {Verdict.FALSIFIED}
    found = conclusion(experiment, results)
    assert found == f"{experiment.name}: {experiment.planted}, and every other explanation is falsified"


def test_noise_leaves_things_undecided_instead_of_deciding_them():
    results = judge(PLANTED["slow-device"], measured(PLANTED["slow-device"], Arithmetic(noise=0.6)))
    assert Verdict.UNDECIDED in {result.verdict for result in results}


def test_only_what_is_undecided_is_measured_again():
    experiment = PLANTED["slow-device"]
    found = measured(experiment, Arithmetic(noise=0.25), rounds=2, extra=20)
    assert all(len(one) == 8 for one in found[:2])
    assert all(1 < len(one) <= 8 and "" in one for one in found[2:])
    assert len(found[-1]) < 8
    assert Verdict.UNDECIDED not in {result.verdict for result in judge(experiment, found)}
    assert len(measured(experiment, Arithmetic(), rounds=2, extra=20)) <= 3


def test_no_explanation_left_is_said():
    experiment = Experiment(
        name="x",
        says="",
        baseline=Setup(workers=1, device="sim:100"),
        configurations={"a": Setup(workers=2, device="sim:100")},
        hypotheses={"h": Hypothesis(configuration="a", says="s", predicts=2.0)},
    )
    results = judge(experiment, measured(experiment, Arithmetic()))
    assert conclusion(experiment, results).endswith("the limit is something that nobody named")


def test_limit_that_stages_share_names_the_largest_part():
    def found(name, value):
        return Result(
            hypothesis=name, configuration="", metric="throughput", prediction="", band=(1.7, 2.3), value=value,
            low=value, high=value, rounds=3, verdict=Verdict.FALSIFIED, margin=-0.1,
        )  # fmt: skip

    results = [found("GPU-bound", 1 / 0.6), found("decode-bound", 1 / 0.9), found("other", 0.9)]
    assert [share(result) for result in results] == pytest.approx([0.8, 0.2, 0])
    said = conclusion(PLANTED["slow-device"], results)
    assert "no explanation is enough alone; GPU-bound comes closest: about 80% of the time per frame" in said


# -- the command -----------------------------------------------------------------------------------------------------


def test_interrupted_sweep_keeps_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_command, "RealRunner", lambda folder, seconds: Arithmetic(stop_after=11))
    arguments = ["planted", "--only", "slow-device", "-o", str(tmp_path)]
    done = CliRunner().invoke(sweep_command.main, arguments)
    assert done.exit_code == 130, done.output
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert record["complete"] is False
    assert [len(found) for found in record["data"]["slow-device"]["rounds"]] == [8, 3]
    assert "interrupted" in (tmp_path / "sweep.html").read_text()


def test_run_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    class Failing(Arithmetic):
        def measure(self, setup):
            if setup.workers == 4:
                raise StartFailed("no such server")
            return super().measure(setup)

    monkeypatch.setattr(sweep_command, "RealRunner", lambda folder, seconds: Failing())
    done = CliRunner().invoke(sweep_command.main, ["planted", "--only", "slow-device", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "FAILED: no such server" in done.output
    assert "slow-device: GPU-bound; undecided: interpreter-bound" in done.output
    assert "6 runs failed" in done.output


def test_command_writes_a_report_and_exits_with_0_when_one_explanation_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_command, "RealRunner", lambda folder, seconds: Arithmetic(says="Slots are full."))
    done = CliRunner().invoke(sweep_command.main, ["planted", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert '<td class="good">2' in (tmp_path / "sweep.html").read_text()
    assert "slow-device: the server says of itself: Slots are full." in done.output
    assert (tmp_path / "sweep.csv").read_text().count("\n") == 36
    assert "SIMULATED" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["no-such"], "campaign, planted"), (["planted", "--only", "x"], "slow-device"), (["x.toml"], "x.toml")],
)
def test_command_says_what_there_is(arguments, told):
    done = CliRunner().invoke(sweep_command.main, arguments)
    assert done.exit_code == 2
    assert told in done.output


def test_listing_runs_nothing():
    done = CliRunner().invoke(sweep_command.main, ["campaign", "--list", "--only", "product-sim"])
    assert done.exit_code == 0
    assert "workers: 2 → 4" in done.output


# -- setups as processes ---------------------------------------------------------------------------------------------


def test_connections_are_spread_over_generators():
    assert shares(8, 1) == [8]
    assert shares(8, 3) == [3, 3, 2]
    assert shares(1, 2) == [1]


def test_faults_and_options_become_arguments():
    legacy = target(Setup(server="legacy", broadcast=False, options={"tracking": True}))
    assert target(Setup(server="legacy", send_ms=0.2)).arguments[-1] == "--send-ms=0.2"
    assert legacy.arguments == ("--inline", "--process", "--no-broadcast", "--option=tracking=true")
    product = target(Setup(workers=3, slots=2, device="sim:8"))
    assert (product.workers, product.slots, product.device) == (3, 2, "sim:8")
