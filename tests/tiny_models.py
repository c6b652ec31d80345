"""Models of a few bytes whose answers are known, written as a user would: a folder with model.onnx and model.toml."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
_NAMES = {FLOAT: "float32", UINT8: "uint8", TensorProto.INT64: "int64"}

Tensor = tuple[str, int, Sequence[int | str]]
"""Name, ONNX type, shape with its batch axis."""


def write_model(
    directory: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    constants: Sequence[onnx.TensorProto] = (),
    *,
    max_batch: int = 8,
    toml: str = "",
) -> Path:
    """Write DIRECTORY/NAME; ``toml`` replaces the tables that would be true."""
    graph = helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        list(constants),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = directory / name
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    digest = hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()
    head = f'source = "a test"\nlicence = "Apache-2.0"\nsha256 = "{digest}"\nmax_batch = {max_batch}\n'
    true = "".join(map(_table, ["inputs"] * len(inputs) + ["outputs"] * len(outputs), (*inputs, *outputs)))
    (folder / "model.toml").write_text(head + (toml or true))
    return folder


def _table(side: str, tensor: Tensor) -> str:
    name, kind, shape = tensor
    return f'[[{side}]]\nname = "{name}"\ndtype = "{_NAMES[kind]}"\nshape = {list(shape[1:])}\n'


def write_double(directory: Path, *, batch: int | str = "N", size: int = 4, max_batch: int = 8, toml: str = "") -> Path:
    """``y = 2 x`` for float32 x of ``size`` numbers."""
    two = helper.make_tensor("two", FLOAT, [1], [2.0])
    return write_model(
        directory,
        "double",
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        [("x", FLOAT, [batch, size])],
        [("y", FLOAT, [batch, size])],
        [two],
        max_batch=max_batch,
        toml=toml,
    )


def write_sum(directory: Path) -> Path:
    """Two inputs: ``total = left + right`` for float32 [3], and ``difference = left - right``."""
    return write_model(
        directory,
        "sum",
        [
            helper.make_node("Add", ["left", "right"], ["total"]),
            helper.make_node("Sub", ["left", "right"], ["difference"]),
        ],
        [("left", FLOAT, ["N", 3]), ("right", FLOAT, ["N", 3])],
        [("total", FLOAT, ["N", 3]), ("difference", FLOAT, ["N", 3])],
    )


def write_picky(directory: Path) -> Path:
    """``y = 3 x`` for one uint8 x below 200; a larger x makes the run raise (an index beyond a table)."""
    table = helper.make_tensor("table", FLOAT, [200], [3.0 * number for number in range(200)])
    return write_model(
        directory,
        "picky",
        [
            helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "index"], ["y"], axis=0),
        ],
        [("x", UINT8, ["N", 1])],
        [("y", FLOAT, ["N", 1])],
        [table],
    )
