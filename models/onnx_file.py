"""Writes an ONNX file without the ``onnx`` package: the few messages of its format that a plain network needs.

An ONNX file is a protocol buffer: fields are a number and a value, either a variable-length integer or bytes with their
length before them (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto has the numbers used here).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_TYPES = {"float32": 1, "uint8": 2, "int64": 7}
_INT, _INTS = 2, 7
_OPSET, _IR_VERSION = 17, 9


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int | Sequence[int]) -> bytes:
    """A node of the graph, with integer attributes."""
    parts = [_text(1, name) for name in inputs] + [_text(2, name) for name in outputs]
    parts += [_text(3, outputs[0]), _text(4, kind)]
    for name, value in attributes.items():
        numbers = [value] if isinstance(value, int) else list(value)
        field, what = (3, _INT) if isinstance(value, int) else (8, _INTS)
        parts.append(_bytes(5, _text(1, name) + b"".join(_int(field, number) for number in numbers) + _int(20, what)))
    return b"".join(parts)


def constant(name: str, values: npt.NDArray[Any]) -> bytes:
    """A named tensor: weights, or the arguments of a node."""
    dims = b"".join(_int(1, size) for size in values.shape)
    data = np.ascontiguousarray(values).tobytes()
    return dims + _int(2, _TYPES[values.dtype.name]) + _text(8, name) + _bytes(9, data)


def tensor(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """An input or output; the batch axis, which is free, is put in front of ``shape``."""
    sizes = [_bytes(1, _text(2, "N"))] + [_bytes(1, _int(1, size)) for size in shape]
    kind = _int(1, _TYPES[dtype]) + _bytes(2, b"".join(sizes))
    return _text(1, name) + _bytes(2, _bytes(1, kind))


def model(
    name: str, nodes: Iterable[bytes], inputs: Iterable[bytes], outputs: Iterable[bytes], constants: Iterable[bytes]
) -> bytes:
    """The whole file."""
    fields: Mapping[int, Iterable[bytes]] = {1: nodes, 5: constants, 11: inputs, 12: outputs}
    graph = _text(2, name) + b"".join(_bytes(field, part) for field, parts in fields.items() for part in parts)
    return _int(1, _IR_VERSION) + _text(2, "framelane") + _bytes(7, graph) + _bytes(8, _text(1, "") + _int(2, _OPSET))


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
