"""What the kernel will really give: cgroup files of both versions, as a container shows them."""

import os
from pathlib import Path

import pytest

from framelane.server.ops.machine import read_machine

CORES = float(len(os.sched_getaffinity(0)))
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cgroup(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def v2(folder: Path, cpu: str = "max 100000", memory: str = "max") -> Path:
    cgroup(folder)
    (folder / "cpu.max").write_text(cpu + "\n")
    (folder / "memory.max").write_text(memory + "\n")
    return folder


def v1(folder: Path, quota: str = "-1", period: str = "100000", memory: str = "9223372036854771712") -> Path:
    (folder / "cpu").mkdir()
    (folder / "memory").mkdir()
    (folder / "cpu/cpu.cfs_quota_us").write_text(quota + "\n")
    (folder / "cpu/cpu.cfs_period_us").write_text(period + "\n")
    (folder / "memory/memory.limit_in_bytes").write_text(memory + "\n")
    return folder


def test_without_cgroup_files_the_machine_is_the_limit(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    assert (machine.cores, machine.memory) == (CORES, MEMORY)
    assert machine.cores_from == "cores this process may use"
    assert machine.memory_from == "the machine's memory"


@pytest.mark.parametrize("version", [v1, v2])
def test_a_container_without_limits_is_the_machine(tmp_path: Path, version: object) -> None:
    machine = read_machine(version(tmp_path))  # type: ignore[operator]
    assert (machine.cores, machine.memory) == (CORES, MEMORY)


@pytest.mark.parametrize(("text", "cores"), [("50000 100000", 0.5), ("25000 50000", 0.5), ("1000 100000", 0.01)])
def test_version_2_limits_the_cores_also_to_a_fraction(tmp_path: Path, text: str, cores: float) -> None:
    machine = read_machine(v2(tmp_path, cpu=text))
    assert machine.cores == cores
    assert machine.cores_from == "the container's cpu.max"


def test_version_1_limits_the_cores_too(tmp_path: Path) -> None:
    machine = read_machine(v1(tmp_path, quota="25000"))
    assert machine.cores == 0.25


@pytest.mark.parametrize("version", [v1, v2])
def test_memory_is_limited_by_the_container(tmp_path: Path, version: object) -> None:
    machine = read_machine(version(tmp_path, memory=str(64 << 20)))  # type: ignore[operator]
    assert machine.memory == 64 << 20
    assert machine.memory_from == "the container's memory.max"


def test_limits_above_the_machine_are_the_machine(tmp_path: Path) -> None:
    machine = read_machine(v2(tmp_path, cpu="100000000 100000", memory=str(MEMORY * 2)))
    assert (machine.cores, machine.memory) == (CORES, MEMORY)
    assert machine.cores_from == "cores this process may use"


@pytest.mark.parametrize("text", ["", "garbage", "max", "100000", "100000 0", "-5 100000", "1e5 100000"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, text: str) -> None:
    machine = read_machine(v2(tmp_path, cpu=text, memory=text))
    assert machine.cores == CORES


def test_the_real_machine_can_be_read() -> None:
    machine = read_machine()
    assert 0 < machine.cores <= CORES
    assert 0 < machine.memory <= MEMORY
