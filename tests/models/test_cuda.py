"""The driver's calls, with a library of Python functions in its place: what is asked, in which order, and undone."""

import ctypes
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import write_double

from framelane.models import cuda
from framelane.models.cuda import Card, CardFacts, CudaError, page_aligned, read_driver
from framelane.models.devices import parse_device
from framelane.models.registry import load_model
from framelane.models.session import OnnxSession

GIB = 2**30
NO_DEVICE = 100


def target(pointer: Any) -> Any:
    """What a byref argument points to."""
    return pointer._obj


class Library:
    """A driver with one card, whose memory is that of this process."""

    def __init__(self, *, status: int = 0) -> None:
        self.status = status
        self.calls: list[str] = []
        self.locked: dict[int, int] = {}
        self.streams = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def other(*_arguments: Any) -> int:
            self.calls.append(name)
            return 0

        return other

    def cuInit(self, _flags: Any) -> int:
        return self.status

    def cuGetErrorName(self, status: int, text: Any) -> int:
        target(text).value = b"CUDA_ERROR_NO_DEVICE"
        return 0 if status == NO_DEVICE else 1

    def cuDriverGetVersion(self, number: Any) -> int:
        target(number).value = 13010
        return 0

    def cuDeviceGetCount(self, number: Any) -> int:
        target(number).value = 1
        return 0

    def cuDeviceGet(self, device: Any, index: Any) -> int:
        return 0 if index.value == 0 else NO_DEVICE

    def cuDeviceGetName(self, name: Any, _size: int, _device: Any) -> int:
        name.value = b"NVIDIA L4"
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, _device: Any) -> int:
        target(size).value = 24 * GIB
        return 0

    def cuDeviceGetPCIBusId(self, bus: Any, _size: int, _device: Any) -> int:
        bus.value = b"0000:3B:00.0"
        return 0

    def cuDeviceGetAttribute(self, number: Any, attribute: int, _device: Any) -> int:
        target(number).value = {75: 8, 76: 9}[attribute]
        return 0

    def cuStreamCreate(self, stream: Any, _flags: Any) -> int:
        self.streams += 1
        target(stream).value = self.streams
        return 0

    def cuMemHostRegister_v2(self, address: Any, size: Any, _flags: Any) -> int:
        self.locked[address.value] = size.value
        return 0

    def cuMemHostUnregister(self, address: Any) -> int:
        del self.locked[address.value]
        return 0

    def cuMemcpyHtoDAsync_v2(self, there: Any, here: Any, size: Any, stream: Any) -> int:
        self.calls.append(f"up {stream.value}")
        ctypes.memmove(there.value, here.value, size.value)
        return 0

    def cuMemcpyDtoHAsync_v2(self, here: Any, there: Any, size: Any, stream: Any) -> int:
        self.calls.append(f"down {stream.value}")
        ctypes.memmove(here.value, there.value, size.value)
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        self.calls.append(f"wait {stream.value}")
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        target(free).value, target(total).value = 20 * GIB, 24 * GIB
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda _name: library)
    return library


def test_cards_are_read_without_making_a_context(library: Library) -> None:
    facts = read_driver()
    assert facts.version == (13, 1)
    assert facts.cards == (CardFacts(0, "NVIDIA L4", 24 * GIB, "0000:3b:00.0", "8.9"),)
    assert not library.calls


def test_the_drivers_own_number_is_read_where_the_kernel_tells_it(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_RELEASE", tmp_path / "version")
    assert read_driver().release == ""
    (tmp_path / "version").write_text("580.65.06\n")
    assert read_driver().release == "580.65.06"


def test_a_driver_that_refuses_says_so_by_its_own_name(library: Library) -> None:
    library.status = NO_DEVICE
    assert read_driver().problem == "cuInit: CUDA_ERROR_NO_DEVICE"
    library.status = 7
    assert read_driver().problem == "cuInit: error 7"


def test_a_card_that_is_not_there_is_an_error(library: Library) -> None:
    with pytest.raises(CudaError, match="cuDeviceGet: CUDA_ERROR_NO_DEVICE"):
        Card(1)


def test_each_direction_has_its_stream_and_a_copy_waits_for_itself(library: Library) -> None:
    card, here, there = Card(0), page_aligned(8), np.zeros(8, np.uint8)
    here[:] = 5
    card.upload(there.ctypes.data, here.ctypes.data, 8)
    assert there.tolist() == [5] * 8
    card.download(here.ctypes.data, there.ctypes.data, 8)
    assert library.calls[-4:] == ["up 1", "wait 1", "down 2", "wait 2"]
    assert card.free_memory() == (20 * GIB, 24 * GIB)


def test_memory_that_nobody_unlocked_is_not_given_back_before_the_card_lets_go_of_it(library: Library) -> None:
    """As when the card has no room for the second half of a buffer."""
    card, block = Card(0), page_aligned(8)
    card.lock_pages(block)
    kept = weakref.ref(block)
    del block
    assert kept() is not None
    card.close()
    assert kept() is None
    assert not library.locked


def test_a_session_on_a_card_leaves_no_page_locked(library: Library, tmp_path: Path) -> None:
    session = OnnxSession(load_model(write_double(tmp_path)), parse_device("cpu"), card=Card(0))  # type: ignore[arg-type]
    session.warm_up()
    (item,) = session.spare_items(1)
    item.inputs[0][:] = 21
    session.run([item])
    assert item.outputs[0].tolist() == [[42.0] * 4]
    assert library.locked
    session.close()
    assert not library.locked
    assert library.calls[-3:] == ["cuCtxSynchronize", "cuStreamDestroy_v2", "cuStreamDestroy_v2"]
