"""What the cards do now: utilisation, memory, and memory per process, from NVML where it is installed.

Without ``nvidia-ml-py``, a driver or a card, ``Cards.read`` quietly gives nothing and ``Cards.problem`` says why.
CUDA and NVML number cards differently: the driver obeys ``CUDA_VISIBLE_DEVICES`` (numbers or UUIDs) and
``CUDA_DEVICE_ORDER`` (the fastest first, unless told otherwise); NVML shows all cards by their place on the PCI bus. So
a card is found by that place, and has here the number that it has everywhere else.

NVML's utilisation is the share of time in which *any* kernel ran: a card at 100 % may be nearly empty. How full it is
tells DCGM's ``DCGM_FI_PROF_SM_ACTIVE``, which dcgm-exporter has. In a container NVML may hide processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec


class CardUse(msgspec.Struct, frozen=True):
    """One card at this moment. Memory in bytes; utilisation from 0 to 1, None where the card does not tell.

    ``index`` is CUDA's number; ``processes`` is the memory of each process that NVML shows, by pid.
    """

    index: int
    name: str
    memory_used: int
    memory_total: int
    utilisation: float | None
    processes: dict[int, int]


class Cards:
    """Cards, through NVML.

    Args:
        buses: places of the cards on the PCI bus, in CUDA's order (``cuda.CardFacts.bus``); none: all, in NVML's order.
        nvml: stands in for its module.

    Attributes:
        problem: why there is nothing to read; empty where there is.
    """

    def __init__(self, buses: Sequence[str] = (), nvml: Any = None) -> None:
        self._buses = buses
        self._nvml = nvml
        self._opened = False
        self.problem = ""

    def read(self) -> list[CardUse]:
        """The cards now. Takes under a millisecond per card once NVML is open."""
        if not self._opened:
            self._open()
        if self.problem:
            return []
        try:
            return [self._card(index, handle) for index, handle in enumerate(self._handles())]
        except self._nvml.NVMLError as error:
            self.problem = f"not available: {error}"
            return []

    def record(self) -> list[dict[str, Any]]:
        """``read`` as plain values; what a card does not tell is left out."""
        records = [msgspec.structs.asdict(card) for card in self.read()]
        return [{key: value for key, value in record.items() if value is not None} for record in records]

    def close(self) -> None:
        """Let go of NVML."""
        if self._opened and not self.problem:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _open(self) -> None:
        self._opened = True
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                self.problem = "not available: nvidia-ml-py is not installed (it comes with framelane[gpu])"
                return
            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            self.problem = f"not available: {error}"

    def _handles(self) -> list[Any]:
        nvml = self._nvml
        if self._buses:
            return [nvml.nvmlDeviceGetHandleByPciBusId(bus) for bus in self._buses]
        return [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]

    def _card(self, index: int, handle: Any) -> CardUse:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        utilisation: float | None = None
        with contextlib.suppress(nvml.NVMLError):
            utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        name = nvml.nvmlDeviceGetName(handle)
        return CardUse(
            index,
            name.decode() if isinstance(name, bytes) else name,
            memory.used,
            memory.total,
            utilisation,
            self._processes(handle),
        )

    def _processes(self, handle: Any) -> dict[int, int]:
        """Under MPS the clients are listed among the compute processes, too, by newer drivers only."""
        found: dict[int, int] = {}
        with contextlib.suppress(self._nvml.NVMLError):
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                found[process.pid] = process.usedGpuMemory or 0  # None where the container may not see it
        return found
