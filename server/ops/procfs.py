"""What the kernel says of processes and of the machine; nothing here is cached, and what is gone reads as zero."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all threads, by its clock (``clock_getcpuclockid(3)``)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def core_wait_seconds(pid: int) -> float:
    """Seconds in which the main thread of a process could have run but had no core (the kernel's run-queue delay)."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def machine_seconds() -> float:
    """Processor time that all programs of the machine have used; what a hypervisor took for others counts too."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = file.readline().split()
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pids: Iterable[int]) -> dict[int, int]:
    """Proportional set size by process: pages that several share count by their share. Takes a millisecond each."""
    found = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        sizes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
        if sizes:
            found[pid] = sizes[0] * 1024
    return found
