"""Why a card cannot be used: facts of this machine, and the sentence that names the cure.

``explain`` decides from facts alone, so that each case is tested on machines without a card. ONNX Runtime says none of
this by itself: without a driver, with a missing library or with both of its wheels installed it runs on the CPU and
reports CUDA as available.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from .cuda import DriverFacts, read_driver

_LIBRARIES = {
    "cuda": "libonnxruntime_providers_cuda.so",
    "tensorrt": "libonnxruntime_providers_tensorrt.so",
}
_WHEELS = ("onnxruntime", "onnxruntime-gpu")
_OUT_OF_MEMORY = (
    "out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "Failed to allocate memory",
    "Available memory of",
    "STATUS_ALLOC_FAILED",  # of cuBLAS and cuDNN
)
_NO_CUDNN = re.compile(r"cuDNN is (?:unavailable|not available)[^\n]*")  # it is missed when the first run needs it
_FAILURE = re.compile(r"(?:CUDA|CUBLAS|CUDNN|CUFFT) failure \d+: [^;\n]*")
_TIMEOUT_S = 60
_INSTALL = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'framelane[gpu]'"


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine has for running on a card.

    Attributes:
        wheels: version by name of ONNX Runtime's wheels.
        providers: device kinds ("cuda", "tensorrt") whose provider is part of the installed build.
        unloadable: what the dynamic linker says of a provider's library, by kind; empty where it loads.
        build_cuda: the CUDA that the build was made for, for example (13, 0); (0, 0) for a CPU build.
        driver: see ``cuda.DriverFacts``.
    """

    wheels: Mapping[str, str] = {}
    providers: tuple[str, ...] = ()
    unloadable: Mapping[str, str] = {}
    build_cuda: tuple[int, int] = (0, 0)
    driver: DriverFacts = DriverFacts()


def read_gpu_facts() -> GpuFacts:
    """Look at the wheels, their libraries and the driver. Providers whose libraries are whole are loaded by it."""
    folder = _runtime_folder()
    present = _providers(folder)
    unloadable = {kind: why for kind in present if folder and (why := _why_not(folder / _LIBRARIES[kind]))}
    return GpuFacts(
        wheels=_wheels(), providers=present, unloadable=unloadable, build_cuda=_build_cuda(folder), driver=read_driver()
    )


def read_gpu_facts_apart(*, thoroughly: bool = False) -> GpuFacts:
    """The same from a process of its own: what is loaded for it (hundreds of MB where all is whole) goes with it.

    A build for the CPU alone is not worth the process, unless somebody wants to know ``thoroughly`` what is there.
    """
    if not thoroughly and not _providers(_runtime_folder()):
        return GpuFacts(wheels=_wheels(), driver=DriverFacts(problem="not looked for: this build could not use it"))
    command = [sys.executable, "-P", "-m", "framelane.models.gpu"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except subprocess.SubprocessError as error:  # a driver that does not answer, or ends whoever asks it
        return GpuFacts(
            wheels=_wheels(), providers=_providers(_runtime_folder()), driver=DriverFacts(problem=f"asking it: {error}")
        )
    return msgspec.json.decode(done.stdout, type=GpuFacts)


def explain(facts: GpuFacts, kind: str, index: int, error: str = "") -> str:
    """Why the device ``kind:index`` cannot be used, and what mends it; empty where nothing is known to be wrong.

    Args:
        facts: of this machine.
        kind: "cuda" or "tensorrt".
        index: the card's number.
        error: what ONNX Runtime raised, if it did.
    """
    if len(facts.wheels) > 1:
        return (
            f"both {' and '.join(facts.wheels)} are installed, and each overwrites the other's files; run: {_INSTALL}"
        )
    if kind not in facts.providers:
        return f"this build of ONNX Runtime has no {kind.upper()} provider; run: {_INSTALL}"
    return _explain_driver(facts, index) or _explain_library(facts, kind) or explain_error(error)


def _explain_driver(facts: GpuFacts, index: int) -> str:
    driver = facts.driver
    if driver.problem:
        return (
            f"there is no working NVIDIA driver ({driver.problem}); install one on the host, and start a container "
            "with --gpus all (nvidia-smi must work there)"
        )
    if driver.version < (facts.build_cuda[0], 0):
        needs, has = ".".join(map(str, facts.build_cuda)), ".".join(map(str, driver.version))
        return f"ONNX Runtime was built for CUDA {needs}, but the driver can run CUDA {has}; install a newer driver"
    if not driver.cards:
        return "the driver lists no card; check nvidia-smi -L, CUDA_VISIBLE_DEVICES and the container's --gpus"
    if index >= len(driver.cards):
        have = ", ".join(f"{card.index} ({card.name})" for card in driver.cards)
        return f"there is no card {index}; there are {have} (CUDA_VISIBLE_DEVICES renumbers them)"
    return ""


def _explain_library(facts: GpuFacts, kind: str) -> str:
    problem = facts.unloadable.get(kind, "")
    if not problem:
        return ""
    if "undefined symbol: cu" in problem:
        return f"the driver is older than the {kind.upper()} provider ({problem}); install a newer driver"
    if "libnvinfer" in problem:
        return f"TensorRT's libraries are missing ({problem}); run: pip install 'tensorrt<11'"
    return f"a library that the {kind.upper()} provider needs is missing ({problem}); run: pip install 'framelane[gpu]'"


def explain_error(error: str) -> str:
    """What mends an error that ONNX Runtime raised in a run; empty where that is not known."""
    if any(text in error for text in _OUT_OF_MEMORY):
        return (
            "the card's memory is full; run fewer slots on it, lower max_batch in model.toml, or say with "
            "--gpu-density how many replicas share the card (nvidia-smi shows who uses it)"
        )
    if missing := _NO_CUDNN.search(error):
        return f"cuDNN is missing ({missing[0].strip()}); run: pip install 'framelane[gpu]'"
    if failure := _FAILURE.search(error):
        return (
            f"the card refuses it ({failure[0].strip()}); nvidia-smi must work here and show free memory; a newer "
            "driver, or a restart of the host, helps where it does not"
        )
    if "graph capture" in error:
        return "not all of the model runs on the card, so no CUDA graph can hold it; leave out --gpu-graphs"
    return ""


def _wheels() -> dict[str, str]:
    found = {}
    for name in _WHEELS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _runtime_folder() -> Path | None:
    found = importlib.util.find_spec("onnxruntime")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "capi"


def _providers(folder: Path | None) -> tuple[str, ...]:
    return tuple(kind for kind, name in _LIBRARIES.items() if folder is not None and (folder / name).exists())


def _build_cuda(folder: Path | None) -> tuple[int, int]:
    """The wheel writes it into a small Python file; reading that needs no import of ONNX Runtime."""
    if folder is None:
        return 0, 0
    values: dict[str, str] = {}
    try:
        text = (folder / "build_and_package_info.py").read_text()
    except OSError:
        return 0, 0
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            values[name.strip()] = value.strip().strip("'\"")
    major, _, rest = values.get("cuda_version", "").partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor or 0)) if major.isdigit() else (0, 0)


def _why_not(library: Path) -> str:
    try:
        ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return ""


def main() -> None:
    """Print the facts as JSON; the libraries that came as wheels are loaded first, as a slot does."""
    from .runtime import load, load_tensorrt

    load()
    load_tensorrt()
    sys.stdout.buffer.write(msgspec.json.encode(read_gpu_facts()))


if __name__ == "__main__":
    main()
