"""The CUDA driver as a slot needs it: which cards there are, page-locked memory, copies on a stream of one's own.

It calls ``libcuda.so.1``, which comes with the driver and whose functions keep their meaning over all versions of CUDA,
so nothing here depends on how ONNX Runtime was built. Both use the card's *primary* context, so addresses of one
are addresses of the other. Reading what cards there are (``read_driver``) makes no context, and costs a card no memory;
``Card`` does, and belongs in a slot only. No call holds the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

_LIBRARY = "libcuda.so.1"
_RELEASE = Path("/sys/module/nvidia/version")
_NON_BLOCKING = 1
_NAME_BYTES = 256
_BUS_BYTES = 16

Copied = Callable[[float, float, int], None]
"""Told of each copy: start and end in monotonic seconds, and 0 to the card or 1 back."""


class CudaError(Exception):
    """A call of the driver failed; the text has the driver's own name for it."""


class CardFacts(msgspec.Struct, frozen=True):
    """One card as the driver lists it: memory in bytes, place on the PCI bus ("0000:3b:00.0"), compute capability."""

    index: int
    name: str
    memory: int
    bus: str
    capability: str


class DriverFacts(msgspec.Struct, frozen=True):
    """The driver, or why there is none.

    ``version`` is the newest CUDA that it can run, for example (13, 0); ``release`` is its own number ("580.65.06"),
    empty where the kernel does not tell it.
    """

    version: tuple[int, int] = (0, 0)
    cards: tuple[CardFacts, ...] = ()
    problem: str = ""
    release: str = ""


def read_driver(library: str = _LIBRARY) -> DriverFacts:
    """Ask the driver for its cards."""
    try:
        driver = _Driver(library)
    except OSError as error:
        return DriverFacts(problem=f"{library} cannot be loaded: {error}")
    version = driver.version()
    try:
        driver.call("cuInit", ctypes.c_uint(0))
        return DriverFacts(version, tuple(map(driver.card, range(driver.count()))), release=_release())
    except CudaError as error:
        return DriverFacts(version, problem=str(error))


def _release() -> str:
    try:
        return _RELEASE.read_text().strip()
    except OSError:
        return ""


class Card:
    """One card, for copies between page-locked memory and the card.

    Args:
        index: the card's number, among those that this process may see.

    Raises:
        CudaError: the driver cannot be loaded or refuses.
    """

    copied: Copied | None = None

    def __init__(self, index: int) -> None:
        try:
            self._driver = _Driver(_LIBRARY)
        except OSError as error:
            raise CudaError(str(error)) from error
        self._driver.call("cuInit", ctypes.c_uint(0))
        self._context = ctypes.c_void_p()
        self._up, self._down = ctypes.c_void_p(), ctypes.c_void_p()
        self._locked: dict[int, npt.NDArray[Any]] = {}
        device = self._driver.device(index)
        self._driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.enter_thread()
        for stream in (
            self._up,
            self._down,
        ):  # two threads copy, one each way: neither waits for the other
            self._driver.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))

    def enter_thread(self) -> None:
        """To be called once on each thread that copies: which card is meant is a property of the thread."""
        self._driver.call("cuCtxSetCurrent", self._context)

    def lock_pages(self, array: npt.NDArray[Any]) -> None:
        """Make host memory (whole pages) fit for copies that the card does by itself; it is kept until unlocked."""
        address = ctypes.c_void_p(array.ctypes.data)
        self._driver.call("cuMemHostRegister_v2", address, ctypes.c_size_t(array.nbytes), ctypes.c_uint(0))
        self._locked[array.ctypes.data] = array

    def unlock_pages(self, array: npt.NDArray[Any]) -> None:
        """Undo ``lock_pages``: before the memory is given back, since the driver would go on writing to its address."""
        self._driver.call("cuMemHostUnregister", ctypes.c_void_p(array.ctypes.data))
        del self._locked[array.ctypes.data]

    def upload(self, target: int, source: int, nbytes: int) -> None:
        """Copy from page-locked memory to the card, and wait until it is there."""
        size = ctypes.c_size_t(nbytes)
        self._driver.call("cuMemcpyHtoDAsync_v2", _address(target), ctypes.c_void_p(source), size, self._up)
        self._driver.call("cuStreamSynchronize", self._up)

    def download(self, target: int, source: int, nbytes: int) -> None:
        """Copy from the card to page-locked memory, and wait until it is there."""
        size = ctypes.c_size_t(nbytes)
        self._driver.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(target), _address(source), size, self._down)
        self._driver.call("cuStreamSynchronize", self._down)

    def free_memory(self) -> tuple[int, int]:
        """Bytes of the card that are free, and all of them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def check(self) -> None:
        """Wait for everything on the card. Raises CudaError, then and ever after, if a fault has ended its context."""
        self._driver.call("cuCtxSynchronize")

    def close(self) -> None:
        """Wait for everything on the card, so that an MPS neighbour is not ended with us, and unlock the memory."""
        self.check()
        while self._locked:
            self.unlock_pages(next(iter(self._locked.values())))
        for stream in (self._up, self._down):
            self._driver.call("cuStreamDestroy_v2", stream)


def free_memory(index: int) -> int:
    """Bytes of a card that are free. Raises CudaError where there is none."""
    card = Card(index)
    free, _ = card.free_memory()
    card.close()
    return free


class HostCard:
    """Host memory in the place of a card: the same steps with copies of the C library, where there is no card."""

    copied: Copied | None = None

    def enter_thread(self) -> None:
        """Nothing to do."""

    def lock_pages(self, array: npt.NDArray[Any]) -> None:
        """Nothing to do."""

    unlock_pages = lock_pages

    def upload(self, target: int, source: int, nbytes: int) -> None:
        """Copy."""
        ctypes.memmove(target, source, nbytes)

    download = upload

    def check(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def page_aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed memory that begins on a page, as whole pages: what can be page-locked."""
    return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), dtype=np.uint8)


def _address(value: int) -> ctypes.c_uint64:
    """An address on the card is a number of 64 bits to the driver, not a pointer."""
    return ctypes.c_uint64(value)


class _Driver:
    """``libcuda`` with errors as exceptions."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise CudaError(f"{function}: {self._name(status)}")

    def version(self) -> tuple[int, int]:
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))  # needs no cuInit
        return number.value // 1000, number.value % 1000 // 10

    def count(self) -> int:
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        return device

    def card(self, index: int) -> CardFacts:
        device = self.device(index)
        name, bus = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(_BUS_BYTES)
        memory = ctypes.c_size_t()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetName", name, _NAME_BYTES, device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        self.call("cuDeviceGetPCIBusId", bus, _BUS_BYTES, device)
        for number, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        capability = f"{major.value}.{minor.value}"
        return CardFacts(index, name.value.decode(), memory.value, bus.value.decode().lower(), capability)

    def _name(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(status, ctypes.byref(text)) or text.value is None:
            return f"error {status}"
        return text.value.decode()
