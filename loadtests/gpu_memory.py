"""GPU memory of processes, as the driver counts it. NVML may be absent, blind in a container, or silent: then None."""

from __future__ import annotations

from collections.abc import Collection


def gpu_bytes(pids: Collection[int]) -> int | None:
    """Bytes that these processes hold together on all cards; None where nobody can tell."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        users = [user for card in cards for user in pynvml.nvmlDeviceGetComputeRunningProcesses(card)]
        sizes = [user.usedGpuMemory for user in users if user.pid in pids]  # a container may show the host's numbers
        return sum(sizes) if sizes and all(size is not None for size in sizes) else None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
