"""Why a card cannot be used: every case has a sentence that names its cure."""

import sys
from pathlib import Path

import pytest

from framelane.models import gpu
from framelane.models.cuda import CardFacts, DriverFacts, read_driver
from framelane.models.gpu import GpuFacts, explain, read_gpu_facts

L4 = CardFacts(0, "NVIDIA L4", 24 * 2**30, "0000:3b:00.0", "8.9")
DRIVER = DriverFacts((13, 0), (L4,))
GOOD = {"wheels": {"onnxruntime-gpu": "1.31.1"}, "providers": ("cuda", "tensorrt"), "build_cuda": (13, 0)}


def facts(**changes: object) -> GpuFacts:
    return GpuFacts(**{"driver": DRIVER, **GOOD, **changes})  # type: ignore[arg-type]


MISSING = "libcublasLt.so.13: cannot open shared object file: No such file or directory"
OLD_DRIVER = "libonnxruntime_providers_cuda.so: undefined symbol: cuTensorMapEncodeTiled"
NO_NVINFER = "libnvinfer.so.10: cannot open shared object file"


@pytest.mark.parametrize(
    ("machine", "device", "error", "says", "cure"),
    [
        (facts(wheels={"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}), "cuda", "", "both", "pip uninstall"),
        (facts(providers=()), "cuda", "", "no CUDA provider", "framelane[gpu]"),
        (facts(unloadable={"cuda": MISSING}), "cuda", "", "libcublasLt.so.13", "framelane[gpu]"),
        (facts(unloadable={"cuda": OLD_DRIVER}), "cuda", "", "cuTensorMapEncodeTiled", "newer driver"),
        (facts(unloadable={"tensorrt": NO_NVINFER}), "tensorrt", "", "libnvinfer.so.10", "tensorrt<11"),
        (facts(driver=DriverFacts(problem="libcuda.so.1 cannot be loaded")), "cuda", "", "driver", "--gpus all"),
        (facts(driver=DriverFacts((12, 4), (L4,))), "cuda", "", "can run CUDA 12.4", "newer driver"),
        (facts(driver=DriverFacts((13, 0))), "cuda", "", "no card", "CUDA_VISIBLE_DEVICES"),
        (facts(), "cuda:1", "", "no card 1; there are 0 (NVIDIA L4)", "CUDA_VISIBLE_DEVICES"),
        (
            facts(),
            "cuda",
            "x; CUDA failure 36: no such call ; GPU=-1",
            "(CUDA failure 36: no such call)",
            "newer driver",
        ),
        (facts(), "cuda", "x; CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED ; GPU=0", "NOT_INIT", "nvidia-smi"),
        (facts(), "cuda", "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", "memory is full", "--gpu-density"),
        (facts(), "cuda", "cuDNN is unavailable or disabled: libcudnn.so.9", "libcudnn.so.9", "framelane[gpu]"),
        (facts(), "cuda", "cannot use the graph capture feature", "CUDA graph", "leave out --gpu-graphs"),
        (facts(), "cuda", "CUDA failure 2: out of memory", "memory is full", "--gpu-density"),
    ],
    ids=[
        "wheels",
        "build",
        "library",
        "symbol",
        "trt",
        "driver",
        "old",
        "none",
        "index",
        "refused",
        "handle",
        "handle-memory",
        "cudnn",
        "graphs",
        "memory",
    ],
)
def test_each_fault_names_its_cure(machine: GpuFacts, device: str, error: str, says: str, cure: str) -> None:
    kind, _, index = device.partition(":")
    text = explain(machine, kind, int(index or 0), error)
    assert says in text
    assert cure in text


def test_nothing_is_said_where_nothing_is_known_to_be_wrong() -> None:
    assert explain(facts(), "cuda", 0) == ""
    assert explain(facts(unloadable={"tensorrt": NO_NVINFER}), "cuda", 0) == ""


def test_a_machine_without_a_driver_is_read_without_an_error() -> None:
    assert "cannot be loaded" in read_driver("libframelane-none.so.1").problem


def test_the_facts_name_the_wheel_that_is_installed() -> None:
    assert any(name.startswith("onnxruntime") for name in read_gpu_facts().wheels)


@pytest.mark.parametrize("how", ["import os; os.kill(os.getpid(), 11)", "import time; time.sleep(60)"])
def test_a_driver_that_hangs_or_ends_who_asks_it_is_no_working_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """As it is after a fault of the card, or an update of the driver under a running kernel module."""
    asked = tmp_path / "python"
    asked.write_text(f"#!{sys.executable}\n{how}\n")
    asked.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(asked))
    monkeypatch.setattr(gpu, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(gpu, "_providers", lambda _folder: ("cuda",))
    found = gpu.read_gpu_facts_apart()
    assert "there is no working NVIDIA driver (asking it: " in explain(found, "cuda", 0)
