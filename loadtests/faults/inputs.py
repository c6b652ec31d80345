"""Inputs that a model cannot stand, in batches with those of honest clients: only their own frames may fail."""

from __future__ import annotations

import asyncio
import hashlib
import math
from pathlib import Path
from typing import Any

from .hostile import HELD, Hostility, attack
from .lab import Lab, until
from .load import Load
from .pictures import plain
from .report import Report, at_least, at_most

_MODULE = "pipeline_with_a_fragile_model"
_PIPELINE = """
import numpy as np

from framelane.models.pipeline import Model, Pipeline


class Fragile(Pipeline):
    stateful = False
    model = Model("fragile")

    async def run(self, frame, lane):
        width, height, _ = frame.size
        (root,) = await self.model(np.array([width % 256], np.uint8))
        return {"width": width, "root": float(root[0])}
"""
# Python imports it in every process of the server; in slots it makes one input what a fault of a native library is.
_SITECUSTOMIZE = """
import os, signal, sys

if any("slots.process" in argument for argument in sys.orig_argv):
    from framelane.models.session import OnnxSession

    def run(self, items, really=OnnxSession.run):
        if any(item.inputs[0].flat[0] == 255 for item in items):
            os.kill(os.getpid(), signal.SIGKILL)
        really(self, items)

    OnnxSession.run = run
"""
_HONEST = (64, 72, 80, 88)
_TABLE, _ROOTS = 200, 150
_FAULTS = (
    Hostility("the model raises", 201, "model fragile failed"),
    Hostility("the model returns NaN", 170, "model fragile returned NaN"),
    Hostility("the model kills its slot", 255, HELD, fatal=True),
)
_FIXED = 400
"""Rows of a matrix that every run squares, whatever its batch: milliseconds in which the next batch gathers."""


async def bad_inputs(lab: Lab) -> Report:
    """Inputs on which a model raises, returns NaN or kills its process, in batches with others: only they fail."""
    (lab.folder / f"{_MODULE}.py").write_text(_PIPELINE)
    (lab.folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    await asyncio.to_thread(_write_model, lab.folder / "models" / "fragile")
    slots = ("--active-slots", "1", "--standby-slots", "1", "--workers", "2")
    options = ("--pipeline", f"{_MODULE}:Fragile", "--models", str(lab.folder / "models"), "--device", "cpu", *slots)
    async with lab.serving(*options, search=lab.folder) as target:
        batch = min(entry["models"]["fragile"]["best_batch"] for entry in target.status()["slots"])
        figures = [at_least("inputs of a batch", batch, 2)]
        for fault in _FAULTS:
            pictures = [plain(128, width, 48) for width in _HONEST]
            honest = Load(target.port, pictures, clients=20, fps=5.0, right=_is_right)
            figures += await attack(lab, target, fault, honest)
            failed = sum(fate.outcome == "failed" for fate in honest.fates)
            figures.append(at_most("frames of the honest that failed with it", failed, 0))
            await until(lambda: target.pids_of("slots", "standby"), "a standby is there again", 60)
        left = await asyncio.to_thread(target.end)
    return Report(fault="bad-inputs", figures=tuple(figures), leftovers=left)


def _is_right(client: int, fields: dict[str, Any]) -> bool:
    width = _HONEST[client % len(_HONEST)]
    return fields["width"] == width and math.isclose(fields["root"], math.sqrt(_ROOTS - width), rel_tol=1e-5)


def _write_model(folder: Path) -> None:
    """``root = sqrt(150 - x)``, looked up in a table of 200 that has NaN from 151 on; beyond it, the run raises."""
    from onnx import TensorProto, helper

    roots = [math.sqrt(_ROOTS - x) if x <= _ROOTS else math.nan for x in range(_TABLE)]
    nodes = [
        helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["found"]),
        helper.make_node("Cast", ["x"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["number"], ["mean"], keepdims=0),
        helper.make_node("Expand", ["mean", "size"], ["matrix"]),
        helper.make_node("MatMul", ["matrix", "matrix"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["work"], keepdims=0),
        helper.make_node("Mul", ["work", "zero"], ["nothing"]),
        helper.make_node("Add", ["found", "nothing"], ["root"]),
    ]
    constants = [
        helper.make_tensor("table", TensorProto.FLOAT, [_TABLE], roots),
        helper.make_tensor("size", TensorProto.INT64, [2], [_FIXED, _FIXED]),
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, ["N", 1])]
    outputs = [helper.make_tensor_value_info("root", TensorProto.FLOAT, ["N", 1])]
    graph = helper.make_graph(nodes, "fragile", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data = model.SerializeToString()
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(data)
    (folder / "model.toml").write_text(_TOML.format(hashlib.sha256(data).hexdigest()))


_TOML = """
source = "written by the fault harness"
licence = "Apache-2.0"
sha256 = "{}"
max_batch = 8
[[inputs]]
name = "x"
dtype = "uint8"
shape = [1]
[[outputs]]
name = "root"
dtype = "float32"
shape = [1]
"""
