"""Histograms in shared memory: what a process counts, another one reads, also after it has been replaced."""

import pytest

from framelane.preprocess.memory import Memory
from framelane.preprocess.progress import PAGE_BYTES, ProgressPage
from framelane.preprocess.stages import EDGES_S, NO_STAGE, STAGES_BYTES, Stage, StagePage, Tally


def test_each_stage_of_a_frame_is_counted_in_its_own_histogram() -> None:
    page = StagePage(memoryview(bytearray(STAGES_BYTES)))
    page.answered(0.0001, 0.0015, 0.3, 0.008, 100.0)
    page.answered(0.0001, 0.0015, 0.3, 0.008, 100.0)
    found = {stage: page.stage(stage) for stage in Stage if stage not in (Stage.QUEUE, Stage.DELIVER)}
    assert [tally.entries for tally in found.values()] == [2] * 5
    assert [tally.sum for tally in found.values()] == pytest.approx([0.0002, 0.003, 0.6, 0.016, 200.0])
    assert found[Stage.WORKER_WAIT].buckets[0] == 2, "an edge belongs to the bucket below it"
    assert found[Stage.SLOT_WAIT].buckets[EDGES_S.index(0.5)] == 2
    assert found[Stage.POSTPROCESS].buckets[-1] == 2
    assert page.batches().entries == 0


def test_runs_are_counted_by_their_items() -> None:
    page = StagePage(memoryview(bytearray(STAGES_BYTES)))
    for batch in (1, 1, 3, 4, 100):
        page.ran(batch)
    assert page.batches() == Tally((2, 0, 2, 0, 0, 0, 0, 1), 109.0)
    assert page.stage(Stage.WORKER_WAIT) == NO_STAGE


def test_tallies_add_up() -> None:
    assert sum([Tally((1, 2), 0.5), Tally((0, 3), 1.5)], Tally((0, 0), 0.0)) == Tally((1, 5), 2.0)


def test_pages_do_not_overlap_and_another_mapping_reads_them() -> None:
    memory = Memory.create("pages", 3 * PAGE_BYTES)
    pages = [ProgressPage(memory.view, index) for index in range(3)]
    pages[1].stages.answered(0.1, 0.1, 0.1, 0.1, 0.1)
    pages[1].stages.ran(64)
    others = Memory.attach(memory.fd)
    assert ProgressPage(others.view, 1).stages.batches().sum == 64
    for index in (0, 2):
        assert ProgressPage(others.view, index).stages.batches().entries == 0
        assert ProgressPage(others.view, index).stages.stage(Stage.WORKER_WAIT).entries == 0
