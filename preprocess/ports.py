"""How a pipeline in a worker reaches its tensor cells: the worker's implementation of ``models.pipeline.Port``.

The slab has a group of cells per credit, and as many spare groups. A group in which a slot that cannot be killed might
still write is exchanged for a spare one, and comes back when that process has ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from framelane.models.inline import put
from framelane.models.pipeline import Array, Outputs

from .links import ModelFailed
from .memory import Slab


class Groups:
    """Which group of cells each credit uses.

    Args:
        credits: how many frames may be in work; there are twice as many groups.

    Attributes:
        of: the group of each credit.
        running: the group of the frame that the worker runs at this moment.
    """

    __slots__ = ("_quarantined", "_spare", "of", "running")

    def __init__(self, credits: int) -> None:
        self.of = list(range(credits))
        self.running = 0
        self._spare = list(range(credits, 2 * credits))
        self._quarantined: list[tuple[Hashable, int]] = []

    def exchange(self, credit: int, holder: Hashable) -> int:
        """Give a credit a spare group, until ``release(holder)`` brings its old one back as a spare.

        Raises:
            IndexError: there is no spare group; this process cannot go on.
        """
        group = self._spare.pop()
        self._quarantined.append((holder, self.of[credit]))
        self.of[credit] = group
        return group

    def release(self, holder: Hashable) -> None:
        """``holder`` has ended: what it might have written into is clean again."""
        self._spare += [group for who, group in self._quarantined if who == holder]
        self._quarantined = [entry for entry in self._quarantined if entry[0] != holder]


class SlabPort:
    """One model's cells in the slab of this worker.

    Args:
        groups: says whose frame runs now.
        slab: the worker's tensor cells.
        index: the model's place in the slab.
        name: the model's name, for errors.
    """

    def __init__(self, groups: Groups, slab: Slab, index: int, name: str) -> None:
        self.parallel = slab.models[index].parallel
        self.index = index
        self._groups = groups
        self._name = name
        self._inputs: dict[int, Outputs] = {}
        self._outputs: dict[int, Outputs] = {}
        self._floats: dict[int, Outputs] = {}
        self._first = [slab.cell(group, index, 0) for group in range(2 * len(groups.of))]
        for first in self._first:
            for cell in range(first, first + self.parallel):
                inputs, outputs = slab.arrays(index, cell)
                self._inputs[cell] = tuple(array[0, ...] for array in inputs)
                self._outputs[cell] = tuple(array[0, ...] for array in outputs)
                self._floats[cell] = tuple(array.reshape(-1) for array in outputs if array.dtype.kind == "f")

    def cell(self, group: int, item: int) -> int:
        """The number, as in messages, of an item's cell in a group."""
        return self._first[group] + item

    def lend(self, cell: int) -> Outputs:
        """See ``pipeline.Port``."""
        return self._inputs[self._first[self._groups.running] + cell]

    def stage(self, cell: int, inputs: Sequence[Array]) -> None:
        """See ``pipeline.Port``."""
        put(self._name, self._inputs[self._first[self._groups.running] + cell], inputs)

    def outputs(self, cell: int) -> Outputs:
        """Owned copies of the outputs of a cell (numbered as in messages) that a slot has run.

        Raises:
            ModelFailed: an output has a NaN.
        """
        for flat in self._floats[cell]:
            least = np.minimum.reduce(flat)  # the cheapest operation that every NaN shows in, and only NaN
            if least != least:
                raise ModelFailed(f"model {self._name} returned NaN")
        return tuple([array.copy() for array in self._outputs[cell]])

    def move(self, cell: int, group: int) -> int:
        """Copy the inputs of a cell into the same place of another group; returns the new cell's number."""
        item = next(cell - first for first in self._first if first <= cell < first + self.parallel)
        there = self.cell(group, item)
        for old, new in zip(self._inputs[cell], self._inputs[there], strict=True):
            new[...] = old
        return there
