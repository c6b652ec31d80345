"""Whether an ONNX file has the inputs and outputs that its ``model.toml`` states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import ModelError
from .registry import ModelSpec

_ONNX_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
}


def check_signature(spec: ModelSpec, session: Any) -> None:
    """Refuse a model whose ONNX file is not what its ``model.toml`` says.

    Raises:
        ModelError: naming both sides.
    """
    for side, declared, found in (
        ("input", spec.inputs, session.get_inputs()),
        ("output", spec.outputs, session.get_outputs()),
    ):
        ours = [(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in declared]
        theirs = [(tensor.name, dtype_name(tensor.type), tuple(tensor.shape[1:])) for tensor in found]
        if len(ours) != len(theirs) or not all(map(_fits, ours, theirs)):
            raise ModelError(
                f"model {spec.name}: model.toml says {side}s {_text(ours)}, but {spec.path.name} has {_text(theirs)} "
                "(shapes without the batch axis)"
            )
    for tensor in (*session.get_inputs(), *session.get_outputs()):
        if not tensor.shape:
            raise ModelError(f"model {spec.name}: {tensor.name} has no batch axis in {spec.path.name}")
        if isinstance(tensor.shape[0], int) and (spec.max_batch > 1 or tensor.shape[0] != 1):
            raise ModelError(
                f"model {spec.name}: model.toml says max_batch {spec.max_batch}, but {spec.path.name} fixes the batch "
                f"axis of {tensor.name} at {tensor.shape[0]}; make it dynamic, or fix it at 1 and say max_batch = 1"
            )


def _fits(ours: tuple[str, str, tuple[Any, ...]], theirs: tuple[str, str, tuple[Any, ...]]) -> bool:
    """Names and dtypes are equal, and so is every dimension that the ONNX file fixes."""
    same_rank = len(ours[2]) == len(theirs[2])
    return (
        ours[:2] == theirs[:2]
        and same_rank
        and all(not isinstance(there, int) or here == there for here, there in zip(ours[2], theirs[2], strict=True))
    )


def dtype_name(onnx_type: str) -> str:
    return _ONNX_TYPES.get(onnx_type, onnx_type.removeprefix("tensor(").removesuffix(")"))


def _text(tensors: Sequence[tuple[str, str, tuple[Any, ...]]]) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in tensors)
