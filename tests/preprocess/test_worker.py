"""What a real worker does with a frame, whatever its pipeline does: one fate each, and the worker lives on."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from replica import PACKET_BYTES, Replica, descriptors, mappings, result, running, until
from tiny_models import write_double, write_picky

from framelane.preprocess.memory import STATE_BYTES
from framelane.preprocess.messages import Fate

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def replica(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replica]:
    models = tmp_path_factory.mktemp("models")
    write_double(models)
    write_picky(models)
    async with running("replica_pipelines:Commands", models, options={"greeting": "good morning"}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def the_worker_lives_on(replica: Replica) -> AsyncIterator[None]:
    before = replica.pool.workers[0].child.pid
    yield
    await until(lambda: replica.pool.free == 3)
    assert result(await replica.ask("double 4"))["doubled"] == [8.0] * 4
    assert replica.pool.workers[0].child.pid == before
    assert replica.pool.keeper.restarts == replica.slots.keeper.restarts == 0


# -- results ---------------------------------------------------------------------------------------------------------


async def test_a_result_carries_the_number_of_its_frame_and_the_pipelines_fields(replica: Replica) -> None:
    done = await replica.ask("echo ahoy", seq=2**53)
    assert done.fate is Fate.OK
    assert result(done) == {"seq": 2**53, "text": "ahoy", "greeting": "good morning"}
    assert done.message == ""


async def test_a_pipeline_cannot_change_the_number_of_its_frame(replica: Replica) -> None:
    assert result(await replica.ask("seq 999", seq=5)) == {"seq": 5}


async def test_outputs_are_copies_that_later_runs_leave_alone(replica: Replica) -> None:
    assert result(await replica.ask("chain 3 5"))["value"] == [96.0] * 4


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
async def test_map_runs_more_items_than_it_has_cells_in_turns(replica: Replica, count: int) -> None:
    assert result(await replica.ask(f"map {count}"))["doubled"] == [2 * number for number in range(count)]


async def test_frames_in_work_at_once_do_not_see_each_others_cells(replica: Replica) -> None:
    requests = [replica.submit(f"chain {start} {times}") for start, times in ((1, 9), (2, 6), (3, 3))]
    answers = [result(await replica.answer(request))["value"][0] for request in requests]
    assert answers == [512.0, 128.0, 24.0]


async def test_state_goes_in_and_comes_out_with_the_frame(replica: Replica) -> None:
    state = b""
    for count in (1, 2, 3):
        done = await replica.ask("count", state=state)
        assert result(done)["count"] == count
        state = done.state
    assert (await replica.ask("count")).state == b"1"  # another lane begins at nothing


async def test_state_of_an_earlier_frame_in_the_same_cell_is_not_seen(replica: Replica) -> None:
    for _ in range(4):
        assert (await replica.ask("count", state=b"41")).state == b"42"
    for _ in range(4):
        assert (await replica.ask("count")).state == b"1"


@pytest.mark.parametrize("size", [STATE_BYTES, 0])
async def test_the_largest_state_is_kept(replica: Replica, size: int) -> None:
    assert len((await replica.ask(f"state {size}")).state) == size


async def test_times_add_up(replica: Replica) -> None:
    done = await replica.ask("chain 1 3")
    assert 0 < done.inference_s < 10
    assert 0 < done.preprocess_s < 10


# -- faults of a pipeline --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "fate", "says"),
    [
        ("raise it is broken", Fate.FAILED, "ValueError: it is broken"),
        ("refuse no face in it", Fate.INVALID, "no face in it"),
        ("picky 250", Fate.FAILED, "the model's run failed"),
        ("shape 5", Fate.FAILED, "model double takes float32[4], not float32[5]"),
        ("sleep", Fate.FAILED, "a pipeline may only await its models, not NoneType"),
        ("list", Fate.FAILED, "TypeError"),
        ("object", Fate.FAILED, "a result cannot carry a value of type object"),
        (f"big {PACKET_BYTES}", Fate.FAILED, f"the limit is {PACKET_BYTES}"),
        (
            f"state {STATE_BYTES + 1}",
            Fate.FAILED,
            f"lane.state has {STATE_BYTES + 1} bytes; the limit is {STATE_BYTES}",
        ),
        ("unspeakable", Fate.FAILED, "a name of the file system: ?"),
        ("nonsense", Fate.FAILED, "do_nonsense"),
    ],
    ids=lambda value: str(value).split()[0],
)
async def test_a_fault_ends_its_frame_by_name_and_nothing_else(
    replica: Replica, frame: str, fate: Fate, says: str
) -> None:
    neighbour = replica.submit("chain 1 8")
    done = await replica.ask(frame, state=b"before")
    assert done.fate is fate
    assert says in done.message
    assert (done.packet, done.state) == (b"", b"")
    assert result(await replica.answer(neighbour))["value"][0] == 256.0


async def test_a_message_longer_than_a_packet_is_cut(replica: Replica) -> None:
    done = await replica.ask("raise " + "y" * (PACKET_BYTES + 100))
    assert done.fate is Fate.FAILED
    assert len(done.message) == PACKET_BYTES


async def test_a_pipeline_may_catch_that_its_model_failed(replica: Replica) -> None:
    assert result(await replica.ask("caught 250")) == {"seq": replica._seq, "caught": "ModelFailed"}


async def test_one_input_on_which_a_model_raises_fails_alone(replica: Replica) -> None:
    requests = [replica.submit(f"picky {number}") for number in (5, 250, 6)]
    answers = [await replica.answer(request) for request in requests]
    assert [answer.fate for answer in answers] == [Fate.OK, Fate.FAILED, Fate.OK]
    assert [result(answers[index])["value"] for index in (0, 2)] == [[15.0], [18.0]]


# -- deadlines and cancels -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def busy(replica: Replica, tmp_path: Path):
    """The worker is kept at one frame until the block ends."""
    gate = tmp_path / "gate"
    gate.touch()
    try:
        yield replica.submit(f"wait {gate}")
    finally:
        gate.unlink()


async def test_a_frame_past_its_deadline_is_not_begun(replica: Replica) -> None:
    assert (await replica.ask("echo late", lifetime=-0.001)).fate is Fate.EXPIRED


async def test_a_cancelled_frame_that_waits_is_not_begun(replica: Replica, tmp_path: Path) -> None:
    with busy(replica, tmp_path) as first:
        second = replica.submit("exit")  # beginning it would end the worker
        replica.pool.cancel(second)
    assert (await replica.answer(second)).fate is Fate.LEFT
    assert (await replica.answer(first)).fate is Fate.OK


async def test_cancels_of_frames_that_have_ended_or_never_were_are_nothing(replica: Replica) -> None:
    request = replica.submit("echo done")
    await replica.answer(request)
    replica.pool.cancel(request)
    replica.pool.cancel(request)
    replica.pool.cancel(10**9)
    assert (await replica.ask("echo next")).fate is Fate.OK
    assert len(replica.done[request]) == 1


@pytest.mark.parametrize("frame", ["chain 1 40", "map 40", "stubborn"])
async def test_a_frame_cancelled_at_any_time_ends_once(replica: Replica, frame: str) -> None:
    for turns in range(6):
        request = replica.submit(frame)
        for _ in range(turns):
            await asyncio.sleep(0)
        replica.pool.cancel(request)
        replica.pool.cancel(request)
        assert (await replica.answer(request)).fate in {Fate.LEFT, Fate.OK}


async def test_a_cancelled_frames_cells_are_not_used_again_before_they_are_back(replica: Replica) -> None:
    """All credits are cancelled while their runs are with the slot; the next frames in the same cells are right."""
    for value in range(1, 20):
        requests = [replica.submit(f"map {number}") for number in (20, 20, 20)]
        for request in requests:
            replica.pool.cancel(request)
        for request in requests:
            await replica.answer(request)
        assert result(await replica.ask(f"double {value}"))["doubled"] == [2.0 * value] * 4


# -- the process -----------------------------------------------------------------------------------------------------


async def test_a_worker_does_not_import_onnx_runtime(replica: Replica) -> None:
    pid = replica.pool.workers[0].child.pid
    assert mappings(pid, "onnxruntime") == 0
    assert mappings(pid, "numpy") > 0


async def test_a_worker_keeps_no_descriptor_per_frame(replica: Replica) -> None:
    pid = replica.pool.workers[0].child.pid
    before = descriptors(pid)
    for _ in range(50):
        await replica.ask("chain 1 2")
    assert descriptors(pid) == before


async def test_interrupts_that_reach_the_whole_group_do_not_end_a_worker(replica: Replica) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(replica.pool.workers[0].child.pid, number)
    assert (await replica.ask("echo alive")).fate is Fate.OK


async def test_inputs_are_what_the_frame_put_there(replica: Replica) -> None:
    values = np.random.default_rng(1).integers(0, 1000, 60)
    for value in values:
        assert result(await replica.ask(f"double {value}"))["doubled"] == [2.0 * value] * 4
