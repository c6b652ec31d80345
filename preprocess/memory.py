"""Shared memory: the frame memory (bytes in, packets out) and the workers' slabs of tensor cells.

Both are anonymous memory files (``memfd``): they have no name, do not use /dev/shm, and vanish with the last process
that maps them, whatever killed it. All pages are allocated at start (``posix_fallocate``), so that a machine without
enough memory gives an error then, and not a SIGBUS during a campaign. (Under a container's limit the kernel ends the
process instead: ``plan.py`` counts the memory first.)

    frame memory   one per replica, owned by the gateway    cell = [ frame bytes | lane state | finished packet ]
    slab           one per worker, mapped by the slots      credit → model → cell = [ inputs … | outputs … ]

A worker's credit *k* is its frame cell and its group of tensor cells: one number says where everything of a frame is,
and there is nothing to allocate or free while frames are served.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from framelane.models.errors import FramelaneError
from framelane.models.registry import TensorSpec

STATE_BYTES = 16 * 1024
"""The most that a lane's state may have."""

_ALIGNMENT = 64


class MemoryShortage(FramelaneError):
    """The machine or the container cannot provide the shared memory."""

    code = "memory"


def aligned(size: int) -> int:
    """``size`` rounded up to whole cache lines (64 bytes)."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Memory:
    """An anonymous memory file, mapped. Close it only when nothing views it any more."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, name: str, size: int) -> Memory:
        """Allocate ``size`` bytes, zeroed. ``name`` shows in /proc/PID/maps only.

        Raises:
            MemoryShortage: with the size that was asked for.
        """
        fd = os.memfd_create(f"framelane-{name}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
            return cls(fd, size)
        except OSError as error:
            os.close(fd)
            raise MemoryShortage(
                f"cannot allocate {size / 2**20:.1f} MiB of shared memory for {name}: {error}"
            ) from error

    @classmethod
    def attach(cls, fd: int) -> Memory:
        """Map a memory file that another process created; takes over the descriptor."""
        return cls(fd, os.fstat(fd).st_size)

    def close(self) -> None:
        """Unmap. Views that are still held keep the mapping alive until they are dropped."""
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a view outlives us; the mapping goes with it
        os.close(self.fd)


class FrameCells:
    """The frame memory's geometry: where the three parts of each cell lie.

    Args:
        memory: the mapped file.
        frame_bytes, packet_bytes: capacity of the first and the last part; the state's is ``STATE_BYTES``.
    """

    def __init__(self, memory: Memory, frame_bytes: int, packet_bytes: int) -> None:
        self._view = memory.view
        self._state_at = aligned(frame_bytes)
        self._packet_at = self._state_at + aligned(STATE_BYTES)
        self._stride = self._packet_at + aligned(packet_bytes)

    @staticmethod
    def size(cells: int, frame_bytes: int, packet_bytes: int) -> int:
        """Bytes that ``cells`` cells need."""
        return cells * (aligned(frame_bytes) + aligned(STATE_BYTES) + aligned(packet_bytes))

    def frame(self, cell: int, length: int) -> memoryview:
        """The frame's bytes."""
        start = cell * self._stride
        return self._view[start : start + length]

    def state(self, cell: int, length: int) -> memoryview:
        """The lane's state: as it was when written by the gateway, as it shall be when written by the worker."""
        start = cell * self._stride + self._state_at
        return self._view[start : start + length]

    def packet(self, cell: int, length: int) -> memoryview:
        """The finished packet."""
        start = cell * self._stride + self._packet_at
        return self._view[start : start + length]


class ModelCells(msgspec.Struct, frozen=True):
    """What one model needs of a slab: cells per frame, and the tensors of each cell."""

    parallel: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one cell."""
        return sum(aligned(tensor.nbytes) for tensor in (*self.inputs, *self.outputs))


class Slab:
    """A worker's tensor cells: for each credit, for each model, ``parallel`` cells of inputs and outputs.

    Cells are numbered through, credit by credit; ``cell(credit, model, item)`` gives the number that messages carry.
    """

    def __init__(self, memory: Memory, models: Sequence[ModelCells]) -> None:
        self.models = tuple(models)
        self._view = memory.view
        self._credit_bytes = sum(model.parallel * model.nbytes for model in self.models)
        self._model_at: list[int] = []
        self._first_cell: list[int] = []
        offset = cells = 0
        for model in self.models:
            self._model_at.append(offset)
            self._first_cell.append(cells)
            offset += model.parallel * model.nbytes
            cells += model.parallel
        self._cells_per_credit = cells

    @staticmethod
    def size(credits: int, models: Sequence[ModelCells]) -> int:
        """Bytes that a slab for ``credits`` frames in work needs (at least one page)."""
        return max(mmap.PAGESIZE, credits * sum(model.parallel * model.nbytes for model in models))

    def cell(self, credit: int, model: int, item: int) -> int:
        """The number of a cell."""
        return credit * self._cells_per_credit + self._first_cell[model] + item

    def arrays(self, model: int, cell: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The input and output arrays of a cell, as NumPy views *with* a leading batch axis of 1."""
        credit, rest = divmod(cell, self._cells_per_credit)
        shape = self.models[model]
        offset = credit * self._credit_bytes + self._model_at[model] + (rest - self._first_cell[model]) * shape.nbytes
        inputs = tuple(self._array(tensor, offset + at) for tensor, at in _offsets(shape.inputs, 0))
        start = sum(aligned(tensor.nbytes) for tensor in shape.inputs)
        return inputs, tuple(self._array(tensor, offset + at) for tensor, at in _offsets(shape.outputs, start))

    def _array(self, tensor: TensorSpec, offset: int) -> Any:
        import numpy as np

        flat = np.frombuffer(
            self._view, dtype=tensor.dtype, count=tensor.nbytes // np.dtype(tensor.dtype).itemsize, offset=offset
        )
        return flat.reshape((1, *tensor.shape))


def _offsets(tensors: Sequence[TensorSpec], start: int) -> list[tuple[TensorSpec, int]]:
    found = []
    for tensor in tensors:
        found.append((tensor, start))
        start += aligned(tensor.nbytes)
    return found
