"""What this machine, or this container, has: CPU and memory as the kernel will really give them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_CGROUP = Path("/sys/fs/cgroup")


class Machine(msgspec.Struct, frozen=True):
    """CPU time in cores (may be a fraction in a container) and memory in bytes, and what limits each."""

    cores: float
    cores_from: str
    memory: int
    memory_from: str


def read_machine(cgroup: Path = _CGROUP) -> Machine:
    """Read the limits of this process: affinity and physical memory, or the container's where they are lower."""
    cores, cores_from = float(len(os.sched_getaffinity(0))), "cores this process may use"
    quota = _cpu_quota(cgroup)
    if quota is not None and quota < cores:
        cores, cores_from = quota, "the container's cpu.max"
    memory, memory_from = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the machine's memory"
    limit = _memory_limit(cgroup)
    if limit is not None and limit < memory:
        memory, memory_from = limit, "the container's memory.max"
    return Machine(cores, cores_from, memory, memory_from)


def _cpu_quota(cgroup: Path) -> float | None:
    """Cores from cgroup v2 ``cpu.max`` or v1 ``cpu.cfs_quota_us``; None when unlimited."""
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(cgroup / "cpu/cpu.cfs_quota_us"), _read(cgroup / "cpu/cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or not int(period):
        return None
    return int(quota) / int(period)


def _memory_limit(cgroup: Path) -> int | None:
    """Bytes from cgroup v2 ``memory.max`` or v1 ``memory.limit_in_bytes``; None when unlimited."""
    text = _read(cgroup / "memory.max") or _read(cgroup / "memory/memory.limit_in_bytes")
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
