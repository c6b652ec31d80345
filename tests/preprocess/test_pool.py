"""The pool with real workers and slots: right answers, and what is left when a worker dies, hangs or cannot start."""

import asyncio
import importlib.resources
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from replica import Replica, descriptors, mappings, result, running, stop, until
from tiny_models import write_double, write_picky

from framelane.models.inline import Inline
from framelane.models.pipeline import load_pipeline
from framelane.models.registry import Registry
from framelane.preprocess import keeper as keeper_module
from framelane.preprocess import pool as pool_module
from framelane.preprocess.children import StartFailed
from framelane.preprocess.decode import ImageDecoder
from framelane.preprocess.headers import Limits
from framelane.preprocess.memory import Memory, MemoryShortage
from framelane.preprocess.messages import Fate

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    write_picky(folder)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def replica(models: Path) -> AsyncIterator[Replica]:
    """Two workers and one slot; tests that kill leave it whole again."""
    async with running("replica_pipelines:Commands", models, workers=2, credits=3) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def credits_are_derived_and_complete(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Replacements come at once here; after each test every cell is free and belongs to one worker."""
    monkeypatch.setattr(keeper_module, "restart_delay", lambda _failures: 0.0)
    yield
    await replica.whole()
    assert replica.pool.free == 6
    cells = sorted(cell for worker in replica.pool.workers.values() for cell in worker.cells)
    assert cells == list(range(6))
    assert replica.pool._holders == {}


# -- answers ---------------------------------------------------------------------------------------------------------


async def test_answers_equal_those_of_the_same_pipeline_in_process() -> None:
    picture = (importlib.resources.files("framelane.models") / "samples" / "astronaut.jpg").read_bytes()
    bare, state = Inline(load_pipeline("face_mesh"), Registry([]), ImageDecoder(Limits(max_bytes=1 << 20)))(picture)
    async with running("face_mesh", workers=2) as real:
        answers = [await real.answer(request) for request in [real.submit(picture) for _ in range(6)]]
    assert len(bare["faces"]) == 1
    for done in answers:
        (face,) = result(done)["faces"]
        np.testing.assert_allclose(face["box"], bare["faces"][0]["box"], atol=1e-3)
        np.testing.assert_allclose(face["landmarks"], bare["faces"][0]["landmarks"], atol=1e-2)
        assert done.state == state


async def test_under_load_every_answer_is_that_of_its_own_frame(replica: Replica) -> None:
    async def client(start: int) -> None:
        for times in range(12):
            done = await replica.ask(f"chain {start} {times}")
            assert result(done)["value"] == [float(start * 2**times)] * 4

    await asyncio.gather(*map(client, range(1, 17)))


async def test_frames_go_to_the_worker_with_the_most_credits(replica: Replica) -> None:
    requests = [replica.submit("chain 1 5") for _ in range(4)]
    assert [len(worker.jobs) for worker in replica.pool.workers.values()] == [2, 2]
    for request in requests:
        await replica.answer(request)


async def test_the_estimate_follows_the_time_from_submit_to_result(replica: Replica) -> None:
    replica.pool.estimate_s = 0.0
    await replica.ask("echo first")
    first = replica.pool.estimate_s
    assert 0 < first < 1
    await replica.ask("raise an end without a result does not count")
    assert replica.pool.estimate_s == first


# -- a worker's death ------------------------------------------------------------------------------------------------


async def test_a_killed_worker_fails_what_it_held_and_nothing_else(replica: Replica, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    requests = [replica.submit(f"wait {gate}") for _ in range(6)]
    victim = replica.pool.workers[0]
    held = set(victim.jobs)
    credits: list[int] = []
    replica.pool.on_credit, before = lambda: credits.append(replica.pool.free), replica.pool.on_credit
    victim.child.kill()
    for request in held:
        done = await replica.answer(request)
        assert (done.fate, done.message) == (Fate.FAILED, "its worker died")
    gate.unlink()
    for request in set(requests) - held:
        assert (await replica.answer(request)).fate is Fate.OK
    await replica.ended(victim)
    await replica.whole()
    assert len(held) == 3
    assert credits
    replica.pool.on_credit = before
    assert replica.pool.workers[0].generation == victim.generation + 1


async def test_results_that_a_worker_wrote_before_it_died_are_delivered(replica: Replica) -> None:
    """Its end of file comes after everything it wrote, and the loop has not looked before it is dead."""
    victim = replica.pool.workers[1]
    finished = victim.child.progress.read().done
    requests = [replica.submit(f"echo {number}") for number in range(6)]
    finished += len(victim.jobs)
    deadline = time.monotonic() + 10
    while victim.child.progress.read().done < finished:
        assert time.monotonic() < deadline  # nothing is read meanwhile: the loop does not turn
    assert len(victim.jobs) == 3
    victim.child.kill()
    for request in requests:
        assert (await replica.answer(request)).fate is Fate.OK
    await replica.ended(victim)
    await replica.whole()


async def test_killing_workers_again_and_again_under_load_loses_only_what_they_held(replica: Replica) -> None:
    failed = 0

    async def client(start: int) -> None:
        nonlocal failed
        times = 0
        while not killing.done():
            times = (times + 1) % 8
            done = await replica.ask(f"chain {start} {times}")
            if done.fate is Fate.FAILED:
                failed += 1
                assert done.message == "its worker died"
            else:
                assert result(done)["value"] == [float(start * 2**times)] * 4

    async def kill() -> None:
        for number in range(3):
            await until(lambda: len(replica.pool._holders) >= 2)
            await replica.kill(replica.pool.workers[number % 2])

    before = replica.pool.keeper.restarts
    killing = asyncio.ensure_future(kill())
    await asyncio.gather(killing, *map(client, range(1, 9)))
    assert replica.pool.keeper.restarts == before + 3
    assert failed <= 3 * 3


async def test_a_replaced_workers_memory_and_descriptors_come_back(replica: Replica) -> None:
    slot = replica.slots.slots[0].child.pid
    await until(lambda: mappings(slot, "memfd:framelane-slab") == 2)
    before = descriptors(), descriptors(slot)
    for index in (0, 1):
        await replica.ask("double 1")
        await replica.kill(replica.pool.workers[index])
    for value in range(8):
        assert result(await replica.ask(f"double {value}"))["doubled"][0] == 2.0 * value
    await until(lambda: mappings(slot, "memfd:framelane-slab") == 2 and (descriptors(), descriptors(slot)) == before)


@pytest.mark.parametrize(("command", "suspected"), [("crash", False), ("exit", True)])
async def test_a_worker_that_its_own_pipeline_ends_is_replaced(replica: Replica, command: str, suspected: bool) -> None:
    """Where it was killed, somebody else may have done it."""
    request = replica.submit(command)
    worker = replica.pool._holders[request]
    done = await replica.answer(request)
    assert (done.fate, done.message, done.fatal) == (Fate.FAILED, "its worker died", True)
    assert done.suspected is suspected
    await replica.ended(worker)


async def test_a_process_that_a_dead_worker_forked_does_not_stop_the_gateway(replica: Replica) -> None:
    """It holds the dead worker's channel open, so no end of file ever comes."""
    request = replica.submit("fork")
    worker = replica.pool._holders[request]
    forked = result(await replica.answer(request))["pid"]
    try:
        await replica.kill(worker)
        assert (await replica.ask("double 3")).fate is Fate.OK
    finally:
        os.kill(forked, signal.SIGKILL)


async def test_a_frame_cancelled_on_a_worker_that_has_just_died_ends_once(replica: Replica, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    request = replica.submit(f"wait {gate}")
    worker = replica.pool._holders[request]
    worker.child.kill()
    replica.pool.cancel(request)
    assert (await replica.answer(request)).fate is Fate.FAILED
    replica.pool.cancel(request)
    await replica.ended(worker)
    await replica.whole()


async def test_a_parked_spare_takes_a_dead_workers_place_at_once(models: Path) -> None:
    async with running("replica_pipelines:Commands", models, workers=1, spares=1) as real:
        assert sorted(worker.state for worker in real.pool.workers.values()) == ["active", "parked"]
        (active,) = [worker for worker in real.pool.workers.values() if worker.serving]
        (parked,) = [worker for worker in real.pool.workers.values() if not worker.serving]
        assert real.pool.free == 3
        active.child.kill()
        await until(lambda: parked.serving)
        assert not parked.jobs
        assert result(await real.ask("double 5"))["doubled"] == [10.0] * 4
        await real.whole()
        assert [worker.serving for worker in real.pool.workers.values()].count(True) == 1


async def test_a_replacement_that_cannot_be_had_now_is_tried_again(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running("replica_pipelines:Commands", models, workers=1) as real:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        create = Memory.create

        def refuse_once(name: str, size: int) -> Memory:
            monkeypatch.setattr(pool_module.Memory, "create", create)
            raise MemoryShortage("not now")

        monkeypatch.setattr(pool_module.Memory, "create", refuse_once)
        pid = real.pool.workers[0].child.pid
        os.kill(pid, signal.SIGKILL)
        try:
            await until(lambda: 0 in real.pool.workers and real.pool.workers[0].child.pid != pid)
        finally:
            asyncio.get_running_loop().set_exception_handler(None)


async def test_more_items_at_once_than_a_socket_holds_messages_are_refused_at_start(models: Path) -> None:
    with pytest.raises(StartFailed, match=r"2 credits x Model\(parallel=400\)"):
        Replica("replica_pipelines:Wide", models, credits=2)


# -- stopping --------------------------------------------------------------------------------------------------------


async def test_frames_in_work_are_finished_when_the_pool_stops(models: Path) -> None:
    real = Replica("replica_pipelines:Commands", models)
    await asyncio.gather(real.pool.start(), real.slots.start())
    requests = [real.submit("chain 1 10") for _ in range(3)]
    await stop(real)
    assert [result(await real.answer(request))["value"][0] for request in requests] == [1024.0] * 3
    real.assert_each_ended_once()


async def test_a_worker_that_does_not_finish_in_time_is_killed_and_its_frames_fail(
    models: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    before = descriptors()
    real = Replica("replica_pipelines:Commands", models)
    await asyncio.gather(real.pool.start(), real.slots.start())
    requests = [real.submit(f"wait {gate}") for _ in range(3)]
    await stop(real, limit_s=0.05)
    assert [(await real.answer(request)).fate for request in requests] == [Fate.FAILED] * 3
    real.assert_each_ended_once()
    del real
    assert descriptors() == before


async def test_a_pool_that_never_started_can_be_stopped(models: Path) -> None:
    real = Replica("replica_pipelines:Commands", models)
    await stop(real)


# -- starting --------------------------------------------------------------------------------------------------------


async def test_a_worker_that_ends_before_it_is_ready_fails_the_start(models: Path) -> None:
    real = Replica("replica_pipelines:Commands", models, workers=2)
    starting = asyncio.gather(real.pool.start(), real.slots.start())
    await asyncio.sleep(0)
    real.pool.workers[1].child.kill()
    with pytest.raises(StartFailed, match=r"worker-1: ended with status -9 before it was ready"):
        await starting
    await stop(real)
