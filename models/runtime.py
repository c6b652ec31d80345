"""ONNX Runtime: found, opened, and proven to run where it was asked to. The only module that imports it.

ONNX Runtime silently falls back to the CPU where a card cannot be had, and its lists of providers go on saying CUDA.
So a session is asked which provider it has, its first run is profiled to see on which one each node ran, and what is
missing is found out by ``gpu.explain``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import json
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from . import gpu
from .cuda import DriverFacts, read_driver
from .devices import Device, DeviceError
from .errors import FramelaneError, ModelError
from .providers import PROVIDERS, Tuning, engine_key, providers
from .registry import ModelSpec
from .signature import check_signature

_SHOWN = 5
_ONLY_FATAL = 4
NO_GRAPH = ("gpu_graph_id", "-1")
"""Entry of a run's options: launch kernel by kernel, whatever the session has recorded."""
_TENSORRT = ("libnvinfer.so.10", "libnvonnxparser.so.10")
_TENSORRT_WHEEL = "tensorrt_libs"


class Opened(msgspec.Struct, frozen=True):
    """An ONNX Runtime session and what is known of it.

    Attributes:
        nodes: by provider, as they were given out when it was opened; ``on_cpu``: the operators that fell to the CPU.
        kernels: events of ONNX Runtime's own profile of the first runs, one per node and run.
    """

    session: Any
    nodes: dict[str, int]
    on_cpu: dict[str, int]
    kernels: list[dict[str, Any]]

    @property
    def ran(self) -> dict[str, int]:
        """How many nodes ran on which provider, as those runs show it."""
        return dict(Counter(provider for _, provider in {(k["name"], k["args"]["provider"]) for k in self.kernels}))

    @property
    def fallen(self) -> str:
        """The operators that fell to the CPU, for a person; empty when there are none."""
        names = [f"{name} × {count}" if count > 1 else name for name, count in self.on_cpu.items()]
        return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def load() -> Any:
    """ONNX Runtime's module, with the CUDA libraries that came as wheels loaded first: it does not find them alone.

    Raises:
        FramelaneError: it is not installed; the message says what to install.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise FramelaneError(
            f"ONNX Runtime is not installed ({error}): install framelane[cpu], or framelane[gpu] where there is CUDA",
            code="no_onnxruntime",
        ) from error
    onnxruntime.set_default_logger_severity(_ONLY_FATAL)  # its errors are raised as well; pages of red tell no cure
    if getattr(onnxruntime, "cuda_version", ""):
        with contextlib.redirect_stdout(io.StringIO()):  # what it cannot load it prints; `gpu.explain` tells it better
            onnxruntime.preload_dlls()
    return onnxruntime


def load_tensorrt() -> None:
    """TensorRT's libraries, where they came as wheels: ONNX Runtime's ``preload_dlls`` leaves them out."""
    found = importlib.util.find_spec(_TENSORRT_WHEEL)
    for folder in (found and found.submodule_search_locations) or ():
        for library in _TENSORRT:
            with contextlib.suppress(OSError):  # what is missing is told by `gpu.explain`
                ctypes.CDLL(str(Path(folder, library)))


def _versions(ort: Any, driver: DriverFacts) -> str:
    """All that a TensorRT engine depends on beside model and card, as one word; the libraries that are truly loaded."""
    tensorrt = ""
    with contextlib.suppress(OSError, AttributeError):
        tensorrt = str(ctypes.CDLL(_TENSORRT[0]).getInferLibVersion())
    release = driver.release or ".".join(map(str, ("cuda", *driver.version)))
    return f"ort{ort.__version__}-trt{tensorrt}-driver{release}"


def open_model(ort: Any, spec: ModelSpec, device: Device, tuning: Tuning, runs: int = 1) -> Opened:
    """Open a model on a device, and prove by a run that it is the one that was asked for.

    Args:
        ort: from ``load``.
        spec, device, tuning: what, where and how; the device is not "auto".
        runs: of one item of zeros, which are profiled; after them the session profiles no more.

    Raises:
        ModelError: the file and ``model.toml`` disagree, or it cannot be opened, or not be run there.
        DeviceError: the device cannot be had; the message names the cure.
    """
    provider = PROVIDERS[device.kind]
    if device.kind == "tensorrt":
        load_tensorrt()
    if provider not in ort.get_available_providers():
        raise _refused(device, "")
    path = str(model_file(spec, device, tuning))
    chosen = providers(device, tuning, spec, _engine_key(ort, spec, device, tuning))
    with tempfile.TemporaryDirectory(prefix="framelane-") as folder:
        options = session_options(ort, profile=str(Path(folder, "profile")))
        with _explained(spec, device, "opened"):
            session = ort.InferenceSession(path, options, providers=chosen, enable_fallback=0)
        used = session.get_providers()[0]
        if used != provider:  # available providers and get_device() lie here; this list does not
            raise _refused(device, used)
        check_signature(spec, session)
        with _explained(spec, device, "run"):
            opened = Opened(session, *_assigned(session), _profiled(ort, session, spec, runs))
    if provider not in opened.ran:
        raise DeviceError(f"device {device.name}: not one node of model {spec.name} ran there ({opened.fallen})")
    return opened


@contextlib.contextmanager
def _explained(spec: ModelSpec, device: Device, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if device.kind != "cpu" and (why := gpu.explain(gpu.read_gpu_facts(), device.kind, device.index, str(error))):
            raise DeviceError(f"device {device.name}: {why}") from error
        raise ModelError(f"model {spec.name} ({spec.path}) cannot be {what} on {device.name}: {error}") from error


def _profiled(ort: Any, session: Any, spec: ModelSpec, runs: int) -> list[dict[str, Any]]:
    """Run, and see in ONNX Runtime's own profile which provider each node ran on."""
    options = ort.RunOptions()
    options.add_run_config_entry(*NO_GRAPH)  # a replayed graph has no nodes, and shapes of its own
    feed = {tensor.name: np.zeros((1, *tensor.shape), tensor.dtype) for tensor in spec.inputs}
    for _ in range(runs):
        session.run(None, feed, options)
    events = json.loads(Path(session.end_profiling()).read_text())
    return [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]


