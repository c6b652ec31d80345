"""Holding a replica to its part of the machine: a set of cores, one card, so much memory, as its container would.

Cores are set before the process starts, so that it chooses its workers by them. Memory is limited by a group of its
own below ours where the kernel lets us make one (cgroup v1, or v2 with the controller handed down); where it does not,
``MemoryGroup.make`` says why, and the report repeats it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

_ROOT = Path("/sys/fs/cgroup")
_EMPTY_S = 5.0


class NotConfined(Exception):
    """The limit cannot be set here; the message says why."""


def core_sets(cores: Sequence[int], replicas: int) -> list[tuple[int, ...]]:
    """A set of cores for each replica: neighbours, of equal size, shared in turn where there are fewer cores."""
    if replicas >= len(cores):
        return [(cores[number % len(cores)],) for number in range(replicas)]
    edges = [number * len(cores) // replicas for number in range(replicas + 1)]
    return [tuple(cores[start:stop]) for start, stop in itertools.pairwise(edges)]


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What is started inside may use these cores only; none given: all of ours."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class MemoryGroup:
    """A memory control group; made with ``make``, removed with ``remove`` once its processes have ended."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def make(cls, name: str, limit: int, root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> Self:
        """A group below our own whose processes together get ``limit`` bytes. Raises NotConfined."""
        parent, limit_file = _parent(root, own)
        group = parent / name
        try:
            group.mkdir()
            (group / limit_file).write_text(str(limit))
        except OSError as error:
            with contextlib.suppress(OSError):
                group.rmdir()
            raise NotConfined(f"no memory group below {parent}: {error.strerror}") from None
        return cls(group)

    def take(self, pid: int) -> None:
        """Move a process in; its children follow. Raises OSError."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group, once the kernel has seen its last process off."""
        limit = time.monotonic() + _EMPTY_S
        while self._path.exists():
            try:
                self._path.rmdir()
            except OSError:
                if time.monotonic() > limit:
                    return
                time.sleep(0.02)


def _parent(root: Path, own: Path) -> tuple[Path, str]:
    """Our own group of the memory controller, and the name of the file with its limit."""
    groups = [line.split(":", 2)[1:] for line in own.read_text().splitlines()]
    for controllers, path in groups:
        if "memory" in controllers.split(","):
            return _existing(root / "memory", path), "memory.limit_in_bytes"
    parent = _existing(root, next((path for controllers, path in groups if not controllers), "/"))
    handed_down = parent / "cgroup.subtree_control"
    if not handed_down.exists() or "memory" not in handed_down.read_text().split():
        raise NotConfined(f"{parent} hands down no memory controller (cgroup.subtree_control)")
    return parent, "memory.max"


def _existing(root: Path, path: str) -> Path:
    """In a container the path is often that of the host, and the group itself is mounted at the root."""
    below = root / path.lstrip("/")
    return below if below.exists() else root
