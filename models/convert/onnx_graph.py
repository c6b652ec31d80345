"""Writes an ONNX graph node by node, with names that depend on the order alone: the same calls give the same bytes."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class GraphBuilder:
    """Collects nodes and constants; equal constants are kept once."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self._counts: Counter[str] = Counter()

    def emit(self, op: str, inputs: list[str], *, output: str | None = None, **attributes: Any) -> str:
        """Add one node and return the name of its output."""
        name = output or self._name(op.lower())
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """The name of an initializer that holds `values`."""
        array = np.ascontiguousarray(np.asarray(values, dtype))
        for name, known in self.constants.items():
            if known.dtype == array.dtype and np.array_equal(known, array):
                return name
        name = self._name("constant")
        self.constants[name] = array
        return name

    def shape(self, *sizes: int) -> str:
        """A constant for Reshape: 0 keeps the input's size, -1 is whatever is left."""
        return self.constant(sizes, np.int64)

    def model(self, image_size: int, outputs: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
        """The checked model: uint8 `image` [N, size, size, 3] to float32 outputs, each [N, *shape]."""
        image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", image_size, image_size, 3])
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *s]) for name, s in outputs.items()]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "framelane", [image], infos, weights)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="framelane")
        onnx.checker.check_model(model, full_check=True)
        return model

    def _name(self, hint: str) -> str:
        self._counts[hint] += 1
        return f"{hint}_{self._counts[hint]}"
