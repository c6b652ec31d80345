"""``framelane models check``: what a model of one's own needs to be served well, measured where it will run.

It opens the file as a slot would, and tells: inputs and outputs; whether batches work, how fast each size is, and
whether a batch gives what single runs give; which operators a card would leave to the CPU or could not record in a CUDA
graph; which operators take the time, with a cure where one is known; memory. From that comes a ``model.toml``.
"""

from __future__ import annotations

import hashlib
import json
import resource
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from . import runtime
from .cuda import CudaError, free_memory
from .devices import Device, DeviceError
from .errors import FramelaneError, ModelError
from .providers import PROVIDERS, Tuning, buckets
from .registry import DTYPE_BYTES, ModelSpec, TensorSpec
from .session import OnnxSession, best_batch, sample
from .signature import dtype_name

TOLERANCE = 1e-4
"""How far a batch's results may be from those of single runs, relative and absolute."""
_SLOW_SHARE = 0.1
_PROFILED_RUNS = 5
_CPU = Device("cpu", name="cpu")
_UNKNOWN = "not known: fill in"

CURES: Mapping[tuple[str, str], str] = {
    ("PRelu", "cpu"): (
        "slow on the CPU, and it breaks the blocked layout of its neighbours: write it as (1 − s)·Relu(x) + s·x, two "
        "depthwise 1×1 convolutions and an Add (3.5 × faster for the bundled landmark model; models/convert does it)"
    ),
    (
        "NonMaxSuppression",
        "cuda",
    ): "waits for the card once per class: leave it out of the graph, and do it in the pipeline",
    ("NonMaxSuppression", "tensorrt"): "splits the graph: leave it out, and do it in the pipeline",
}
BREAKS_GRAPHS = frozenset({"If", "Loop", "Scan", "NonZero", "NonMaxSuppression", "Unique", "Compress", "SequenceAt"})
"""Operators whose control flow or output shapes the CPU has to know: no CUDA graph can hold them."""


