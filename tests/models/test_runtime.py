"""What is found out about ONNX Runtime and TensorRT before a session is opened, with stand-ins for their libraries."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from framelane.models import runtime
from framelane.models.cuda import CardFacts, DriverFacts
from framelane.models.devices import parse_device
from framelane.models.providers import Tuning
from framelane.models.registry import Registry

SPEC = Registry([]).get("blazeface_short")
L4 = CardFacts(0, "NVIDIA L4", 24 * 2**30, "0000:3b:00.0", "8.9")
L40S = CardFacts(1, "NVIDIA L40S", 48 * 2**30, "0000:86:00.0", "8.9")
DRIVER = DriverFacts((13, 0), (L4, L40S), release="580.65.06")


def key(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    sha256: str = SPEC.sha256,
    card: int = 0,
    driver: DriverFacts = DRIVER,
    runtime_version: str = "1.31.1",
    tensorrt: int = 101300,
) -> str:
    monkeypatch.setattr(runtime, "read_driver", lambda: driver)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(getInferLibVersion=lambda: tensorrt))
    ort = SimpleNamespace(__version__=runtime_version)
    spec = msgspec.structs.replace(SPEC, sha256=sha256)
    return runtime._engine_key(ort, spec, parse_device(f"tensorrt:{card}"), Tuning(cache=str(folder)))


def test_engines_are_kept_by_all_that_they_depend_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = key(monkeypatch, tmp_path)
    assert first == f"{SPEC.sha256[:16]}-NVIDIA_L4-sm8.9-ort1.31.1-trt101300-driver580.65.06"
    changes: list[dict[str, Any]] = [
        {"sha256": "0" * 64},
        {"card": 1},
        {"driver": msgspec.structs.replace(DRIVER, release="590.10")},
        {"driver": msgspec.structs.replace(DRIVER, cards=(msgspec.structs.replace(L4, capability="9.0"),))},
        {"runtime_version": "1.32.0"},
        {"tensorrt": 101400},
    ]
    keys = {first, *(key(monkeypatch, tmp_path, **change) for change in changes)}
    assert len(keys) == 1 + len(changes)
    assert {path.name for path in tmp_path.iterdir()} == keys


def test_a_driver_that_hides_its_release_is_known_by_the_cuda_that_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert key(monkeypatch, tmp_path, driver=DriverFacts((13, 1), (L4,))).endswith("-drivercuda.13.1")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_there_is_no_key_without_tensorrt(device: str, tmp_path: Path) -> None:
    assert runtime._engine_key(None, SPEC, parse_device(device), Tuning(cache=str(tmp_path))) == ""
    assert not list(tmp_path.iterdir())


def test_the_libraries_of_tensorrts_wheel_are_loaded_the_ones_that_others_need_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "tensorrt_libs"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    runtime.load_tensorrt()
    assert loaded == [str(folder / "libnvinfer.so.10"), str(folder / "libnvonnxparser.so.10")]
