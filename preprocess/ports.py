"""How a pipeline in a worker reaches its tensor cells: the worker's implementation of ``models.pipeline.Port``."""

from __future__ import annotations

from collections.abc import Sequence

from framelane.models.inline import put
from framelane.models.pipeline import Array, Outputs

from .memory import Slab


class Desk:
    """Whose turn it is: the credit of the frame that the worker runs at this moment."""

    __slots__ = ("credit",)

    def __init__(self) -> None:
        self.credit = 0


class SlabPort:
    """One model's cells in the slab of this worker, for every credit.

    Args:
        desk: says whose frame runs now.
        slab: the worker's tensor cells.
        index: the model's place in the slab.
        name: the model's name, for errors.
        credits: how many frames may be in work.
    """

    def __init__(self, desk: Desk, slab: Slab, index: int, name: str, credits: int) -> None:
        self.parallel = slab.models[index].parallel
        self.index = index
        self._desk = desk
        self._name = name
        self._inputs: list[list[Outputs]] = []
        self._outputs: dict[int, Outputs] = {}
        for credit in range(credits):
            cells = [slab.cell(credit, index, item) for item in range(self.parallel)]
            arrays = [slab.arrays(index, cell) for cell in cells]
            self._inputs.append([tuple(array[0] for array in inputs) for inputs, _ in arrays])
            for cell, (_, outputs) in zip(cells, arrays, strict=True):
                self._outputs[cell] = tuple(array[0] for array in outputs)

    def lend(self, cell: int) -> Outputs:
        """See ``pipeline.Port``."""
        return self._inputs[self._desk.credit][cell]

    def stage(self, cell: int, inputs: Sequence[Array]) -> None:
        """See ``pipeline.Port``."""
        put(self._name, self._inputs[self._desk.credit][cell], inputs)

    def outputs(self, cell: int) -> Outputs:
        """Owned copies of the outputs of a cell (numbered as in messages) that a slot has run."""
        return tuple([array.copy() for array in self._outputs[cell]])
