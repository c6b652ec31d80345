"""The bench against a real server, in its shortest form."""

import json

import pytest
from click.testing import CliRunner

from framelane.loadtests import bench
from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.legacy.agreement import compare
from framelane.loadtests.stage import Effort, Stage, server_cpu_ms


@pytest.fixture
def stage(tmp_path):
    clip = moving_face(frames=6)
    effort = Effort(seconds=0.3, clients=2, patience=0, serve=("--workers=1", "--active-slots=1"))
    return Stage(tmp_path, FrameFile(clip.fps, list(clip.frames)), effort, lambda text: None)


def test_window_over_a_server_and_one_over_the_bare_loop(stage):
    with stage.server({"tracking": False}) as server:
        served = stage.load_window(server)
        assert server.start_seconds > 0
    bare = stage.bare_window({"tracking": False}, processes=1)
    assert {"gateway", "worker", "slot", "generator"} <= set(served.use)
    assert (served.counts.dropped, served.counts.errors) == (0, 0)
    assert server_cpu_ms(served) > 0
    assert len(served.latencies) == served.counts.results
    assert bare.cpu_ms("bare") > 0


def test_tracked_landmarks_are_compared_with_the_plain_ones():
    found = compare(seeds=1, frames=20, fps=30.0, motion=1.0)
    assert found["frames"] == 20
    assert found["tracked_percent"] > 50
    assert 0 < found["mean_error_percent"] < 2


def test_bench_without_what_it_measures_says_so_and_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("framelane.loadtests.bench_calls._MODULE", "framelane.loadtests.no_such_module")
    output = tmp_path / "folder" / "bench.json"
    done = CliRunner().invoke(bench.main, ["--only", "calls", "-o", str(output)])
    assert "not measured" in done.output
    assert done.exit_code == 1
    record = json.loads(output.read_text())
    assert record["complete"] is True
    assert record["machine"]["cores"] >= 1
    assert record["sections"]["calls"]["figures"][0]["verdict"] == ""


def test_figures_of_all_sections_can_be_asked_before_anything_was_measured():
    for make in bench.SECTIONS.values():
        section = make()
        assert {figure.row()[-1] for figure in section.figures()} <= {"not measured"}
        json.dumps(section.details())
