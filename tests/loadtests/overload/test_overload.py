"""The harness as a whole, in its shortest form, against both servers."""

import importlib.util
import json
import time

import msgspec
import pytest
from click.testing import CliRunner

from framelane.loadtests import prove
from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.overload import __main__ as overload
from framelane.loadtests.overload.lab import Effort, Lab
from framelane.loadtests.overload.scenarios.restart import peak_per_second
from framelane.loadtests.overload.targets import Target, roomy


@pytest.fixture
def lab(tmp_path):
    clip = moving_face(frames=6)
    target = Target(device="sim:1", slots=1, workers=1)

    def wait(what, until):
        time.sleep(max(0.0, until - time.monotonic()))

    return Lab(tmp_path, FrameFile(clip.fps, list(clip.frames)), target, Effort(seconds=0.5, clients=3), print, wait)


@pytest.mark.parametrize("name", ["product", "legacy"])
def test_run_against_a_server_gives_answers_books_and_use(lab, name):
    target = msgspec.structs.replace(roomy(lab.target, 3), name=name)
    if name == "legacy":
        target = msgspec.structs.replace(target, arguments=("--no-broadcast",))
    with lab.server(target) as server:
        run = lab.run(server, lab.orders(server, 10.0, lab.effort.seconds), tolerant=True)
    assert run.wrong == []
    assert run.summary().results > 0
    assert run.recorded.totals.received_bytes > 0
    assert {"generator", *(("gateway", "worker", "slot") if name == "product" else ("legacy",))} <= set(run.cores)
    json.dumps(run.record())


def test_capacity_of_a_simulated_device_is_known():
    assert Target(slots=2).capacity == 250
    assert Target(slots=2, pipeline="face_mesh").capacity == 125
    assert Target(device="cpu").capacity is None


def test_figures_of_all_scenarios_can_be_asked_before_anything_was_measured():
    for make in overload.SCENARIOS.values():
        scenario = make()
        assert {figure.row()[-1] for figure in scenario.figures()} <= {"not measured", ""}
        json.dumps(scenario.details())


def test_help_names_every_scenario():
    text = CliRunner().invoke(overload.main, ["--help"]).output
    assert all(f"  {name}" in text for name in overload.SCENARIOS)


def test_curve_is_drawn_with_both_servers(tmp_path):
    age = {"p50": 10.0, "p99": 20.0}
    points = [{"load": load, "goodput": 100.0, "delivery": 0.9, "age": age} for load in (0.5, 1.0)]
    paths = overload.plot({"product": points, "legacy": points}, 125.0, "a title", tmp_path)
    assert [path.name for path in paths] == ["curve.png", "curve.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_peak_per_second_counts_any_second():
    assert peak_per_second([0.0, 0.9, 1.1, 1.8, 5.0]) == 3
    assert peak_per_second([]) == 0


def test_every_harness_of_make_prove_is_there():
    for harness in prove.HARNESSES.values():
        assert importlib.util.find_spec(f"framelane.loadtests.{harness.module}")
