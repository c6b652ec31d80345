"""The progress page: what the gateway reads of a process without a message."""

import pytest

from framelane.preprocess.memory import Memory
from framelane.preprocess.progress import PAGE_BYTES, Progress, ProgressPage


def test_a_new_page_reads_as_idle() -> None:
    assert ProgressPage(memoryview(bytearray(PAGE_BYTES)), 0).read() == Progress(0, 0, 0.0, 0.0, 0, 0)


def test_every_field_says_what_its_writer_did() -> None:
    page = ProgressPage(memoryview(bytearray(PAGE_BYTES)), 0)
    page.turn()
    page.awake(10.0)
    page.start(2**40 + 5, 10.5)
    page.wait(3)
    assert page.read() == Progress(1, 2**40 + 5, 10.5, 0.0, 3, 0, 10.0)
    assert page.read().busy_at(11.5) == 1.5
    page.finish(2)
    page.asleep(12.0)
    assert page.read() == Progress(1, 0, 10.5, 2.0, 3, 2)
    assert page.read().waiting == 3


def test_busy_time_adds_up_over_turns_and_leaves_out_the_waiting() -> None:
    page = ProgressPage(memoryview(bytearray(PAGE_BYTES)), 0)
    for start in (1.0, 5.0, 100.0):
        page.turn()
        page.awake(start)
        page.asleep(start + 0.25)
    assert page.read().busy == pytest.approx(0.75)
    assert page.read().loops == 3


def test_pages_are_apart() -> None:
    view = memoryview(bytearray(4 * PAGE_BYTES))
    pages = [ProgressPage(view, index) for index in range(4)]
    for index, page in enumerate(pages):
        page.start(index + 1, 0.0)
        page.wait(index + 10)
    pages[2].clear()
    assert [page.read().request for page in pages] == [1, 2, 0, 4]
    assert [page.read().waiting for page in pages] == [10, 11, 0, 13]


def test_a_page_that_another_process_takes_over_goes_on_counting_and_forgets_the_rest() -> None:
    page = ProgressPage(memoryview(bytearray(PAGE_BYTES)), 0)
    page.turn()
    page.awake(1.0)
    page.asleep(3.0)
    page.awake(4.0)
    page.start(77, 4.0)
    page.finish()
    page.start(78, 5.0)
    page.wait(2)
    page.stages.ran(4)
    page.clear()
    assert page.read() == Progress(0, 0, 0.0, 2.0, 0, 1)
    assert page.stages.batches().sum == 4


def test_another_mapping_reads_what_was_written() -> None:
    ours = Memory.create("pages", 2 * PAGE_BYTES)
    theirs = Memory.attach(ours.fd)
    ProgressPage(ours.view, 1).start(77, 1.5)
    assert ProgressPage(theirs.view, 1).read().request == 77
    assert ProgressPage(theirs.view, 0).read().request == 0
