"""Slots that die or cannot start, under load, with real workers in front of them: what is lost, and what is not."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from fragile_slot import POISON
from replica import HERE, Replica, descriptors, mappings, result, running, stop, until
from tiny_models import write_double, write_picky

from framelane.models.errors import ModelError, UnknownModelError
from framelane.models.locks import ByteLocks
from framelane.preprocess import keeper as keeper_module
from framelane.preprocess.children import StartFailed
from framelane.preprocess.messages import Fate
from framelane.server.slots import supervisor as supervisor_module
from framelane.server.slots.permits import Permits
from framelane.server.slots.states import State
from framelane.server.slots.supervisor import SlotRefused

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    write_picky(folder)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def replica(models: Path) -> AsyncIterator[Replica]:
    """Two workers, an active slot and a standby."""
    async with running("replica_pipelines:Numbers", models, workers=2, active=1, standby=1) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def no_back_off(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Replacements come at once, and the next test finds the replica whole."""
    monkeypatch.setattr(supervisor_module, "_REPLACE_AFTER_S", 0.0)
    monkeypatch.setattr(keeper_module, "restart_delay", lambda _failures: 0.0)
    yield
    await replica.whole()


def right(number: int) -> list[int]:
    return [8 * number, 2 * number]


async def load(replica: Replica, until_done: Awaitable[None], clients: int = 8) -> int:
    """Closed-loop clients until something is done; every answer must be right. Returns how many there were."""
    doing = asyncio.ensure_future(until_done)
    count = 0

    async def client(number: int) -> None:
        nonlocal count
        while not doing.done():
            done = await replica.ask(str(number))
            assert done.fate is Fate.OK, done
            assert result(done)["values"] == right(number)
            count += 1
            number += clients

    await asyncio.gather(doing, *map(client, range(1, clients + 1)))
    return count


# -- deaths under load -----------------------------------------------------------------------------------------------


async def test_a_killed_active_slot_loses_no_frame_and_a_standby_takes_over(replica: Replica) -> None:
    async def kill() -> None:
        for _ in range(3):
            (active,) = replica.slots.active
            (standby,) = replica.slots.of(State.STANDBY)
            active.child.kill()
            await until(lambda: replica.slots.active == [standby])  # noqa: B023
            await until(lambda: replica.slots.of(State.STANDBY))

    before = replica.slots.promotions
    assert await load(replica, kill()) > 20
    assert replica.slots.promotions == before + 3


async def test_a_killed_standby_changes_nothing_for_anybody(replica: Replica) -> None:
    (active,) = replica.slots.active
    (standby,) = replica.slots.of(State.STANDBY)
    await load(replica, replica.kill(standby))
    assert replica.slots.active == [active]


@pytest.mark.parametrize("active", [1, 2])
async def test_without_a_standby_frames_wait_for_the_replacement(models: Path, active: int) -> None:
    async with running("replica_pipelines:Numbers", models, workers=2, active=active) as real:

        async def kill() -> None:
            await real.kill(real.slots.slots[active - 1])

        await load(real, kill())
        assert real.slots.keeper.restarts == 1


async def test_all_slots_killed_at_once_lose_no_frame(replica: Replica) -> None:
    await load(replica, replica.kill(*replica.slots.slots.values()))


async def test_frames_whose_deadline_passes_while_no_slot_is_there_expire(replica: Replica) -> None:
    for slot in replica.slots.slots.values():
        slot.child.kill()
    await until(lambda: not replica.slots.active)
    requests = [replica.submit("5", lifetime=0.03) for _ in range(3)]
    fates = {(await replica.answer(request)).fate for request in requests}
    assert fates <= {Fate.EXPIRED, Fate.OK}
    await replica.whole()


async def test_a_slot_and_a_worker_that_die_together_leave_the_other_worker_unharmed(replica: Replica) -> None:
    for _ in range(2):
        (active,) = replica.slots.active
        worker = replica.pool.workers[0]
        requests = [replica.submit(str(number)) for number in range(6)]
        held = set(worker.jobs)
        os.kill(worker.child.pid, signal.SIGKILL)
        os.kill(active.child.pid, signal.SIGKILL)
        for number, request in enumerate(requests):
            done = await replica.answer(request)
            if done.fate is Fate.FAILED:
                assert request in held
                assert done.message == "its worker died"
            else:
                assert result(done)["values"] == right(number)
        await replica.ended(worker, active)
        await replica.whole()


