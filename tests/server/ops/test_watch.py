"""The looks: what is told of them, and that what is counted outlives the processes that count."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from fake_pool import FakePool

from framelane.preprocess.progress import PAGE_BYTES, ProgressPage
from framelane.preprocess.stages import Stage
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.limits import Limits
from framelane.server.ops import procfs
from framelane.server.ops.diagnosis import Limit
from framelane.server.ops.lag import LoopLag
from framelane.server.ops.pressure import Facts
from framelane.server.ops.watch import COLUMNS, HISTORY_ROWS, HISTORY_STEP_S, Meters, Watch, Watched, encode

OWN = os.getpid()


class Replica:
    """One worker and one slot, whose pages the test writes."""

    def __init__(self) -> None:
        view = memoryview(bytearray(3 * PAGE_BYTES))
        self.worker, self.slot, self.audit = (ProgressPage(view, index) for index in range(3))
        self.reasons: list[str] = []

    def processes(self) -> list[Watched]:
        return [
            Watched("gateway", "gateway", OWN, "active"),
            Watched("worker", "worker-0", OWN, "active", self.worker, 2, 4),
            Watched("slot", "slot-0", OWN, "active", self.slot, 1),
            Watched("audit", "worker-1", OWN, "audit", self.audit),
        ]

    def facts(self) -> Facts:
        return Facts(device="sim:8", on_cores=False)

    def status(self) -> dict[str, Any]:
        return {"version": "test", "pid": OWN, "uptime_s": 1.0, "device": {"used": "sim:8", "simulated": True}}

    def ready(self) -> list[str]:
        return self.reasons


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replica() -> Replica:
    return Replica()


@pytest.fixture
async def watch(clock: Clock, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(procfs, "machine_seconds", lambda: 0.0)
    monkeypatch.setattr(procfs, "cpu_seconds", lambda _pid: 0.0)
    monkeypatch.setattr(procfs, "core_wait_seconds", lambda _pid: 0.0)
    exchange = Exchange(FakePool(), Limits(pipeline="echo"), clock, capacity=100.0)
    return Watch(exchange, replica, LoopLag(), 2.0, clock=clock)


def seconds(watch: Watch, clock: Clock, count: int) -> Iterator[int]:
    for second in range(count):
        clock.now += 1.0
        watch.turn()
        yield second


async def test_a_second_passes_between_looks(watch: Watch, clock: Clock) -> None:
    looks: list[object] = []
    watch.on_look = looks.append
    for _ in range(30):
        clock.now += 0.1
        watch.turn()
    assert len(looks) == 3


async def test_what_a_slot_does_is_told_as_the_limit(watch: Watch, clock: Clock, replica: Replica) -> None:
    assert watch.diagnosis().sentence == "nothing has been measured yet"
    replica.slot.awake(clock.now)
    for _ in seconds(watch, clock, 5):
        pass
    found = watch.diagnosis()
    assert (found.limit, found.evidence["slots"]) == (Limit.SLOTS, 1.0)
    replica.slot.asleep(clock.now)
    for _ in seconds(watch, clock, 11):
        pass
    assert watch.diagnosis().limit is Limit.IDLE


async def test_a_replica_that_does_not_serve_says_why(watch: Watch, clock: Clock, replica: Replica) -> None:
    replica.reasons = ["no slot is active"]
    for _ in seconds(watch, clock, 3):
        pass
    assert watch.diagnosis().sentence == "not serving: no slot is active"


async def test_stages_are_those_of_clients_and_not_of_long_jobs(watch: Watch, replica: Replica) -> None:
    replica.worker.stages.answered(0.1, 0.1, 0.1, 0.1, 0.1)
    replica.audit.stages.answered(9.0, 9.0, 9.0, 9.0, 9.0)
    replica.slot.stages.ran(3)
    sample = watch.sample()
    assert sample.stages[Stage.RUN].sum == pytest.approx(0.1)
    assert sample.batches.sum == 3


async def test_the_proof_at_the_start_counts_for_no_client(watch: Watch, replica: Replica) -> None:
    replica.worker.stages.answered(0.1, 0.1, 0.1, 0.1, 0.1)
    replica.slot.stages.ran(3)
    watch.begin()
    replica.worker.stages.answered(0.2, 0.2, 0.2, 0.2, 0.2)
    sample = watch.sample()
    assert (sample.stages[Stage.RUN].entries, sample.batches.entries) == (1, 0)
    assert sample.stages[Stage.RUN].sum == pytest.approx(0.2)


async def test_what_was_counted_stays_while_a_process_is_replaced(watch: Watch, replica: Replica) -> None:
    replica.worker.stages.answered(0.1, 0.1, 0.1, 0.1, 0.1)
    replica.slot.stages.ran(3)
    before = watch.sample()
    replica.processes = list  # type: ignore[method-assign]
    after = watch.sample()
    assert (after.stages, after.batches) == (before.stages, before.batches)
    assert after.batches.sum == 3


async def test_history_keeps_a_row_for_each_step_and_forgets_the_oldest(watch: Watch, clock: Clock) -> None:
    rows: list[object] = []
    watch.on_look = rows.append
    for _ in seconds(watch, clock, HISTORY_STEP_S * (HISTORY_ROWS + 3) + 1):
        pass
    history = watch.history()
    assert len([row for row in rows if row]) == HISTORY_ROWS + 3
    assert set(history["columns"]) == set(COLUMNS)
    assert {len(column) for column in history["columns"].values()} == {HISTORY_ROWS}
    assert len(encode(history)) < 60_000


async def test_document_can_be_encoded_from_the_first_moment(watch: Watch, clock: Clock) -> None:
    assert watch.document()["live"] is None
    for _ in seconds(watch, clock, 2):
        pass
    document = watch.document()
    assert document["live"]["received_per_s"] == 0
    assert [process["id"] for process in document["processes"]] == ["gateway", "worker-0", "slot-0", "worker-1"]
    assert len(encode(document)) < 6_000


def test_processor_time_of_a_place_does_not_fall_when_its_process_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {1: 10.0, 2: 0.5}
    monkeypatch.setattr(procfs, "cpu_seconds", used.__getitem__)
    monkeypatch.setattr(procfs, "core_wait_seconds", lambda pid: pid / 10)
    meters = Meters()
    assert meters.read("slot-0", 1) == (10.0, 0.1)
    assert meters.read("slot-0", 2) == (10.5, pytest.approx(0.3))
    used[2] = 1.0
    assert meters.read("slot-0", 2) == (11.0, pytest.approx(0.3))
    assert meters.read("slot-1", 2)[0] == 1.0


def test_kernel_counters_of_a_real_process() -> None:
    assert 0 < procfs.cpu_seconds(OWN) <= procfs.machine_seconds()
    assert procfs.core_wait_seconds(OWN) >= 0
    assert procfs.pss_bytes([OWN])[OWN] > 1 << 20
    gone = 2**22 + 1
    assert (procfs.cpu_seconds(gone), procfs.core_wait_seconds(gone), procfs.pss_bytes([gone])) == (0.0, 0.0, {})
