"""Writes the model of ``models/examples/sharpness.py``, which is arithmetic and was never trained.

python models/convert/sharpness.py          needs onnx; the same bytes every time

grey       = 0.299 R + 0.587 G + 0.114 B            (ITU-R BT.601)
Laplacian  = [0 1 0; 1 -4 1; 0 1 0], inside only
sharpness  = variance of the Laplacian; brightness = mean of grey; contrast = standard deviation of grey
"""

import hashlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "models" / "sharpness"
SIDE = 256

TOML = """\
source = "Written by hand: models/convert/sharpness.py"
licence = "Apache-2.0"
sha256 = "{sha256}"
max_batch = 16
notes = "Grey picture, its Laplacian, and their statistics; see models/examples/sharpness.py."

[[inputs]]
name = "image"
dtype = "uint8"
shape = [{side}, {side}, 3]
range = [0, 255]

[[outputs]]
name = "sharpness"
dtype = "float32"
shape = []

[[outputs]]
name = "brightness"
dtype = "float32"
shape = []

[[outputs]]
name = "contrast"
dtype = "float32"
shape = []
"""


def graph() -> onnx.ModelProto:
    """uint8 [N, 256, 256, 3] → three float32 [N]."""
    weights = {
        "luma": np.array([[0.299], [0.587], [0.114]], np.float32),
        "grey_shape": np.array([0, 1, SIDE, SIDE]),
        "laplacian": np.array([[[[0, 1, 0], [1, -4, 1], [0, 1, 0]]]], np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["image"], ["rgb"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["rgb", "luma"], ["luma_last"]),
        helper.make_node("Reshape", ["luma_last", "grey_shape"], ["grey"]),
        helper.make_node("Conv", ["grey", "laplacian"], ["edges"]),
        *_mean_and_variance("grey", "brightness", "grey_variance"),
        *_mean_and_variance("edges", "edges_mean", "sharpness"),
        helper.make_node("Sqrt", ["grey_variance"], ["contrast"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", SIDE, SIDE, 3])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"])
        for name in ("sharpness", "brightness", "contrast")
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    body = helper.make_graph(nodes, "sharpness", [image], outputs, constants)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "framelane"
    onnx.checker.check_model(model, full_check=True)
    return model


def _mean_and_variance(source: str, mean: str, variance: str) -> list[onnx.NodeProto]:
    """Over all pixels; the variance as the mean square of the distance, which cannot become negative."""
    centred, squared, kept = f"{source}_centred", f"{source}_squared", f"{source}_mean_kept"
    axes = [1, 2, 3]
    return [
        helper.make_node("ReduceMean", [source], [mean], axes=axes, keepdims=0),
        helper.make_node("ReduceMean", [source], [kept], axes=axes, keepdims=1),
        helper.make_node("Sub", [source, kept], [centred]),
        helper.make_node("Mul", [centred, centred], [squared]),
        helper.make_node("ReduceMean", [squared], [variance], axes=axes, keepdims=0),
    ]


def main() -> None:
    """Write ``model.onnx`` and ``model.toml``."""
    data = graph().SerializeToString(deterministic=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "model.onnx").write_bytes(data)
    (FOLDER / "model.toml").write_text(TOML.format(sha256=hashlib.sha256(data).hexdigest(), side=SIDE))


if __name__ == "__main__":
    main()
