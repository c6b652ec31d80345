"""Turns the TFLite graph of a face model into an ONNX graph of the same function that ONNX Runtime runs fast.

ONNX Runtime's CPU convolutions work on channels in blocks of 8 or 16 (its "NCHWc" layout). Nodes that know only the
plain layout make it convert back and forth around them, which costs more than the node. So the graph that ships
holds nothing but convolutions, Add, Relu, MaxPool and Concat between its ends:

- **PRelu** becomes y + (1 - s) * Relu(-y): two depthwise 1x1 convolutions, the first with the Relu fused into it, the
  second with the sum. It holds for slopes of any sign and above 1, which both occur.
- **Channels** are padded with zero weights to a multiple of 16, since blocks are computed whole anyway. A padded
  channel stays exactly zero through every operator here, so the function is the same.
- **A residual with fewer channels than its sum** (TFLite pads it with zeros) needs no Pad: the convolution is split
  by its output channels into those that have a residual and those that have none, and a Concat joins them.
- **The first convolution** reads the picture as it lies in memory: one "channel" of H rows and 3W columns, a window
  three times as wide that moves three times as far. So N×H×W×3 needs no transpose. The scale lies in its weights.
  An offset cannot (the border is padded with zeros *after* scaling), so it is one Sub.

The `Variant` says which of these are done; the plain one is the baseline of EVIDENCE.md.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnx_graph import GraphBuilder
from tflite_reader import Graph, Operator


@dataclass(frozen=True)
class Variant:
    """How to write the graph. `channels_multiple` 1 keeps the channels of the original."""

    prelu: str = "relu_sum"  # or relu_add, two_depthwise, node
    residual: str = "split"  # or pad
    stem: str = "window"  # or transpose
    channels_multiple: int = 16


PLAIN = Variant(prelu="node", residual="pad", stem="transpose", channels_multiple=1)


@dataclass(frozen=True)
class Source:
    """What a TFLite file does not state: its input scaling x * scale - offset * scale, and the meaning of its outputs.

    `outputs` maps the ONNX name to the id of the TFLite tensor and the shape per item.
    """

    scale: float
    offset: float
    outputs: dict[str, tuple[int, tuple[int, ...]]]


@dataclass
class Value:
    """A tensor of the ONNX graph: side × side, in one or more parts by channel. `widths` count padded channels."""

    names: list[str]
    widths: list[int]
    side: int

    @property
    def width(self) -> int:
        return sum(self.widths)


def convert(graph: Graph, source: Source, variant: Variant) -> onnx.ModelProto:
    """The ONNX model: uint8 `image` [N, H, W, 3] RGB to the outputs that `source` names, float32, any N."""
    return _Converter(graph, source, variant).convert()


class _Converter:
    def __init__(self, graph: Graph, source: Source, variant: Variant) -> None:
        self.graph, self.source, self.variant = graph, source, variant
        self.out = GraphBuilder()
        self.values: dict[int, Value] = {}
        # Written when they are read: a convolution, since the Add behind it may split it; a Pad, since an Add may do
        # without it.
        self.pending: dict[int, Operator] = {}
        self.padded: dict[int, int] = {}

    def convert(self) -> onnx.ModelProto:
        self._stem(self.graph.operators[0])
        for operator in self.graph.operators[1:]:
            getattr(self, f"_{operator.kind.lower()}")(operator)
        for name, (tensor, shape) in self.source.outputs.items():
            self.out.emit("Reshape", [self._name(tensor), self.out.shape(0, *shape)], output=name)
        side = self.graph.shapes[self.graph.operators[0].inputs[0]][1]
        return self.out.model(side, {name: shape for name, (_, shape) in self.source.outputs.items()})

    # Tensors

    def _value(self, tensor: int) -> Value:
        if tensor in self.pending:
            self.values[tensor] = self._convolution(self.pending.pop(tensor))
        return self.values[tensor]

    def _name(self, tensor: int) -> str:
        """The tensor's one name; parts are joined the first time it is asked for."""
        value = self._value(tensor)
        if len(value.names) > 1:
            value.names, value.widths = [self.out.emit("Concat", value.names, axis=1)], [value.width]
        return value.names[0]

    def _side(self, tensor: int) -> int:
        return self.graph.shapes[tensor][1]

    def _padded_width(self, channels: int) -> int:
        multiple = self.variant.channels_multiple
        return -(-channels // multiple) * multiple

    def _same_pads(self, operator: Operator, kernel: int) -> tuple[int, int]:
        """Zeros before and after, as TensorFlow's SAME puts them: the odd one after. None where the window fits."""
        before, after = self._side(operator.inputs[0]), self._side(operator.outputs[0])
        total = max((after - 1) * operator.stride + kernel - before, 0)
        return total // 2, total - total // 2

    # Operators

    def _stem(self, operator: Operator) -> None:
        weights = self.graph.constants[operator.inputs[1]] * np.float32(self.source.scale)  # O×H×W×3
        outputs, kernel = len(weights), weights.shape[1]
        width, side = self._padded_width(outputs), self._side(operator.inputs[0])
        low, high = self._same_pads(operator, kernel)
        image = self.out.emit("Cast", ["image"], to=TensorProto.FLOAT)
        if self.source.offset:
            image = self.out.emit("Sub", [image, self.out.constant(self.source.offset)])
        if self.variant.stem == "window":
            image = self.out.emit("Reshape", [image, self.out.shape(0, 1, side, 3 * side)])
            weights = weights.reshape(outputs, 1, kernel, 3 * kernel)
            strides, pads = [operator.stride, 3 * operator.stride], [low, 3 * low, high, 3 * high]
        else:
            image = self.out.emit("Transpose", [image], perm=[0, 3, 1, 2])
            weights = weights.transpose(0, 3, 1, 2)
            strides, pads = [operator.stride] * 2, [low, low, high, high]
        bias = self.graph.constants[operator.inputs[2]]
        name = self._conv(image, _pad_first(weights, width), _pad_first(bias, width), strides=strides, pads=pads)
        self.values[operator.outputs[0]] = Value([name], [width], self._side(operator.outputs[0]))

    def _conv_2d(self, operator: Operator) -> None:
        self.pending[operator.outputs[0]] = operator

    def _convolution(self, operator: Operator, width: int = 0, rows: slice = slice(None)) -> Value:
        """A convolution of `width` output channels (0: as padded), or only those in `rows`. No border padding."""
        value, name = self._value(operator.inputs[0]), self._name(operator.inputs[0])
        weights = self.graph.constants[operator.inputs[1]].transpose(0, 3, 1, 2)
        weights = np.pad(weights, [(0, 0), (0, value.width - weights.shape[1]), (0, 0), (0, 0)])
        width = width or (len(weights) if self._is_last(operator) else self._padded_width(len(weights)))
        weights = _pad_first(weights, width)[rows]
        bias = _pad_first(self.graph.constants[operator.inputs[2]], width)[rows]
        conv = self._conv(name, weights, bias, strides=[operator.stride] * 2)
        return Value([conv], [len(weights)], self._side(operator.outputs[0]))

    def _is_last(self, operator: Operator) -> bool:
        """Whether only outputs follow: their channels are what a reader sees, so they are not padded."""
        return all(reader.kind == "RESHAPE" for reader in self.graph.readers(operator.outputs[0]))

    def _depthwise_conv_2d(self, operator: Operator) -> None:
        value, name = self._value(operator.inputs[0]), self._name(operator.inputs[0])
        weights = self.graph.constants[operator.inputs[1]][0].transpose(2, 0, 1)[:, None]  # to C×1×H×W
        low, high = self._same_pads(operator, weights.shape[2])
        weights = _pad_first(weights, value.width)
        bias = _pad_first(self.graph.constants[operator.inputs[2]], value.width)
        strides, pads = [operator.stride] * 2, [low, low, high, high]
        conv = self._conv(name, weights, bias, group=value.width, strides=strides, pads=pads)
        self.values[operator.outputs[0]] = Value([conv], [value.width], self._side(operator.outputs[0]))

    def _max_pool_2d(self, operator: Operator) -> None:
        name, window = self._name(operator.inputs[0]), [operator.pool] * 2
        pool = self.out.emit("MaxPool", [name], kernel_shape=window, strides=[operator.stride] * 2)
        width = self._value(operator.inputs[0]).width
        self.values[operator.outputs[0]] = Value([pool], [width], self._side(operator.outputs[0]))

    def _pad(self, operator: Operator) -> None:
        """Zero channels behind a residual (the only padding in these files)."""
        self.padded[operator.outputs[0]] = operator.inputs[0]

    def _add(self, operator: Operator) -> None:
        """The end of a residual block: a pending convolution plus what went into the block."""
        residual, convolution = sorted(operator.inputs, key=self.pending.__contains__)
        residual = self.padded.get(residual, residual)
        value, name = self._value(residual), self._name(residual)
        source = self.pending.pop(convolution)
        width = self._padded_width(self.graph.shapes[operator.outputs[0]][3])
        if value.width < width and self.variant.residual == "pad":
            pads = self.out.shape(0, 0, 0, 0, 0, width - value.width, 0, 0)
            name = self.out.emit("Pad", [name, pads])
            value = Value([name], [width], value.side)
        result = self._convolution(source, width, slice(0, value.width))
        names = [self.out.emit("Add", [name, result.names[0]])]
        widths = [value.width]
        if value.width < width:
            rest = self._convolution(source, width, slice(value.width, width))
            names, widths = names + rest.names, widths + rest.widths
        self.values[operator.outputs[0]] = Value(names, widths, value.side)

    def _relu(self, operator: Operator) -> None:
        # Part by part: each Relu is fused into its own convolution, ahead of the Concat.
        value = self._value(operator.inputs[0])
        names = [self.out.emit("Relu", [name]) for name in value.names]
        self.values[operator.outputs[0]] = Value(names, value.widths, value.side)

    def _prelu(self, operator: Operator) -> None:
        name, value = self._name(operator.inputs[0]), self._value(operator.inputs[0])
        slopes = _pad_first(self.graph.constants[operator.inputs[1]].reshape(-1), value.width)
        result = getattr(self, f"_prelu_{self.variant.prelu}")(name, slopes)
        self.values[operator.outputs[0]] = Value([result], [value.width], value.side)

    def _prelu_relu_sum(self, y: str, slopes: np.ndarray) -> str:
        """y + (1 - s) * Relu(-y)."""
        below = self.out.emit("Relu", [self._scale(y, -np.ones_like(slopes))])
        return self.out.emit("Add", [y, self._scale(below, 1 - slopes)])

    def _prelu_relu_add(self, y: str, slopes: np.ndarray) -> str:
        """y + Relu((s - 1) * y), which holds for slopes up to 1; a plain Add instead of a convolution with a sum."""
        if (slopes > 1).any():
            return self._prelu_relu_sum(y, slopes)
        return self.out.emit("Add", [y, self.out.emit("Relu", [self._scale(y, slopes - 1)])])

    def _prelu_two_depthwise(self, y: str, slopes: np.ndarray) -> str:
        """(1 - s) * Relu(y) + s * y."""
        above = self._scale(self.out.emit("Relu", [y]), 1 - slopes)
        return self.out.emit("Add", [above, self._scale(y, slopes)])

    def _prelu_node(self, y: str, slopes: np.ndarray) -> str:
        return self.out.emit("PRelu", [y, self.out.constant(slopes.reshape(-1, 1, 1))])

    def _scale(self, name: str, factors: np.ndarray) -> str:
        """Every channel times its own factor, as the depthwise convolution that keeps the blocked layout."""
        return self._conv(name, factors.reshape(-1, 1, 1, 1), np.zeros(len(factors)), group=len(factors))

    def _reshape(self, operator: Operator) -> None:
        """A head, N×C×H×W, to rows of an anchor each: N×(H·W·anchors)×values."""
        values = self.graph.shapes[operator.outputs[0]][-1]
        rows = self.out.emit("Transpose", [self._name(operator.inputs[0])], perm=[0, 2, 3, 1])
        result = self.out.emit("Reshape", [rows, self.out.shape(0, -1, values)])
        self.values[operator.outputs[0]] = Value([result], [values], 1)

    def _concatenation(self, operator: Operator) -> None:
        names = [self._name(tensor) for tensor in operator.inputs]
        result = self.out.emit("Concat", names, axis=1)
        self.values[operator.outputs[0]] = Value([result], [self._value(operator.inputs[0]).width], 1)

    def _conv(self, name: str, weights: np.ndarray, bias: np.ndarray, **attributes: object) -> str:
        inputs = [name, self.out.constant(weights), self.out.constant(bias)]
        return self.out.emit("Conv", inputs, kernel_shape=list(weights.shape[2:]), **attributes)


def _pad_first(array: np.ndarray, size: int) -> np.ndarray:
    """Zeros behind the first axis, up to `size`."""
    return np.pad(array, [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1))
