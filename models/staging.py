"""The buffers of one batch size: one block of inputs and one of outputs, on the host and, with a card, there as well.

Each block holds all tensors of its side one behind the other, so a batch costs one copy to the card and one back,
however many inputs and outputs a model has. The host's half is page-locked, which lets the card copy by itself.
ONNX Runtime is told the addresses once, where it runs, and copies nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .cuda import Card, HostCard, page_aligned
from .registry import ModelSpec, TensorSpec

Array = npt.NDArray[Any]

_ALIGNMENT = 256
_MARKS = (0xFF, 0x00)


class Bound(NamedTuple):
    """A cell that a session may run: its arrays (leading axis 1) and what the session prepared for them."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    prepared: Any


class Staging:
    """The buffers of one bucket: inputs and outputs in one piece each, on the host and, with a card, there as well.

    Args:
        ort, session: ONNX Runtime and its session.
        spec: the model.
        size: how many items it holds.
        place: where ONNX Runtime shall find it: ("cpu", 0) or ("cuda", index).
        card: copies between the two; None where the host's half is all there is.

    Attributes:
        inputs, outputs: the host's half, with a batch axis.
        options: of each run; None: the usual ones.
    """

    def __init__(
        self, ort: Any, session: Any, spec: ModelSpec, size: int, place: tuple[str, int], card: Card | HostCard | None
    ) -> None:
        self.size = size
        self.options: Any = None
        self._card = card
        self._binding = session.io_binding()
        # An input that a node on the CPU reads is copied there when it is bound: it is bound again before every run.
        infos = session.get_input_memory_infos() if card is not None and place[0] != "cpu" else ()
        self._bound_late = [index for index, info in enumerate(infos) if info.name.lower() == "cpu"]
        self._sides = [_Side(ort, tensors, size, place, card) for tensors in (spec.inputs, spec.outputs)]
        for side, bind in zip(self._sides, (self._binding.bind_input, self._binding.bind_output), strict=True):
            for tensor, array, address in zip(side.tensors, side.arrays, side.addresses, strict=True):
                bind(tensor.name, *place, array.dtype, array.shape, address)
        self.inputs, self.outputs = self._sides[0].arrays, self._sides[1].arrays
        # Views with a batch axis of one: a tensor may be a single number, whose row alone would be a copy.
        self._rows = [[array[row : row + 1] for array in self.inputs] for row in range(size)]
        self._output_rows = [[array[row : row + 1] for array in self.outputs] for row in range(size)]

    def gather(self, items: Sequence[Bound]) -> None:
        """Copy the items' inputs in, and on to the card; rows beyond them keep what they had, for nobody."""
        for rows, item in zip(self._rows, items, strict=False):
            for row, own in zip(rows, item.inputs, strict=True):
                row[...] = own
        if self._card is not None:
            self._sides[0].upload(self._card)

    def execute(self, session: Any) -> None:
        """Run what was gathered."""
        for index in self._bound_late:
            self._binding.bind_cpu_input(self._sides[0].tensors[index].name, self.inputs[index])
        session.run_with_iobinding(self._binding, self.options)
        if self._card is not None:
            self._binding.synchronize_outputs()
            self._sides[1].download(self._card)

    def scatter(self, items: Sequence[Bound]) -> None:
        """Copy the outputs into the items' cells."""
        for rows, item in zip(self._output_rows, items, strict=False):
            for row, own in zip(rows, item.outputs, strict=True):
                own[...] = row

    def close(self) -> None:
        """Let go of the memory."""
        for side in self._sides:
            if self._card is not None:
                self._card.unlock_pages(side.block)

    def writes_to_the_card(self, session: Any, items: Sequence[Bound]) -> bool:
        """Whether a run replaces marks in the card's output memory: one of two, as an output may look like one."""
        assert self._card is not None
        written: set[int] = set()
        for mark in _MARKS:
            self._sides[1].block[:] = mark
            self._sides[1].upload(self._card)
            self.gather(items)
            self.execute(session)
            plain = (array.reshape(-1).view(np.uint8) for array in self.outputs)
            written |= {number for number, values in enumerate(plain) if (values != mark).any()}
        return len(written) == len(self.outputs)


class _Side:
    """The inputs, or the outputs, of a bucket as one block; ``addresses`` are where ONNX Runtime finds them."""

    def __init__(
        self, ort: Any, tensors: Sequence[TensorSpec], size: int, place: tuple[str, int], card: Card | HostCard | None
    ) -> None:
        self.tensors = tensors
        offsets, nbytes = [], 0
        for tensor in tensors:
            offsets.append(nbytes)
            nbytes += -(-size * tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.block = page_aligned(nbytes)
        self.arrays = tuple(
            self.block[at : at + size * tensor.nbytes].view(tensor.dtype).reshape((size, *tensor.shape))
            for tensor, at in zip(tensors, offsets, strict=True)
        )
        self._there: Any = None
        base = self.block.ctypes.data
        if card is not None:
            card.lock_pages(self.block)
            self._there = ort.OrtValue.ortvalue_from_shape_and_type([nbytes], np.uint8, *place)
            base = self._there.data_ptr()
        self.addresses = [base + at for at in offsets]

    def upload(self, card: Card | HostCard) -> None:
        start = time.monotonic()
        card.upload(self.addresses[0], self.block.ctypes.data, self.block.nbytes)
        if card.copied is not None:
            card.copied(start, time.monotonic(), 0)

    def download(self, card: Card | HostCard) -> None:
        start = time.monotonic()
        card.download(self.block.ctypes.data, self.addresses[0], self.block.nbytes)
        if card.copied is not None:
            card.copied(start, time.monotonic(), 1)