class SlowOp(msgspec.Struct, frozen=True):
    """An operator that takes much of the time: its share (0 … 1), how many nodes, and what helps, if that is known."""

    name: str
    nodes: int
    share: float
    cure: str = ""


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found out.

    Attributes:
        spec: as ``model.toml`` will say it; its ``max_batch`` is the largest batch that is safe.
        device: where it was measured; ``nodes`` are its nodes by provider.
        dynamic: whether the batch axis is free.
        best: the batch size that slots would gather up to.
        run_ms: milliseconds of a run by batch size.
        unsafe: why a larger batch is not safe; empty where the largest that was tried is.
        on_cpu: operators that fell to the CPU (on a card).
        breaks_graphs: operators that no CUDA graph can hold.
        slow: the operators that take most of the time.
        memory: bytes that opening and running it took; on a card the card's.
        fp16_error: largest error of ``model.fp16.onnx``, relative to the largest value of each output; None: not made.
    """

    spec: ModelSpec
    device: str
    dynamic: bool
    nodes: dict[str, int]
    best: int
    run_ms: dict[int, float]
    unsafe: str
    on_cpu: dict[str, int]
    breaks_graphs: list[str]
    slow: list[SlowOp]
    memory: int
    fp16_error: float | None = None


def check_model(
    path: Path,
    device: Device = _CPU,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    max_batch: int = 16,
    fp16: bool = False,
    tuning: Tuning | None = None,
) -> ModelReport:
    """Open, run and measure a model.

    Args:
        path: the ONNX file.
        device: where.
        shapes: shape of one item, by tensor, for those that the file leaves open.
        max_batch: largest batch to try.
        fp16: also write ``model.fp16.onnx`` beside the file, and measure its error.
        tuning: how, on a card.

    Raises:
        ModelError: the file cannot be used; the message says what to change.
        DeviceError: the device cannot be had.
    """
    if device.kind not in PROVIDERS:
        raise DeviceError(f"device {device.name}: a model is measured on one real device: cpu, cuda:N or tensorrt:N")
    ort = runtime.load()
    before = _memory(device)
    spec, dynamic, operators = _describe(ort, path, shapes or {}, max_batch)
    session = OnnxSession(spec, device, tuning)
    run_ms, unsafe = _measure(session)
    memory = _memory(device) - before
    safe = max(run_ms)
    spec = msgspec.structs.replace(spec, max_batch=safe)
    facts = session.facts()
    session.close()
    return ModelReport(
        spec=spec,
        device=session.device,
        dynamic=dynamic,
        nodes=facts["nodes"],
        best=best_batch(run_ms),
        run_ms=run_ms,
        unsafe=unsafe,
        on_cpu=facts.get("on_cpu", {}),
        breaks_graphs=sorted(operators & BREAKS_GRAPHS),
        slow=_slow_operators(ort, spec, device, tuning),
        memory=max(0, memory),
        fp16_error=_half(spec, device, tuning) if fp16 else None,
    )


def model_toml(spec: ModelSpec) -> str:
    """The text of a ``model.toml``; where the weights come from is left to its author."""
    lines = [f'source = "{spec.source}"', f'licence = "{spec.licence}"', f'sha256 = "{spec.sha256}"']
    lines += [f"max_batch = {spec.max_batch}"]
    for side, tensors in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        for tensor in tensors:
            lines += ["", f"[[{side}]]", f"name = {json.dumps(tensor.name)}", f'dtype = "{tensor.dtype}"']
            lines += [f"shape = {list(tensor.shape)}"]
            if tensor.range is not None:
                lines += [f"range = [{tensor.range[0]:g}, {tensor.range[1]:g}]"]
    return "\n".join(lines) + "\n"


def _describe(
    ort: Any, path: Path, shapes: Mapping[str, tuple[int, ...]], max_batch: int
) -> tuple[ModelSpec, bool, set[str]]:
    """Inputs and outputs as the file has them, whether its batch axis is free, and all its operators."""
    options = runtime.session_options(ort)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        plain = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise ModelError(f"{path} is no model that ONNX Runtime {ort.__version__} can open: {error}") from error
    inputs, outputs = plain.get_inputs(), plain.get_outputs()
    if unknown := set(shapes) - {tensor.name for tensor in (*inputs, *outputs)}:
        names = ", ".join(tensor.name for tensor in (*inputs, *outputs))
        raise ModelError(f"{path} has no tensor {', '.join(sorted(unknown))}; it has {names}")
    dynamic = not any(isinstance(tensor.shape[0], int) for tensor in (*inputs, *outputs) if tensor.shape)
    operators = {node.op_type for part in plain.get_provider_graph_assignment_info() for node in part.get_nodes()}
    spec = ModelSpec(
        name=path.parent.name if path.stem == "model" else path.stem,
        path=path,
        source=_UNKNOWN,
        licence=_UNKNOWN,
        sha256=digest,
        inputs=tuple(_tensor(path, tensor, shapes, side="input") for tensor in inputs),
        outputs=tuple(_tensor(path, tensor, shapes, side="output") for tensor in outputs),
        max_batch=max_batch if dynamic else 1,
    )
    return _with_run_shapes(plain, spec) if dynamic or not shapes else spec, dynamic, operators


def _tensor(path: Path, tensor: Any, shapes: Mapping[str, tuple[int, ...]], side: str) -> TensorSpec:
    dtype = dtype_name(tensor.type)
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"{path}: {side} {tensor.name} is {dtype}; the dtypes are {', '.join(DTYPE_BYTES)}")
    if not tensor.shape:
        raise ModelError(f"{path}: {side} {tensor.name} has no batch axis; give it one in front")
    if isinstance(tensor.shape[0], int) and tensor.shape[0] != 1:
        raise ModelError(
            f"{path}: the batch axis of {tensor.name} is fixed at {tensor.shape[0]}; make it free (in PyTorch: "
            "dynamic_axes or dynamic_shapes of the export), or fix it at 1"
        )
    item = shapes.get(tensor.name, tuple(tensor.shape[1:]))
    if side == "input" and not all(isinstance(size, int) for size in item):
        open_sizes = "×".join(map(str, item))
        raise ModelError(
            f"{path}: input {tensor.name} leaves {open_sizes} open; say which: --shape {tensor.name}=HEIGHT,WIDTH,3"
        )
    known = tuple(size if isinstance(size, int) else 0 for size in item)
    return TensorSpec(tensor.name, dtype, known, (0.0, 255.0) if dtype == "uint8" and side == "input" else None)


def _with_run_shapes(plain: Any, spec: ModelSpec) -> ModelSpec:
    """Shapes of outputs that the file leaves open, from a run of one item."""
    if all(all(tensor.shape) for tensor in spec.outputs):
        return spec
    answers = plain.run(None, {tensor.name: np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.inputs})
    outputs = tuple(
        TensorSpec(tensor.name, tensor.dtype, tuple(answer.shape[1:]))
        for tensor, answer in zip(spec.outputs, answers, strict=True)
    )
    return msgspec.structs.replace(spec, outputs=outputs)


def _measure(session: OnnxSession) -> tuple[dict[int, float], str]:
    """Milliseconds by batch size, up to the largest that gives what single runs give; and what is wrong beyond."""
    run_ms: dict[int, float] = {}
    for size in buckets(session.spec.max_batch):
        try:
            run_ms[size] = session.time(size)
            error = _batch_error(session, size)
        except FramelaneError:
            raise
        except Exception as failure:
            run_ms.pop(size, None)
            if size == 1:
                raise ModelError(f"{session.spec.path} cannot be run: {failure}") from failure
            return run_ms, f"a batch of {size} fails: {str(failure).strip().splitlines()[0]}"
        if error > TOLERANCE:
            del run_ms[size]
            return run_ms, f"a batch of {size} differs from single runs by {error:.1e}: its items are not independent"
    return run_ms, ""


def _batch_error(session: OnnxSession, size: int) -> float:
    """Largest difference between a batch and the same items one by one, as a share of each output's largest value."""
    random = np.random.default_rng(size)
    items = session.spare_items(size)
    for item in items:
        for tensor, array in zip(session.spec.inputs, item.inputs, strict=True):
            array[0] = sample(random, tensor)
    session.run(items)
    together = [[array.copy() for array in item.outputs] for item in items]
    worst = 0.0
    for item, batched in zip(items, together, strict=True):
        session.run([item])
        worst = max(worst, *map(relative_error, batched, item.outputs))
    return worst


