"""The reference network: the same for everybody, of the size that it says, and generated when it is asked for."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from framelane.models import reference_network
from framelane.models.devices import parse_device
from framelane.models.errors import ModelError
from framelane.models.registry import Registry, load_model
from framelane.models.session import open_session


def convolutions(model: onnx.ModelProto) -> int:
    """FLOP of a graph's convolutions, by its own shapes."""
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    sizes = {
        value.name: value.type.tensor_type.shape.dim
        for value in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    return sum(
        2
        * int(np.prod(weights[node.input[1]]))
        * sizes[node.output[0]][2].dim_value
        * sizes[node.output[0]][3].dim_value
        for node in model.graph.node
        if node.op_type == "Conv"
    )


def test_a_small_one_is_a_valid_model_that_runs_and_batches_alike(tmp_path: Path) -> None:
    reference_network.generate(tmp_path / "reference", side=32, blocks=2)
    model = onnx.load(tmp_path / "reference" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert convolutions(model) == reference_network.flop(32, 2)
    session = open_session(load_model(tmp_path / "reference"), parse_device("cpu"))
    items = session.spare_items(3)
    for number, item in enumerate(items):
        item.inputs[0][:] = np.random.default_rng(number).integers(0, 255, item.inputs[0].shape)
    session.run(items)
    together = [item.outputs[0].copy() for item in items]
    for item, batched in zip(items, together, strict=True):
        session.run([item])
        np.testing.assert_allclose(item.outputs[0], batched, atol=1e-4, rtol=1e-4)
        assert 0.01 < np.abs(batched).max() < 100
    assert not np.allclose(together[0], together[1])


def test_the_whole_one_has_the_size_that_it_says() -> None:
    assert 115e9 < reference_network.flop() < 125e9


def test_it_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        reference_network.generate(tmp_path / name, side=32, blocks=1)
    assert (tmp_path / "one/model.onnx").read_bytes() == (tmp_path / "two/model.onnx").read_bytes()


def test_the_registry_generates_it_once_and_finds_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = Registry().get("reference")
    written = spec.path.stat().st_mtime_ns
    assert tmp_path in spec.path.parents
    assert spec.inputs[0].shape == (256, 256, 3)
    assert Registry().get("reference").path.stat().st_mtime_ns == written
    assert [path.name for path in spec.path.parent.parent.iterdir()] == ["reference"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot be written to .*file"):
        reference_network.ensure(tmp_path / "file")
