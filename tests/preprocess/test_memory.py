"""Shared memory: who may overlap (nobody), where it lives (nowhere), and when it goes (with the last process)."""

import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framelane.models.registry import TensorSpec
from framelane.preprocess.memory import STATE_BYTES, FrameCells, Memory, MemoryShortage, ModelCells, Slab, aligned

TENSORS = st.builds(
    TensorSpec,
    name=st.just("t"),
    dtype=st.sampled_from(["bool", "uint8", "int16", "float16", "float32", "float64", "int64"]),
    shape=st.lists(st.integers(1, 7), max_size=3).map(tuple),
)
MODELS = st.lists(
    st.builds(
        ModelCells,
        parallel=st.integers(1, 3),
        inputs=st.lists(TENSORS, min_size=1, max_size=2).map(tuple),
        outputs=st.lists(TENSORS, min_size=1, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=3,
)


def tensor(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec("t", dtype, shape)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


# -- geometry --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000_000))
def test_aligned_is_the_next_whole_cache_line(size: int) -> None:
    assert aligned(size) % 64 == 0
    assert 0 <= aligned(size) - size < 64


@settings(deadline=None, max_examples=40)
@given(cells=st.integers(1, 4), frame_bytes=st.integers(1, 5000), packet_bytes=st.integers(1, 5000))
def test_parts_of_frame_cells_never_overlap(cells: int, frame_bytes: int, packet_bytes: int) -> None:
    memory = Memory.create("test", FrameCells.size(cells, frame_bytes, packet_bytes))
    frames = FrameCells(memory, frame_bytes, packet_bytes)
    parts = [
        (part, cell, length)
        for cell in range(cells)
        for part, length in ((frames.frame, frame_bytes), (frames.state, STATE_BYTES), (frames.packet, packet_bytes))
    ]
    for number, (part, cell, length) in enumerate(parts, 1):
        assert len(part(cell, length)) == length
        part(cell, length)[:] = bytes([number]) * length
    for number, (part, cell, length) in enumerate(parts, 1):
        assert part(cell, length) == bytes([number]) * length
    memory.close()


@settings(deadline=None, max_examples=60)
@given(models=MODELS, credits=st.integers(1, 4))
def test_tensor_cells_never_overlap_and_are_numbered_once(models: list[ModelCells], credits: int) -> None:
    memory = Memory.create("test", Slab.size(credits, models))
    slab = Slab(memory, models)
    base = np.frombuffer(memory.view, np.uint8).__array_interface__["data"][0]
    taken: list[tuple[int, int]] = []
    numbers: list[int] = []
    for credit in range(credits):
        for index, model in enumerate(models):
            for item in range(model.parallel):
                cell = slab.cell(credit, index, item)
                numbers.append(cell)
                inputs, outputs = slab.arrays(index, cell)
                for spec, array in zip((*model.inputs, *model.outputs), (*inputs, *outputs), strict=True):
                    assert array.shape == (1, *spec.shape)
                    assert array.dtype == spec.dtype
                    start = array.__array_interface__["data"][0] - base
                    assert start % 64 == 0
                    taken.append((start, start + spec.nbytes))
    taken.sort()
    assert taken[0][0] >= 0
    assert taken[-1][1] <= memory.size
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(taken))
    assert sorted(numbers) == list(range(len(numbers)))
    del inputs, outputs, array
    memory.close()


def test_a_pipeline_without_models_still_has_a_slab() -> None:
    memory = Memory.create("test", Slab.size(3, []))
    Slab(memory, [])
    memory.close()


# -- mappings --------------------------------------------------------------------------------------------------------


def test_two_mappings_of_a_slab_share_their_arrays_without_a_copy() -> None:
    models = [ModelCells(2, (tensor("uint8", 3, 4),), (tensor("float32", 5), tensor("float32")))]
    ours = Memory.create("test", Slab.size(2, models))
    theirs = Memory.attach(os.dup(ours.fd))
    here, there = Slab(ours, models), Slab(theirs, models)
    cell = here.cell(1, 0, 1)
    (image,), (scores, count) = here.arrays(0, cell)
    (seen,), (written, number) = there.arrays(0, cell)
    image[:] = np.arange(12).reshape(1, 3, 4)
    written[:] = 0.5
    number[:] = 7
    assert seen.tolist() == image.tolist()
    assert scores.tolist() == [[0.5] * 5]
    assert count.tolist() == [7]


def test_memory_is_zeroed_and_all_of_it_is_there() -> None:
    memory = Memory.create("test", 1 << 20)
    assert memory.view == bytes(1 << 20)
    assert os.fstat(memory.fd).st_blocks * 512 >= 1 << 20  # allocated, not sparse
    memory.close()


def test_memory_has_no_name_that_outlives_it() -> None:
    memory = Memory.create("test", 4096)
    assert os.readlink(f"/proc/self/fd/{memory.fd}").startswith("/memfd:framelane-test")
    assert not any("framelane" in name for name in os.listdir("/dev/shm"))
    memory.close()


def test_memory_is_not_inherited_unless_it_is_handed_on() -> None:
    memory = Memory.create("test", 4096)
    assert not os.get_inheritable(memory.fd)
    memory.close()


@pytest.mark.parametrize("limited", [resource.RLIMIT_FSIZE, resource.RLIMIT_AS])
def test_memory_that_cannot_be_had_is_an_error_with_the_size_and_leaks_nothing(limited: int) -> None:
    """The kernel refuses the pages (a limit on files) or the mapping (a limit on addresses)."""
    before = open_descriptors()
    soft, hard = resource.getrlimit(limited)
    resource.setrlimit(limited, (1 << 20, hard))
    try:
        with pytest.raises(MemoryShortage) as caught:
            Memory.create("slab-3", 4 << 20)
    finally:
        resource.setrlimit(limited, (soft, hard))
    assert "cannot allocate 4.0 MiB of shared memory for slab-3" in str(caught.value)
    assert open_descriptors() == before


def test_closing_returns_descriptors_and_mapping() -> None:
    before = open_descriptors()
    memory = Memory.create("returned", 8 << 20)
    memory.close()
    assert open_descriptors() == before
    assert "memfd:framelane-returned" not in Path("/proc/self/maps").read_text()


def test_closing_under_a_view_keeps_the_view_usable_and_the_mapping_goes_with_it() -> None:
    models = [ModelCells(1, (tensor("uint8", 8),), (tensor("uint8", 8),))]
    before = open_descriptors()
    memory = Memory.create("viewed", Slab.size(1, models))
    (array,), _ = Slab(memory, models).arrays(0, 0)
    memory.close()
    array[:] = 9
    assert array.tolist() == [[9] * 8]
    del array, memory, _
    assert open_descriptors() == before
    assert "memfd:framelane-viewed" not in Path("/proc/self/maps").read_text()


def test_memory_vanishes_when_its_process_is_killed() -> None:
    """SIGKILL leaves nothing to tidy up: the last mapping was the dead process's."""
    script = (
        "import time\n"
        "from framelane.preprocess.memory import Memory\n"
        "memory = Memory.create('victim', 1 << 22)\n"
        "memory.view[:4] = b'here'\n"
        "print(memory.fd, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        descriptor = int(process.stdout.readline())
        held = os.open(f"/proc/{process.pid}/fd/{descriptor}", os.O_RDONLY)
        process.kill()
        process.wait()
    assert os.pread(held, 4, 0) == b"here"  # a descriptor that somebody else holds is still good
    os.close(held)
    assert not any("framelane-victim" in name for name in os.listdir("/dev/shm"))