def relative_error(one: Any, other: Any) -> float:
    """Largest difference, as a share of the largest value of ``other`` (of 1 where that is smaller)."""
    if not other.size:
        return 0.0
    scale = max(1.0, float(np.abs(other.astype(np.float64)).max()))
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()) / scale


def _slow_operators(ort: Any, spec: ModelSpec, device: Device, tuning: Tuning | None) -> list[SlowOp]:
    """The operators that ONNX Runtime's own profile gives most of the time; a card's times are those of launching."""
    opened = runtime.open_model(ort, spec, device, tuning or Tuning(), runs=_PROFILED_RUNS)
    return slow_operators(opened.kernels, device.kind)


def slow_operators(kernels: list[dict[str, Any]], kind: str) -> list[SlowOp]:
    """Operators that take a tenth of a profile's time; those with a known cure from a hundredth on."""
    times: Counter[str] = Counter()
    nodes: dict[str, set[str]] = {}
    for event in kernels:
        name = event["args"]["op_name"]
        times[name] += event["dur"]
        nodes.setdefault(name, set()).add(event["name"])
    total = sum(times.values()) or 1
    found = [SlowOp(n, len(nodes[n]), time / total, CURES.get((n, kind), "")) for n, time in times.most_common()]
    return [op for op in found if op.share > (_SLOW_SHARE / 10 if op.cure else _SLOW_SHARE)]


def _half(spec: ModelSpec, device: Device, tuning: Tuning | None) -> float:
    """Write ``model.fp16.onnx`` with the same inputs and outputs, and compare it with the original."""
    runtime.write_half(spec.path, spec.path.with_name("model.fp16.onnx"))
    half_spec = msgspec.structs.replace(spec, path=spec.path.with_name("model.fp16.onnx"))
    whole, half = OnnxSession(spec, device, tuning), OnnxSession(half_spec, device, tuning)
    random = np.random.default_rng(16)
    worst = 0.0
    for _ in range(_PROFILED_RUNS):
        (one,), (other,) = whole.spare_items(1), half.spare_items(1)
        for tensor, mine, theirs in zip(spec.inputs, one.inputs, other.inputs, strict=True):
            mine[0] = theirs[0] = sample(random, tensor)
        whole.run([one])
        half.run([other])
        worst = max(worst, *map(relative_error, other.outputs, one.outputs))
    return worst


def _memory(device: Device) -> int:
    """Bytes in use, from wherever they are counted: of the card, or of this process."""
    if device.kind == "cpu":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    try:
        return -free_memory(device.index)
    except CudaError:
        return 0  # opening the model says better what is wrong
