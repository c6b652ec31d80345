"""A worker's cells: each credit has its own group, and one that a stuck slot might write into is left alone."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framelane.models.errors import PipelineError
from framelane.models.registry import TensorSpec
from framelane.preprocess.links import ModelFailed
from framelane.preprocess.memory import Memory, ModelCells, Slab
from framelane.preprocess.ports import Groups, SlabPort
from framelane.preprocess.worker import Worker

CREDITS = 2


def port(parallel: int = 2, dtype: str = "float32") -> tuple[Groups, SlabPort, Slab]:
    cells = [ModelCells(parallel, (TensorSpec("x", dtype, (3,)),), (TensorSpec("y", dtype, (3,)),))]
    groups = Groups(CREDITS)
    slab = Slab(Memory.create("test", Slab.size(2 * CREDITS, cells)), cells)
    return groups, SlabPort(groups, slab, 0, "model"), slab


def test_what_is_staged_lies_in_the_cell_that_the_message_names() -> None:
    groups, made, slab = port()
    for group in range(2 * CREDITS):
        groups.running = group
        for item in range(2):
            made.stage(item, [np.full(3, 10 * group + item, np.float32)])
    for group in range(2 * CREDITS):
        for item in range(2):
            (given,), _ = slab.arrays(0, made.cell(group, item))
            assert given.tolist() == [[10 * group + item] * 3]


def test_lent_arrays_are_those_of_the_frame_that_runs() -> None:
    groups, made, slab = port()
    groups.running = 1
    made.lend(1)[0][:] = 5
    (given,), _ = slab.arrays(0, made.cell(1, 1))
    assert given.tolist() == [[5] * 3]
    with pytest.raises(PipelineError, match="model model takes"):
        made.stage(0, [np.zeros(4, np.float32)])


def test_outputs_are_copies() -> None:
    _, made, slab = port()
    _, (answer,) = slab.arrays(0, 0)
    answer[:] = 1
    (copy,) = made.outputs(0)
    answer[:] = 2
    assert copy.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_not_a_number_anywhere_fails_the_run_but_infinities_and_large_numbers_do_not(dtype: str) -> None:
    _, made, slab = port(dtype=dtype)
    _, (answer,) = slab.arrays(0, 0)
    with np.errstate(over="ignore"):
        for good in ([np.inf, 0, 1], [-np.inf, np.inf, 0], [np.finfo(dtype).max, np.finfo(dtype).min, 0]):
            answer[0] = good
            assert made.outputs(0)[0].tolist() == [np.dtype(dtype).type(number) for number in good]
    for place in range(3):
        answer[0] = 0
        answer[0, place] = np.nan
        with pytest.raises(ModelFailed, match="model model returned NaN"):
            made.outputs(0)


def test_whole_numbers_are_never_not_a_number() -> None:
    _, made, slab = port(dtype="uint8")
    slab.arrays(0, 0)[1][0][:] = 255
    assert made.outputs(0)[0].tolist() == [255] * 3


def test_a_group_that_was_exchanged_comes_back_only_when_its_holder_has_ended() -> None:
    groups = Groups(CREDITS)
    assert groups.exchange(0, "slot 1") == groups.of[0] == 3
    groups.release("slot 2")
    assert groups.exchange(1, "slot 1") == groups.of[1] == 2
    with pytest.raises(IndexError):
        groups.exchange(0, "slot 1")
    groups.release("slot 1")
    assert groups.exchange(0, "slot 3") in {0, 1}
    assert len({*groups.of}) == CREDITS


def test_moving_a_cell_copies_its_input_to_the_same_place_of_the_other_group() -> None:
    _, made, slab = port()
    old = made.cell(0, 1)
    slab.arrays(0, old)[0][0][:] = 7
    new = made.move(old, 3)
    assert new == made.cell(3, 1)
    assert slab.arrays(0, new)[0][0].tolist() == [[7] * 3]


class Task:
    message = SimpleNamespace(cell=0)


def test_two_items_of_a_frame_at_an_unkillable_slot_are_moved_to_one_other_group() -> None:
    task = Task()
    runs: list[Any] = [SimpleNamespace(task=task, model=0, cell=item) for item in range(2)]
    worker = Worker.__new__(Worker)
    groups, made, _ = port()
    worker._groups = groups
    worker._ports = [made]
    worker._links = SimpleNamespace(quarantine=lambda *_slot: runs, retry_parked=lambda _now: [])  # type: ignore[assignment]
    worker._config = SimpleNamespace(first_cell=0)  # type: ignore[assignment]
    worker._quarantine((1, 0))
    assert [run.cell for run in runs] == [made.cell(groups.of[0], item) for item in range(2)]
    assert groups.exchange(1, "another") != groups.of[0]  # one spare was taken, not two