async def test_slots_and_workers_killed_in_any_order_leave_every_frame_with_one_fate(replica: Replica) -> None:
    async def client(number: int) -> None:
        while not killing.done():
            done = await replica.ask(str(number))
            assert done.fate in {Fate.OK, Fate.FAILED}
            if done.fate is Fate.OK:
                assert result(done)["values"] == right(number)
            else:
                assert done.message == "its worker died"

    async def kill() -> None:
        for number in range(4):
            processes = [*replica.pool.workers.values(), *replica.slots.slots.values()]
            await replica.kill(processes[(number * 3) % 4], processes[(number * 3 + 2) % 4])

    killing = asyncio.ensure_future(kill())
    await asyncio.gather(killing, *map(client, range(1, 7)))


async def test_nothing_is_kept_of_slots_that_were_replaced(replica: Replica) -> None:
    workers = [worker.child.pid for worker in replica.pool.workers.values()]
    await replica.ask("1")
    before = [descriptors(), *map(descriptors, workers)]
    for _ in range(3):
        await replica.kill(replica.slots.active[0])
        await replica.ask("1")
    await until(lambda: [descriptors(), *map(descriptors, workers)] == before)


async def test_a_new_slot_maps_each_workers_memory_once(replica: Replica) -> None:
    await replica.kill(replica.slots.active[0])
    for slot in replica.slots.slots.values():
        await until(lambda: mappings(slot.child.pid, "memfd:framelane-slab") == 2)  # noqa: B023


# -- poison ----------------------------------------------------------------------------------------------------------


