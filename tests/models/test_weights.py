"""The models that ship: the files are what their toml says, and compute what their TensorFlow Lite originals compute.

The originals' answers are recorded in `tests/data/face_models.npz` by `models/convert/build.py`, which runs them.
"""

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from framelane.models.registry import BUILTIN_DIRECTORY, Registry

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

DATA = Path(__file__).resolve().parents[1] / "data"
NAMES = ("blazeface_short", "face_landmark")
RECORDED = np.load(DATA / "face_models.npz")

# What runs in the blocked layout of ONNX Runtime's CPU convolutions, and the ends of the graph. One PRelu or Pad
# among them costs more than the convolution beside it (models/convert/EVIDENCE.md).
FAST_OPERATORS = {"Cast", "Sub", "Reshape", "Conv", "Relu", "Add", "MaxPool", "Concat", "Transpose"}


def astronaut() -> np.ndarray:
    """The test picture, uint8 [512, 512, 3], RGB."""
    return np.ascontiguousarray(cv2.imread(str(DATA / "astronaut.png"))[:, :, ::-1])


def crops(name: str) -> np.ndarray:
    """The pictures whose answers are recorded, uint8 [N, side, side, 3]: (top, left, step, 1 for the negative) each."""
    picture, side = astronaut(), Registry().get(name).inputs[0].shape[0]
    cuts = []
    for top, left, step, negative in RECORDED[f"{name}.crops"]:
        cut = picture[top : top + side * step : step, left : left + side * step : step]
        cuts.append(255 - cut if negative else cut)
    return np.stack(cuts)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def sessions() -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return {spec.name: onnxruntime.InferenceSession(spec.path, options, providers=providers) for spec in Registry()}


def test_builtin_models_are_these(name: str) -> None:
    assert Registry().names() == NAMES
    assert Registry().get(name).licence == "Apache-2.0"


def test_toml_matches_the_onnx_file(name: str, sessions: dict[str, Any]) -> None:
    spec, session = Registry().get(name), sessions[name]
    types = {"uint8": "tensor(uint8)", "float32": "tensor(float)"}
    for tensors, found in ((spec.inputs, session.get_inputs()), (spec.outputs, session.get_outputs())):
        stated = [(tensor.name, types[tensor.dtype], ["N", *tensor.shape]) for tensor in tensors]
        assert stated == [(node.name, node.type, node.shape) for node in found]


def test_graph_holds_only_operators_that_run_fast(name: str) -> None:
    model = onnx.load(BUILTIN_DIRECTORY / name / "model.onnx")
    assert {node.op_type for node in model.graph.node} <= FAST_OPERATORS


def test_outputs_equal_those_of_the_original(name: str, sessions: dict[str, Any]) -> None:
    outputs = [tensor.name for tensor in Registry().get(name).outputs]
    for output, found in zip(outputs, sessions[name].run(outputs, {"image": crops(name)}), strict=True):
        expected = RECORDED[f"{name}.{output}"]
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("batch", [2, 3, 16])
def test_batch_equals_single_runs(name: str, batch: int, sessions: dict[str, Any]) -> None:
    images = np.resize(crops(name), (batch, *Registry().get(name).inputs[0].shape))
    together = sessions[name].run(None, {"image": images})
    for index, image in enumerate(images):
        for many, one in zip(together, sessions[name].run(None, {"image": image[None]}), strict=True):
            assert np.abs(many[index] - one[0]).max() <= 1e-4


def test_blazeface_finds_the_face(sessions: dict[str, Any]) -> None:
    image = cv2.resize(astronaut(), (128, 128), interpolation=cv2.INTER_AREA)
    scores, boxes = sessions["blazeface_short"].run(["scores", "boxes"], {"image": image[None]})
    best = int(scores[0].argmax())
    cells, per_cell, first = (16, 2, 0) if best < 512 else (8, 6, 512)
    row, column = divmod((best - first) // per_cell, cells)
    centre = (np.array([column, row]) + 0.5) / cells * 128 + boxes[0, best, :2]
    assert 1 / (1 + np.exp(-scores[0, best])) > 0.85
    np.testing.assert_allclose(centre * 4, (227, 129), atol=6)  # pixels of the 512 x 512 picture
    np.testing.assert_allclose(boxes[0, best, 2:4] * 4, 92, atol=8)


def test_landmarks_lie_on_the_face(sessions: dict[str, Any]) -> None:
    left, top, side = 227 - 72, 129 - 72, 144  # around that box, 1.5 times as wide; the head is upright enough
    image = cv2.resize(astronaut()[top : top + side, left : left + side], (192, 192), interpolation=cv2.INTER_LINEAR)
    landmarks, presence = sessions["face_landmark"].run(["landmarks", "presence"], {"image": image[None]})
    points = landmarks[0, :, :2] * side / 192 + (left, top)
    assert presence[0, 0] > 5
    np.testing.assert_allclose(points[1], (223, 129), atol=5)  # the tip of the nose
    np.testing.assert_allclose(points[[33, 263]], [(195, 100), (256, 104)], atol=5)  # the outer corners of the eyes


def test_no_face_has_no_presence(sessions: dict[str, Any]) -> None:
    grey = np.full((1, 192, 192, 3), 127, np.uint8)
    assert sessions["face_landmark"].run(["presence"], {"image": grey})[0] < 0
