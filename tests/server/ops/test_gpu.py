"""What NVML says of the cards, with a stand-in for its module; quiet where it has nothing to say."""

from types import SimpleNamespace
from typing import Any

from framelane.server.ops.gpu import Cards, CardUse
from framelane.server.ops.processes import ProcessCollector


class NVMLError(Exception):
    pass


class Nvml:
    """One card with two processes, of which a container sees the memory of one."""

    NVMLError = NVMLError

    def __init__(self, *, driver: bool = True, utilisation: bool = True) -> None:
        self.driver = driver
        self.utilisation = utilisation

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> Any:
        return SimpleNamespace(used=3, total=24)

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> Any:
        if not self.utilisation:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetName(self, _handle: int) -> bytes:
        return b"NVIDIA L4"

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[Any]:
        return [SimpleNamespace(pid=7, usedGpuMemory=2), SimpleNamespace(pid=8, usedGpuMemory=None)]


def test_a_card_is_read_with_what_each_process_takes() -> None:
    assert Cards(nvml=Nvml()).read() == [CardUse(0, "NVIDIA L4", 3, 24, 0.75, {7: 2, 8: 0})]


def test_what_a_card_does_not_tell_is_left_out() -> None:
    assert "utilisation" in Cards(nvml=Nvml()).record()[0]
    assert "utilisation" not in Cards(nvml=Nvml(utilisation=False)).record()[0]


def test_metrics_tell_the_cards_and_the_memory_of_our_own_slots() -> None:
    status = {"gpus": Cards(nvml=Nvml()).record(), "slots": [{"id": "slot-0", "pid": 7, "state": "active"}]}
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in ProcessCollector(status).collect()
        for sample in metric.samples
    }
    assert values["framelane_gpu_utilisation", "0"] == 0.75
    assert values["framelane_gpu_memory_bytes", "0", "used"] == 3
    assert values["framelane_gpu_slot_memory_bytes", "0", "slot-0"] == 2
    assert len([key for key in values if key[0] == "framelane_gpu_slot_memory_bytes"]) == 1


def test_without_a_driver_there_is_nothing_and_a_reason() -> None:
    cards = Cards(nvml=Nvml(driver=False))
    assert cards.read() == []
    assert cards.problem == "not available: Driver Not Loaded"
    assert cards.read() == []
    cards.close()


class Host(Nvml):
    """Three cards by their place on the bus, whatever CUDA shows of them; NVML spells a place in its own way."""

    buses = ("00000000:3B:00.0", "00000000:5E:00.0", "00000000:86:00.0")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.buses)

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> int:
        return [int(one.replace(":", "").replace(".", ""), 16) for one in self.buses].index(
            int(bus.replace(":", "").replace(".", ""), 16)
        )

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=10 * handle)


def test_cards_have_cudas_numbers_and_those_that_cuda_hides_are_not_shown() -> None:
    """CUDA shows the last card first and hides the middle one, as CUDA_VISIBLE_DEVICES=GPU-8…,GPU-3… makes it."""
    shown = Cards(["0000:86:00.0", "0000:3b:00.0"], Host()).read()
    assert [(card.index, card.utilisation) for card in shown] == [(0, 0.2), (1, 0.0)]


def test_where_cuda_has_not_been_asked_all_cards_are_shown_in_nvmls_order() -> None:
    assert [(card.index, card.utilisation) for card in Cards(nvml=Host()).read()] == [(0, 0.0), (1, 0.1), (2, 0.2)]