def model_file(spec: ModelSpec, device: Device, tuning: Tuning) -> Path:
    """The ONNX file to open: with fp16 on CUDA the half-precision one beside ``model.onnx``.

    Raises:
        ModelError: it is not there; the message says how to make it.
    """
    if tuning.precision != "fp16" or device.kind != "cuda":
        return spec.path
    half = spec.path.with_name("model.fp16.onnx")
    if not half.exists():
        raise ModelError(
            f"model {spec.name}: fp16 on CUDA needs {half}; make it with `framelane models check {spec.path} --fp16`, "
            "which measures its error too"
        )
    return half


def write_half(path: Path, target: Path) -> None:
    """Convert a model's weights and inner tensors to 16 bits, and keep the types of its inputs and outputs.

    Raises:
        ModelError: what converts it is not installed; the message says what to install.
    """
    try:
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16
    except ImportError as error:
        raise ModelError(f"converting to fp16 needs {error.name}: pip install onnx") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one per constant that 16 bits cannot hold; the error is measured afterwards
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), target)


def session_options(ort: Any, profile: str = "") -> Any:
    """Options of a session: one thread that never spins, since several processes share the cores."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False  # it keeps an arena for every batch size: 30 MB more per slot, and no faster
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = _ONLY_FATAL
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return options


def _assigned(session: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Which provider got how many nodes, as the session recorded it, and the operators that the CPU got."""
    nodes: Counter[str] = Counter()
    on_cpu: Counter[str] = Counter()
    for part in session.get_provider_graph_assignment_info():
        names = [node.op_type for node in part.get_nodes()]
        nodes[part.ep_name] += len(names)
        if part.ep_name == PROVIDERS["cpu"]:
            on_cpu.update(names)
    return dict(nodes), dict(on_cpu.most_common())


def _refused(device: Device, used: str) -> DeviceError:
    """Why ONNX Runtime has not given us the device."""
    why = gpu.explain(gpu.read_gpu_facts(), device.kind, device.index)
    if not why:
        why = "the driver or its libraries refuse it; run `framelane doctor` and see nvidia-smi"
    chose = f" was asked for, but ONNX Runtime chose {used}" if used else ""
    return DeviceError(f"device {device.name}{chose}: {why}")


def _engine_key(ort: Any, spec: ModelSpec, device: Device, tuning: Tuning) -> str:
    if device.kind != "tensorrt" or not tuning.cache:
        return ""
    driver = read_driver()
    card = driver.cards[device.index] if device.index < len(driver.cards) else None
    name, capability = (card.name, card.capability) if card else ("unknown", "0")
    key = engine_key(spec, name, capability, _versions(ort, driver))
    Path(tuning.cache, key).mkdir(parents=True, exist_ok=True)
    return key
