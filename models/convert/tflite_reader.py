"""Reads a TensorFlow Lite file into plain records: operators in order, constants as arrays.

Only what the two face models hold is understood; anything else is refused by name, so that a new source file
cannot be converted wrongly in silence.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tflite

_NAMES = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}
_WINDOWED = {
    "CONV_2D": tflite.Conv2DOptions,
    "DEPTHWISE_CONV_2D": tflite.DepthwiseConv2DOptions,
    "MAX_POOL_2D": tflite.Pool2DOptions,
}
_PLAIN = ("PRELU", "RELU", "ADD", "PAD", "RESHAPE", "CONCATENATION", "DEQUANTIZE")
_DTYPES = {
    tflite.TensorType.FLOAT32: np.float32,
    tflite.TensorType.FLOAT16: np.float16,
    tflite.TensorType.INT32: np.int32,
}


@dataclass(frozen=True)
class Operator:
    """One operator: the ids of its tensors and, where a window slides, its stride and the size of a pool."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stride: int = 1
    pool: int = 0


@dataclass
class Graph:
    """A TFLite graph. `shapes` are N×H×W×C with N = 1; filters are O×H×W×I, depthwise filters 1×H×W×C."""

    operators: list[Operator] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[int, np.ndarray] = field(default_factory=dict)

    def readers(self, tensor: int) -> list[Operator]:
        """The operators that read a tensor."""
        return [operator for operator in self.operators if tensor in operator.inputs]


def read(data: bytes) -> Graph:
    """The first (and only) subgraph of a file. Raises ValueError for an operator that is not understood."""
    model = tflite.Model.GetRootAs(data, 0)
    source = model.Subgraphs(0)
    graph = Graph()
    for index in range(source.TensorsLength()):
        _read_tensor(model, source.Tensors(index), index, graph)
    for index in range(source.OperatorsLength()):
        operator = _read_operator(model, source.Operators(index))
        if operator.kind == "DEQUANTIZE":  # half-precision weights: the same numbers, wider
            graph.constants[operator.outputs[0]] = graph.constants[operator.inputs[0]].astype(np.float32)
        else:
            graph.operators.append(operator)
    return graph


def _read_tensor(model: Any, tensor: Any, index: int, graph: Graph) -> None:
    graph.shapes[index] = tuple(tensor.ShapeAsNumpy().tolist()) if tensor.ShapeLength() else ()
    buffer = model.Buffers(tensor.Buffer())
    if buffer.DataLength():
        values = buffer.DataAsNumpy().view(_DTYPES[tensor.Type()])
        graph.constants[index] = values.reshape(graph.shapes[index])


def _read_operator(model: Any, source: Any) -> Operator:
    code = model.OperatorCodes(source.OpcodeIndex())
    kind = _NAMES[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
    inputs, outputs = tuple(source.InputsAsNumpy().tolist()), tuple(source.OutputsAsNumpy().tolist())
    if kind in _PLAIN:
        return Operator(kind, inputs, outputs)
    if kind not in _WINDOWED:
        raise ValueError(f"the TFLite operator {kind} is not understood")
    options = _WINDOWED[kind]()
    options.Init(source.BuiltinOptions().Bytes, source.BuiltinOptions().Pos)
    if options.StrideH() != options.StrideW() or options.FusedActivationFunction():
        raise ValueError(f"{kind} with unequal strides or a fused activation is not understood")
    pool = options.FilterHeight() if kind == "MAX_POOL_2D" else 0
    return Operator(kind, inputs, outputs, options.StrideH(), pool)
