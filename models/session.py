"""Models on devices: the only module that imports ONNX Runtime.

A ``Session`` is one model on one device. It is checked against its ``model.toml`` when it is opened, and the device is
proven, not believed: ONNX Runtime silently falls back to the CPU where CUDA cannot be had. Cells of shared memory are
bound once (``bind``) and run many times: a run of one item on the CPU reads its input from the cell and writes its
outputs into it, without a copy; a larger batch is gathered into staging arrays and scattered back.

One thread calls a session, and ONNX Runtime uses one thread per session and never spins: parallelism comes from
processes, and spinning costs a whole core where several share it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .devices import Device, DeviceError
from .errors import FramelaneError, ModelError
from .registry import ModelSpec, TensorSpec

Array = npt.NDArray[Any]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
_ONNX_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
}
_WARM_UP_RUNS = 5
_WORTHWHILE = 0.9
"""A larger batch is best only when it takes at most this share of the time per item."""


class Bound(NamedTuple):
    """A cell that a session may run: its arrays (leading axis 1) and what the session prepared for them."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    prepared: Any


class Session(Protocol):
    """One model on one device."""

    spec: ModelSpec
    best_batch: int
    device: str

    def bind(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> Bound:
        """Prepare a cell, as arrays with a leading axis of 1, for any number of runs."""

    def run(self, items: Sequence[Bound]) -> None:
        """Run 1 … ``spec.max_batch`` cells at once and write their outputs.

        Raises:
            Exception: whatever the model's run raises; no output of the batch is then valid.
        """

    def warm_up(self) -> dict[int, float]:
        """Run every batch size before the first client does, and choose ``best_batch``; milliseconds by batch size."""


def open_session(spec: ModelSpec, device: Device) -> Session:
    """Open a model on a device.

    Raises:
        ModelError: the ONNX file and ``model.toml`` disagree; both sides are named.
        DeviceError: the device cannot be had; the message names the cure.
    """
    if device.simulation is not None:
        from .simulated import SimulatedSession

        return SimulatedSession(spec, device)
    if device.kind != "auto":
        return OnnxSession(spec, device)
    try:
        return OnnxSession(spec, Device("cuda", device.index, name=f"cuda:{device.index}"))
    except DeviceError:
        return OnnxSession(spec, Device("cpu", name="cpu"))


class OnnxSession:
    """A model in ONNX Runtime."""

    def __init__(self, spec: ModelSpec, device: Device) -> None:
        self.spec = spec
        self.best_batch = 1
        self.device = device.name
        self._ort = _onnxruntime()
        self._session = _open(self._ort, spec, device)
        _check(spec, self._session)
        self._staging: dict[int, Bound] = {}

    def bind(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> Bound:
        """See ``Session.bind``."""
        binding = self._session.io_binding()
        for spec, array in zip(self.spec.inputs, inputs, strict=True):
            binding.bind_cpu_input(spec.name, array)
        for spec, array in zip(self.spec.outputs, outputs, strict=True):
            binding.bind_output(spec.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return Bound(inputs, outputs, binding)

    def run(self, items: Sequence[Bound]) -> None:
        """See ``Session.run``."""
        if len(items) == 1:
            self._session.run_with_iobinding(items[0].prepared)
            return
        staged = self._stage(len(items))
        for index, item in enumerate(items):
            for staging, own in zip(staged.inputs, item.inputs, strict=True):
                staging[index] = own[0]
        self._session.run_with_iobinding(staged.prepared)
        for index, item in enumerate(items):
            for staging, own in zip(staged.outputs, item.outputs, strict=True):
                own[0] = staging[index]

    def warm_up(self) -> dict[int, float]:
        """See ``Session.warm_up``."""
        timings: dict[int, float] = {}
        batch = 1
        # Where neither of the last two doublings saved anything, larger batches would only fill the arena.
        while batch <= self.spec.max_batch and batch <= 4 * best_batch(timings):
            timings[batch] = self._time(batch)
            batch *= 2
        self.best_batch = best_batch(timings)
        return timings

    def _stage(self, count: int) -> Bound:
        if count not in self._staging:
            self._staging[count] = self.bind(_arrays(self.spec.inputs, count), _arrays(self.spec.outputs, count))
        return self._staging[count]

    def _time(self, batch: int) -> float:
        """Least milliseconds of a run with ``batch`` items, gathering and scattering included."""
        items = [self.bind(_arrays(self.spec.inputs, 1), _arrays(self.spec.outputs, 1)) for _ in range(batch)]
        times = []
        for _ in range(_WARM_UP_RUNS):
            start = time.perf_counter()
            self.run(items)
            times.append((time.perf_counter() - start) * 1000)
        return min(times)


def best_batch(timings: dict[int, float]) -> int:
    """The batch size to gather up to, from milliseconds by size: larger only where it clearly saves time per item."""
    best, per_item = 1, timings.get(1, 0.0)
    for batch, milliseconds in sorted(timings.items()):
        if milliseconds / batch <= per_item * _WORTHWHILE:
            best, per_item = batch, milliseconds / batch
    return best


def _arrays(specs: Sequence[TensorSpec], count: int) -> tuple[Array, ...]:
    return tuple(np.zeros((count, *spec.shape), dtype=spec.dtype) for spec in specs)


def _onnxruntime() -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise FramelaneError(
            f"ONNX Runtime is not installed ({error}): install framelane[cpu], or framelane[gpu] where there is CUDA",
            code="no_onnxruntime",
        ) from error
    return onnxruntime


def _open(ort: Any, spec: ModelSpec, device: Device) -> Any:
    provider = _PROVIDERS[device.kind]
    if provider not in ort.get_available_providers():
        raise DeviceError(
            f"device {device.name}: this build of ONNX Runtime has no {provider} (it has "
            f"{', '.join(ort.get_available_providers())}); install framelane[gpu], and uninstall onnxruntime first: "
            "the CPU and GPU wheels overwrite each other"
        )
    try:
        session = ort.InferenceSession(
            str(spec.path), _session_options(ort), providers=[(provider, _provider_options(device))]
        )
    except Exception as error:
        raise ModelError(f"model {spec.name} ({spec.path}) cannot be opened on {device.name}: {error}") from error
    used = session.get_providers()[0]
    if used != provider:  # available providers and get_device() lie here; this list does not
        raise DeviceError(
            f"device {device.name} was asked for, but ONNX Runtime chose {used}: there is no working CUDA device "
            f"{device.index}, or its driver or libraries are missing (nvidia-smi tells the driver; framelane[gpu] "
            "brings the libraries)"
        )
    return session


def _session_options(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False  # it keeps an arena for every batch size: 30 MB more per slot, and no faster
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return options


def _provider_options(device: Device) -> dict[str, str]:
    """Options of the CUDA provider, each with its reason; the CPU has none."""
    if device.kind == "cpu":
        return {}
    options = {"device_id": str(device.index)}
    if device.kind == "cuda":
        options |= {
            "cudnn_conv_algo_search": "HEURISTIC",  # EXHAUSTIVE costs hundreds of ms for every new shape
            "arena_extend_strategy": "kSameAsRequested",  # doubling wastes memory that further slots need
            "do_copy_in_default_stream": "1",  # copies ordered with the run, no extra synchronisation
        }
    return options


def _check(spec: ModelSpec, session: Any) -> None:
    """Refuse a model whose ONNX file is not what its ``model.toml`` says."""
    for side, declared, found in (
        ("input", spec.inputs, session.get_inputs()),
        ("output", spec.outputs, session.get_outputs()),
    ):
        ours = [(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in declared]
        theirs = [(tensor.name, _dtype(tensor.type), tuple(tensor.shape[1:])) for tensor in found]
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


def _dtype(onnx_type: str) -> str:
    return _ONNX_TYPES.get(onnx_type, onnx_type.removeprefix("tensor(").removesuffix(")"))


def _text(tensors: Sequence[tuple[str, str, tuple[Any, ...]]]) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in tensors)
