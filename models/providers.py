"""How each of ONNX Runtime's providers is set up: its options, each with its reason; batch buckets; memory budgets.

No I/O and no ONNX Runtime here: what is decided are plain dictionaries, tested as such. Names and values of the options
were read off the libraries of onnxruntime-gpu 1.31.1; none of them was measured on a card yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from .devices import Device, DeviceError
from .registry import ModelSpec

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

CONTEXT_BYTES = 512 * 2**20
"""What a process takes of a card before any model: its CUDA context, the libraries' kernels and handles."""
MIN_ARENA_BYTES = 128 * 2**20
"""Below this a model's arena is of no use."""
MPS_CLIENTS = 60
"""Processes that MPS serves on one card."""
_KEEP_FREE = 0.05
_TENSORRT_WORKSPACE = 2**30

Options = dict[str, str]


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose about sessions on a card; the CPU takes no notice of it.

    Attributes:
        memory: most bytes of one session's arena; 0 is no bound. ``arena_budget`` computes it.
        nhwc: channels last, which tensor cores like; the provider converts the graph when it is opened.
        conv_search: how cuDNN chooses its algorithms. "exhaustive" measures each, hundreds of ms for every new shape.
        graphs: record each batch size as a CUDA graph and replay it: saves the launches of many small kernels.
        precision: "tf32" multiplies with 10 bits of mantissa on tensor cores: about twice as fast as "fp32", with a
            relative error near 1e-3. "fp16" takes ``model.fp16.onnx`` (CUDA), or lets TensorRT choose 16 bits.
        cache: folder for TensorRT's engines and timings; empty: none are kept.
    """

    memory: int = 0
    nhwc: bool = False
    conv_search: Literal["heuristic", "exhaustive", "default"] = "heuristic"
    graphs: bool = False
    precision: Literal["tf32", "fp32", "fp16"] = "tf32"
    cache: str = ""


def buckets(max_batch: int) -> tuple[int, ...]:
    """Batch sizes that a card runs: 1, 2, 4 … up to ``max_batch``, which is one even if it is no power of two.

    Every other size is run as the next larger bucket: a new shape costs a search for algorithms, and a CUDA graph has
    one shape.
    """
    sizes = [1]
    while sizes[-1] * 2 < max_batch:
        sizes.append(sizes[-1] * 2)
    return (*sizes, max_batch) if max_batch > 1 else (1,)


def bucket_table(max_batch: int) -> tuple[int, ...]:
    """The bucket for each number of items, from 0 to ``max_batch``: the smallest that holds them."""
    sizes = buckets(max_batch)
    return tuple(next(size for size in sizes if size >= count) for count in range(max_batch + 1))


def arena_budget(card_bytes: int, processes: int, models: int) -> int:
    """Bytes for the arena of each session, so that all processes of a card fit on it at their largest.

    ``gpu_mem_limit`` bounds one session's arena, and a process has one per model and a context besides.

    Raises:
        DeviceError: they do not fit; the message says how many would.
    """
    usable = int(card_bytes * (1 - _KEEP_FREE))
    budget = (usable // processes - CONTEXT_BYTES) // models
    if budget < MIN_ARENA_BYTES:
        most = usable // (CONTEXT_BYTES + models * MIN_ARENA_BYTES)
        raise DeviceError(
            f"{processes} slots with {models} model(s) each do not fit a card of {card_bytes / 2**30:.1f} GiB: each "
            f"takes about {CONTEXT_BYTES >> 20} MiB for its context and {MIN_ARENA_BYTES >> 20} MiB per model, so at "
            f"most {most} fit; lower active_slots, standby_slots or gpu_density (the replicas that share the card)"
        )
    return budget


def providers(device: Device, tuning: Tuning, spec: ModelSpec, cache_key: str = "") -> list[tuple[str, Options]]:
    """The providers to open a session with, in the order in which they may take nodes.

    Args:
        device: not "auto", nor simulated.
        tuning: see ``Tuning``.
        spec: of the model: TensorRT is told the range of batch sizes, so that it builds one engine.
        cache_key: of TensorRT's folder, see ``engine_key``.

    Raises:
        DeviceError: a precision that the device has not.
    """
    if device.kind == "cpu":
        return [(PROVIDERS["cpu"], {})]
    cuda = (PROVIDERS["cuda"], _cuda(device, tuning))
    if device.kind == "cuda":
        return [cuda]
    if tuning.precision == "fp32":  # ONNX Runtime's provider has no option for it
        raise DeviceError(f"device {device.name}: TensorRT multiplies in tf32 or fp16; for fp32 use --device cuda")
    return [(PROVIDERS["tensorrt"], _tensorrt(device, tuning, spec, cache_key)), cuda]


def _cuda(device: Device, tuning: Tuning) -> Options:
    options = {
        "device_id": str(device.index),
        "cudnn_conv_algo_search": tuning.conv_search.upper(),
        "arena_extend_strategy": "kSameAsRequested",  # doubling takes memory that further slots need
        "do_copy_in_default_stream": "1",  # with device buffers bound there is nothing left for it to copy
        "use_tf32": _flag(tuning.precision == "tf32"),
        "prefer_nhwc": _flag(tuning.nhwc),
        "enable_cuda_graph": _flag(tuning.graphs),
    }
    if tuning.memory:
        options["gpu_mem_limit"] = str(tuning.memory)
    return options


def _tensorrt(device: Device, tuning: Tuning, spec: ModelSpec, cache_key: str) -> Options:
    """Its flags are "True" and "False": ONNX Runtime refuses the 1 and 0 that the CUDA provider takes."""
    options = {
        "device_id": str(device.index),
        "trt_max_workspace_size": str(min(tuning.memory or _TENSORRT_WORKSPACE, _TENSORRT_WORKSPACE)),
        "trt_context_memory_sharing_enable": "True",  # subgraphs run one after another: one scratch memory is enough
        "trt_fp16_enable": str(tuning.precision == "fp16"),
        "trt_cuda_graph_enable": str(tuning.graphs),
        "trt_profile_min_shapes": _profile(spec, 1),
        "trt_profile_opt_shapes": _profile(spec, spec.max_batch),
        "trt_profile_max_shapes": _profile(spec, spec.max_batch),
    }
    if tuning.cache:
        folder = str(Path(tuning.cache) / cache_key)
        options |= {
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": folder,
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": folder,
        }
    return options


def engine_key(spec: ModelSpec, card: str, capability: str, versions: str) -> str:
    """The name of the folder for a model's TensorRT engines: another model, card or version gets another one.

    An engine that was built elsewhere may be refused, or, worse, run slowly.
    """
    text = f"{spec.sha256[:16]}-{card}-sm{capability}-{versions}"
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in text)


def _profile(spec: ModelSpec, batch: int) -> str:
    return ",".join(f"{tensor.name}:{'x'.join(map(str, (batch, *tensor.shape)))}" for tensor in spec.inputs)


def _flag(value: bool) -> str:
    return "1" if value else "0"
