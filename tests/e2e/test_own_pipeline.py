"""Bring your own: one file with a class, one folder with an ONNX model, started from anywhere."""

from __future__ import annotations

import hashlib
import json
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
import simplejpeg
from e2e.clients import FLAVOURS, Client
from e2e.servers import serving
from onnx import TensorProto, helper

PIPELINE = '''
    from typing import ClassVar

    from framelane.models.images import letterbox
    from framelane.models.pipeline import Frame, Lane, Model, Pipeline, Result


    class MeanColour(Pipeline):
        """The mean red, green and blue of a frame, and how many frames of this client came before."""

        class Options(Pipeline.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
            unit: float = 1.0

        averager = Model("averager")

        async def run(self, frame: Frame, lane: Lane) -> Result:
            (mean,) = await self.averager(letterbox(frame.decode(), self.averager.input()))
            count = len(lane.state)
            lane.state = lane.state + b"x"
            return {"mean": mean / self.options.unit, "before": count}
'''

DESCRIPTION = """
    source = "a test"
    licence = "CC0-1.0"
    sha256 = "{sha256}"
    max_batch = 4

    [[inputs]]
    name = "image"
    dtype = "uint8"
    shape = [32, 32, 3]

    [[outputs]]
    name = "mean"
    dtype = "float32"
    shape = [3]
"""


def averager() -> bytes:
    """The mean over rows and columns, as an author's own tool might have exported it."""
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 32, 32, 3])
    mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", 3])
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2])
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels", "axes"], ["mean"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "averager", [image], [mean], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What an author has on disk."""
    folder = tmp_path / "my_models" / "averager"
    folder.mkdir(parents=True)
    data = averager()
    (folder / "model.onnx").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    (folder / "model.toml").write_text(textwrap.dedent(DESCRIPTION.format(sha256=sha256)))
    (tmp_path / "my_module.py").write_text(textwrap.dedent(PIPELINE))
    return tmp_path


async def test_a_pipeline_in_one_file_with_its_own_model(logs: Path, project: Path) -> None:
    picture = np.full((48, 48, 3), (200, 100, 50), np.uint8)
    frame = simplejpeg.encode_jpeg(picture, quality=100)
    options = ["--pipeline", "my_module:MeanColour", "--models", "my_models", "--option", "unit=2"]
    with serving(logs, *options, "--deadline-ms", "20000", "--device", "cpu", cwd=project) as server:
        for flavour in FLAVOURS:
            async with Client(server.port, flavour) as client:
                ready = await client.ready()
                assert ready["pipeline"] == "my_module:MeanColour"
                for seq in range(3):
                    fields = (await client.ask(seq, frame)).fields
                    mean = np.frombuffer(fields["mean"], "<f4")
                    assert np.abs(mean - (100, 50, 25)).max() < 2
                    assert fields["before"] == seq, "the lane's state belongs to one connection"
        status, body = server.request("POST", "/v1/infer", frame)
        assert status == 200
        assert np.abs(np.array(json.loads(body)["mean"]) - (100, 50, 25)).max() < 2
        assert list(server.status()["slots"][0]["models"]) == ["averager"]


async def test_the_worked_example_serves(logs: Path, astronaut: bytes) -> None:
    """The example that the documentation shows, started as it says."""
    folder = Path(__file__).parents[2] / "models" / "examples" / "models"
    options = ["--pipeline", "framelane.models.examples.sharpness:Sharpness", "--models", str(folder)]
    with serving(logs, *options, "--deadline-ms", "20000") as server:
        async with Client(server.port) as client:
            answer = await client.ask(0, astronaut)
    assert answer.name == "result"
    assert answer.fields["verdict"] == "good"
