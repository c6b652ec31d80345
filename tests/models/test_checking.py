"""``framelane models check``: what it finds out about models whose faults are known, and what it writes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from tiny_models import FLOAT, UINT8, write_double, write_model

from framelane.models.check_command import main
from framelane.models.checking import check_model, model_toml, relative_error, slow_operators
from framelane.models.devices import parse_device
from framelane.models.errors import ModelError
from framelane.models.registry import Registry, load_model
from framelane.models.session import open_session


def write_centred(directory: Path) -> Path:
    """``y = x - mean of the batch``: an item's answer depends on its neighbours."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    return write_model(directory, "centred", nodes, [("x", FLOAT, ["N", 4])], [("y", FLOAT, ["N", 4])])


def write_slow(directory: Path) -> Path:
    """A PRelu with a slope per channel, over an image."""
    slope = numpy_helper.from_array(np.full((8, 1, 1), 0.1, np.float32), "slope")
    shape: list[int | str] = ["N", 8, 64, 64]
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    return write_model(directory, "slow", [node], [("x", FLOAT, shape)], [("y", FLOAT, shape)], [slope])


def write_open(directory: Path) -> Path:
    """``y = number of values above 0`` of an image of any size, by NonZero."""
    nodes = [
        helper.make_node("Cast", ["image"], ["y"], to=FLOAT),
        helper.make_node("NonZero", ["image"], ["places"]),
    ]
    shape: list[int | str] = ["N", "H", "W"]
    return write_model(
        directory, "open", nodes, [("image", UINT8, shape)], [("y", FLOAT, shape)], toml='[[inputs]]\nname = "x"\n'
    )


def test_the_bundled_models_are_described_as_their_own_toml_does() -> None:
    spec = Registry([]).get("blazeface_short")
    report = check_model(spec.path, max_batch=4)
    assert report.dynamic
    assert set(report.run_ms) == {1, 2, 4}
    assert report.spec.max_batch == 4
    assert report.unsafe == ""
    assert report.nodes == {"CPUExecutionProvider": sum(report.nodes.values())}
    assert [(t.name, t.dtype, t.shape) for t in report.spec.outputs] == [
        (t.name, t.dtype, t.shape) for t in spec.outputs
    ]


def test_the_report_for_programs_tells_memory_and_leaves_no_file(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(Registry([]).get("blazeface_short").path.read_bytes())
    command = [sys.executable, "-m", "framelane.models.check_command", str(model), "--max-batch", "2", "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert 1 << 20 < report["memory"] < 1 << 28
    assert set(report["run_ms"]) == {"1", "2"}
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_toml_that_is_written_opens_the_model(tmp_path: Path) -> None:
    folder = write_double(tmp_path)
    (folder / "model.toml").write_text(model_toml(check_model(folder / "model.onnx", max_batch=8).spec))
    spec = load_model(folder)
    assert spec.max_batch == 8
    assert open_session(spec, parse_device("cpu")).warm_up()


def test_a_model_whose_items_are_not_independent_is_safe_alone_only(tmp_path: Path) -> None:
    report = check_model(write_centred(tmp_path) / "model.onnx")
    assert report.spec.max_batch == 1
    assert "a batch of 2 differs from single runs by" in report.unsafe


def test_a_slow_operator_is_named_with_its_cure(tmp_path: Path) -> None:
    (slow,) = check_model(write_slow(tmp_path) / "model.onnx", max_batch=1).slow
    assert (slow.name, slow.nodes) == ("PRelu", 1)
    assert slow.share > 0.5
    assert "depthwise" in slow.cure


def test_an_operator_without_a_cure_is_named_from_a_tenth_on() -> None:
    def event(op: str, node: str, dur: int) -> dict[str, object]:
        return {"cat": "Node", "name": f"{node}_kernel_time", "dur": dur, "args": {"op_name": op}}

    events = [event("Conv", "c1", 40), event("Conv", "c2", 50), event("Add", "a", 8), event("PRelu", "p", 2)]
    assert [(op.name, op.nodes, op.share) for op in slow_operators(events, "cpu")] == [
        ("Conv", 2, 0.9),
        ("PRelu", 1, 0.02),
    ]
    assert [op.name for op in slow_operators(events, "cuda")] == ["Conv"]


def test_a_fixed_batch_axis_is_told_and_another_than_one_refused(tmp_path: Path) -> None:
    assert not check_model(write_double(tmp_path / "one", batch=1) / "model.onnx").dynamic
    with pytest.raises(ModelError, match="batch axis of x is fixed at 4; make it free"):
        check_model(write_double(tmp_path / "four", batch=4) / "model.onnx")


def test_open_sizes_are_asked_for_and_taken(tmp_path: Path) -> None:
    path = write_open(tmp_path) / "model.onnx"
    with pytest.raises(ModelError, match="input image leaves H×W open; say which: --shape image="):
        check_model(path)
    report = check_model(path, shapes={"image": (3, 5)}, max_batch=2)
    assert report.spec.inputs[0].range == (0.0, 255.0)
    assert report.spec.outputs[0].shape == (3, 5)
    assert report.breaks_graphs == ["NonZero"]
    with pytest.raises(ModelError, match="has no tensor picture; it has image, y"):
        check_model(path, shapes={"picture": (3, 5)})


def test_half_precision_is_written_and_its_error_measured(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(Registry([]).get("blazeface_short").path.read_bytes())
    report = check_model(path, max_batch=1, fp16=True)
    assert report.fp16_error is not None
    assert 0 < report.fp16_error < 1e-2
    assert path.with_name("model.fp16.onnx").stat().st_size < 0.7 * path.stat().st_size


def test_an_error_is_a_share_of_the_largest_value() -> None:
    assert relative_error(np.array([100.0, 1.0]), np.array([101.0, 1.0])) == pytest.approx(1 / 101)
    assert relative_error(np.array([0.1]), np.array([0.2])) == pytest.approx(0.1)


def test_the_command_leaves_a_toml_alone_unless_told(tmp_path: Path) -> None:
    folder = write_double(tmp_path, toml="# mine\n")
    model, toml = str(folder / "model.onnx"), folder / "model.toml"
    before = toml.read_text()
    done = CliRunner().invoke(main, [model, "--max-batch", "2"])
    assert done.exit_code == 0, done.output
    assert "batches of" in done.output
    assert toml.read_text() == before
    assert CliRunner().invoke(main, [model, "--max-batch", "2", "--force"]).exit_code == 0
    assert "max_batch = 2" in toml.read_text()


@pytest.mark.parametrize(
    "arguments", [["--shape", "x"], ["--shape", "x=a,b"], ["--device", "cuda:9"], ["--device", "auto"]]
)
def test_the_command_says_what_it_cannot_do(tmp_path: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(main, [str(write_double(tmp_path) / "model.onnx"), *arguments])
    assert done.exit_code == 3
    assert done.output.startswith("framelane: ")