async def test_a_poisonous_frame_ends_failed_after_its_second_slot_and_harms_no_other(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setattr(supervisor_module, "_MODULE", "fragile_slot")
    async with running("replica_pipelines:Numbers", models, workers=2, credits=4, active=2) as real:
        requests = {number: real.submit(str(number)) for number in (1, 2, 3, POISON, 5, 6, 7, 8)}
        for number, request in requests.items():
            done = await real.answer(request)
            if number == POISON:
                assert done.fate is Fate.FAILED
                assert (done.fatal, done.suspected) == (True, False)
                assert "2 slots ended while they ran it" in done.message
            else:
                assert result(done)["values"] == right(number)
        await real.whole()
        assert real.slots.keeper.restarts == 2
        assert result(await real.ask("9"))["values"] == right(9)


async def test_one_slot_that_ends_is_no_proof_against_the_frame_that_it_had(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have killed it, and no other slot could tell in time."""
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setattr(supervisor_module, "_MODULE", "fragile_slot")
    async with running("replica_pipelines:Numbers", models, workers=1, active=1) as real:
        done = await real.answer(real.submit(str(POISON), lifetime=0.1))
        assert (done.fate, done.fatal, done.suspected) == (Fate.FAILED, True, True)
        await real.whole()


async def test_one_poisonous_item_of_a_batch_fails_alone(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole batch is suspected, and sent again one by one: only the poison meets its second death."""
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setattr(supervisor_module, "_MODULE", "fragile_slot")
    monkeypatch.setenv("FRAGILE_BATCH", "8")
    async with running("replica_pipelines:Numbers", models, workers=2, credits=8, active=1) as real:
        numbers = [POISON if number == 5 else number for number in range(16)]
        requests = [real.submit(str(number)) for number in numbers]
        for number, request in zip(numbers, requests, strict=True):
            done = await real.answer(request)
            assert done.fate is (Fate.FAILED if number == POISON else Fate.OK), (number, done)
        assert real.slots.keeper.restarts == 2


@pytest.mark.parametrize(
    ("verb", "bad", "message"),
    [("picky", "250", "the model's run failed"), ("double", "nan", "model double returned NaN")],
)
async def test_one_item_of_a_batch_that_fails_its_run_or_gives_nan_fails_alone(
    models: Path, monkeypatch: pytest.MonkeyPatch, verb: str, bad: str, message: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setattr(supervisor_module, "_MODULE", "fragile_slot")
    monkeypatch.setenv("FRAGILE_BATCH", "8")
    async with running("replica_pipelines:Commands", models, workers=1, credits=16, active=1) as real:
        requests = [real.submit(f"{verb} {bad if number == 5 else number}") for number in range(16)]
        ends = [await real.answer(request) for request in requests]
        assert [done.fate for done in ends] == [Fate.FAILED if number == 5 else Fate.OK for number in range(16)]
        assert message in ends[5].message
        assert not ends[5].fatal
        assert real.slots.keeper.restarts == 0


# -- operators -------------------------------------------------------------------------------------------------------


async def test_no_more_than_the_active_runs_go_on_at_once_while_routes_change(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated card counts: each run holds a lock of the group."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    device = "sim:2:group=counted:tax=1,1,1"
    async with running("replica_pipelines:Numbers", models, workers=2, active=1, standby=1, device=device) as real:
        card = ByteLocks("sim-counted")
        most = 0

        async def client() -> None:
            while not changing.done():
                assert (await real.ask("1")).fate is Fate.OK

        async def count() -> None:
            nonlocal most
            while not changing.done():
                most = max(most, card.held_by_others(64))
                await asyncio.sleep(0)

        async def change() -> None:
            for _ in range(12):
                (standby,) = real.slots.of(State.STANDBY)
                real.slots.promote(standby.index)
                await until(lambda: real.slots.active == [standby])  # noqa: B023

        changing = asyncio.ensure_future(change())
        await asyncio.gather(changing, count(), *[client() for _ in range(6)])
        card.close()
        assert most == 1


async def test_a_restarted_active_slot_hands_over_first_and_loses_nothing(replica: Replica) -> None:
    async def restart() -> None:
        (active,) = replica.slots.active
        replica.slots.restart(active.index)
        await replica.ended(active)
        await replica.whole()

    await load(replica, restart())


async def test_a_promotion_says_nothing_about_who_is_next(models: Path) -> None:
    async with running("replica_pipelines:Numbers", models, active=1, standby=2) as real:
        if real.slots.active[0].index != 0:  # whichever was ready first
            real.slots.promote(0)
            await until(lambda: [slot.index for slot in real.slots.active] == [0])
        real.slots.promote(2)
        await until(lambda: [slot.index for slot in real.slots.active] == [2])
        await real.kill(real.slots.slots[2])
        assert [slot.index for slot in real.slots.active] == [0]
        real.slots.restart(0)  # slot-2 is a standby like any other by now
        await until(lambda: real.slots.active and real.slots.active[0].index != 0)
        assert real.slots.active[0].index == 1
        await real.whole()


async def test_verbs_that_would_leave_no_active_slot_are_refused_with_the_reason(replica: Replica) -> None:
    (active,) = replica.slots.active
    (standby,) = replica.slots.of(State.STANDBY)
    replica.slots.drain(active.index)
    await until(lambda: replica.slots.active == [standby])
    with pytest.raises(SlotRefused, match=f"slot-{standby.index} is the only one that serves"):
        replica.slots.drain(standby.index)
    with pytest.raises(SlotRefused, match=f"slot-{standby.index} is the only one that serves"):
        replica.slots.restart(standby.index)
    with pytest.raises(SlotRefused, match="there is no slot-7"):
        replica.slots.promote(7)
    with pytest.raises(SlotRefused, match="only a standby can be promoted"):
        replica.slots.promote(standby.index)
    assert (await replica.ask("3")).fate is Fate.OK
    replica.slots.promote(active.index)
    await until(lambda: replica.slots.active == [active])


# -- hanging, and merely waiting ---------------------------------------------------------------------------------------


async def test_a_slot_that_waits_for_a_permit_of_its_device_does_not_hang(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped slot of one replica may hold the permit; the others' slots must not be killed, nor frames be blamed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    real = Replica("replica_pipelines:Numbers", models, active=1, permits=1, hang_s=0.5)
    await asyncio.gather(real.pool.start(), real.slots.start())
    elsewhere = Permits("cpu", 1)
    place = elsewhere.acquire(lambda: None)
    try:
        request = real.submit("3")
        held_until = time.monotonic() + 1.2
        while time.monotonic() < held_until:
            real.slots.check(time.monotonic())
            await asyncio.sleep(0.01)
    finally:
        elsewhere.release(place)
    try:
        done = await real.answer(request)
        assert done.fate is Fate.OK, done
        assert real.slots.hangs == 0
    finally:
        await stop(real)


# -- starting --------------------------------------------------------------------------------------------------------


async def test_a_worker_and_a_slot_that_start_together_meet(replica: Replica) -> None:
    """The slot opens its models for much longer than the worker takes; its introduction waits in its socket."""
    (standby,) = replica.slots.of(State.STANDBY)
    worker = replica.pool.workers[0]
    await replica.kill(standby, worker)
    slot = replica.slots.slots[standby.index]
    await until(lambda: mappings(slot.child.pid, "memfd:framelane-slab") == 2)
    if slot.state is not State.ACTIVE:
        replica.slots.promote(slot.index)
    await until(lambda: replica.slots.active == [slot])
    assert [result(await replica.ask(str(number)))["values"] for number in range(6)] == list(map(right, range(6)))


async def start_fails(replica: Replica) -> str:
    with pytest.raises(StartFailed) as caught:
        await replica.slots.start()
    await stop(replica)
    return caught.value.message


async def test_a_toml_that_disagrees_with_the_onnx_file_fails_the_start_with_both_sides(tmp_path: Path) -> None:
    tables = '[[{}]]\nname = "{}"\ndtype = "float32"\nshape = [{}]\n'
    write_double(tmp_path, toml=tables.format("inputs", "x", 9) + tables.format("outputs", "y", 4))
    message = await start_fails(Replica("replica_pipelines:Numbers", tmp_path))
    assert "slot-0: model double: model.toml says inputs x float32[9], but model.onnx has x float32[4]" in message


async def test_a_device_that_cannot_be_had_fails_the_start_with_the_cure(models: Path) -> None:
    message = await start_fails(Replica("replica_pipelines:Numbers", models, device="cuda:0"))
    assert "device cuda:0" in message
    assert "framelane[gpu]" in message


async def test_a_slot_that_is_killed_before_it_is_ready_fails_the_start(models: Path) -> None:
    real = Replica("replica_pipelines:Numbers", models, active=2)
    starting = asyncio.ensure_future(real.slots.start())
    await asyncio.sleep(0)
    real.slots.slots[1].child.kill()
    with pytest.raises(StartFailed, match="slot-1: ended with status -9 before it was ready"):
        await starting
    await stop(real)


async def test_a_missing_model_and_a_wrong_hash_are_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="no model 'nobody_has_it'"):
        Replica("replica_pipelines:WantsUnknownModel")
    write_double(tmp_path)
    (tmp_path / "double" / "model.onnx").write_bytes(b"exchanged")
    with pytest.raises(ModelError, match=r"model\.onnx has sha256 [0-9a-f]{64}, but .*model\.toml states"):
        Replica("replica_pipelines:Numbers", tmp_path)


async def test_a_slot_that_can_no_longer_start_is_given_up_after_a_few_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_double(tmp_path)
    real = Replica("replica_pipelines:Numbers", tmp_path, active=1)
    fatal: list[str] = []
    real.slots.keeper.on_fatal = lambda error: fatal.append(error.message)
    await real.slots.start()
    (folder / "model.onnx").write_bytes(b"no longer a model")
    real.slots.slots[0].child.kill()
    await until(lambda: fatal)
    assert "model double" in fatal[0]
    assert real.slots.keeper.given_up == {0: fatal[0]}
    assert real.slots.keeper.restarts < 6
    assert real.slots.slots == {}
    await stop(real)


# -- the gateway's own death -----------------------------------------------------------------------------------------

GATEWAY = """
import asyncio, pathlib, sys
from replica import running

async def client(replica, number):
    while True:
        await replica.ask(str(number))

async def main():
    async with running("replica_pipelines:Numbers", pathlib.Path(sys.argv[1]), workers=2, active=1, standby=1) as real:
        clients = [asyncio.create_task(client(real, number)) for number in range(8)]
        while len(real.done) < 50:
            await asyncio.sleep(0.001)
        print(*real.pids(), flush=True)
        await asyncio.gather(*clients)

asyncio.run(main())
"""


def kill_gateway(gateway: "subprocess.Popen[str]", _pids: list[int]) -> None:
    gateway.kill()


def kill_tree(gateway: "subprocess.Popen[str]", pids: list[int]) -> None:
    for pid in (*pids, gateway.pid):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("death", [kill_gateway, kill_tree])
async def test_nothing_is_left_of_a_gateway_that_was_killed_under_load(
    models: Path, death: Callable[["subprocess.Popen[str]", list[int]], None]
) -> None:
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", GATEWAY, str(models)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": HERE},
        start_new_session=True,
    ) as gateway:
        assert gateway.stdout is not None
        pids = list(map(int, gateway.stdout.readline().split()))
        assert len(pids) == 4
        ends = [os.pidfd_open(pid) for pid in pids]
        death(gateway, pids)
        started = time.monotonic()
        for end in ends:
            assert select.select([end], [], [], max(0.0, 2.0 - (time.monotonic() - started)))[0]
            os.close(end)
        gateway.wait()
    assert not any("framelane" in name for name in os.listdir("/dev/shm"))
