"""The slot's process, spoken to as its gateway and its workers do: batches, order, deadlines, routes, faults."""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replica import alive, descriptors, mappings
from tiny_models import write_double, write_picky

from framelane.models.devices import parse_device
from framelane.models.registry import ModelSpec, Registry
from framelane.preprocess.children import START_FAILED, Child
from framelane.preprocess.links import ALL
from framelane.preprocess.memory import Memory, ModelCells, Slab
from framelane.preprocess.messages import Channel, Kind, Message, Outcome, PeerGone, pack, pack_run
from framelane.preprocess.progress import PAGE_BYTES
from framelane.server.slots.process import DEVICE_LOST

MODULE = "framelane.server.slots.process"
CREDITS = 8
TESTS = str(Path(__file__).parents[2])


class Worker:
    """A worker's end: its slab, and its channel to the slot."""

    def __init__(self, gateway: Channel, models: list[ModelCells], number: int) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.memory = Memory.create(f"slab-{number}", Slab.size(CREDITS, models))
        self.slab = Slab(self.memory, models)
        self.next = number << 40
        with theirs:
            gateway.send(pack(Kind.PEER, cell=number), (theirs.fileno(), self.memory.fd))

    def cell(self, model: int, credit: int) -> tuple[int, Any, Any]:
        cell = self.slab.cell(credit, model, 0)
        (given,), (answer,) = self.slab.arrays(model, cell)
        return cell, given, answer

    def run(
        self, credit: int, value: float, *, model: int = 0, epoch: int = 1, alone: bool = False, lifetime: float = 60.0
    ) -> int:
        """Ask for one run; returns its request's number."""
        cell, given, answer = self.cell(model, credit)
        given[:] = value
        answer[:] = -1
        self.next += 1
        self.channel.send(pack_run(self.next, cell, model, epoch, alone, time.monotonic() + lifetime))
        return self.next

    def answers(self, count: int) -> list[Message]:
        """The next answers, in the order they come."""
        found: list[Message] = []
        while len(found) < count:
            ready, _, _ = select.select([self.channel], [], [], 20)
            assert ready, "the slot did not answer"
            found += self.channel.receive()
        assert len(found) == count
        return found

    def close(self) -> None:
        self.channel.close()
        self.memory.close()


class Gateway:
    """A gateway's end of one slot."""

    def __init__(
        self, specs: list[ModelSpec], device: str = "cpu", module: str = MODULE, *, quietly: bool = False
    ) -> None:
        self.cells = [ModelCells(1, spec.inputs, spec.outputs) for spec in specs]
        self.pages = Memory.create("pages", 2 * PAGE_BYTES)
        config = {"slot": 1, "device": parse_device(device), "models": specs, "cells": self.cells, "quietly": quietly}
        self.child = Child(module, "slot-1", config, self.pages, 1)
        self.workers: list[Worker] = []
        self.report = self._ready()
        self.route(1, active=True)

    def _ready(self) -> dict[str, Any]:
        ready, _, _ = select.select([self.child.channel], [], [], 30)
        assert ready
        assert [message.kind for message in self.child.channel.receive()] == [Kind.READY]
        return self.child.report()

    def worker(self) -> Worker:
        worker = Worker(self.child.channel, self.cells, len(self.workers) + 1)
        self.workers.append(worker)
        return worker

    def route(self, epoch: int, *, active: bool) -> None:
        self.child.channel.send(pack(Kind.ROUTES, epoch=epoch, request=0b10 if active else 0b01))

    def close(self) -> None:
        self.child.kill()
        self.child.reap()
        self.child.close()
        for worker in self.workers:
            worker.close()
        self.pages.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    folder = tmp_path_factory.mktemp("models")
    write_double(folder)
    write_picky(folder)
    registry = Registry([folder])
    return [registry.get("double"), registry.get("picky")]


@pytest.fixture(scope="module", params=[MODULE, "card_slot"], ids=["cpu", "card"])
def cpu(request: pytest.FixtureRequest, models: list[ModelSpec]) -> Iterator[Gateway]:
    """A slot on the CPU, and one that does all that it would do on a card."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", TESTS)
        gateway = Gateway(models, module=request.param)
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def batching(models: list[ModelSpec]) -> Iterator[Gateway]:
    """Each run takes long enough that what is sent meanwhile waits; batches of up to four."""
    gateway = Gateway(models, "sim:40:batch=4")
    yield gateway
    gateway.close()


@pytest.fixture
def worker(cpu: Gateway) -> Worker:
    cpu.route(1, active=True)
    return cpu.worker()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_slot_proves_itself_with_what_it_measured(cpu: Gateway) -> None:
    assert cpu.report["device"] == "cpu"
    assert set(cpu.report["models"]) == {"double", "picky"}
    assert set(cpu.report["models"]["double"]["run_ms"]) >= {"1", "2", "4"}
    assert cpu.report["pid"] == cpu.child.pid


def test_a_run_reads_its_input_from_the_workers_memory_and_writes_its_output_there(worker: Worker) -> None:
    request = worker.run(3, 21.0)
    (answer,) = worker.answers(1)
    assert (answer.kind, answer.request, answer.status) == (Kind.RAN, request, Outcome.OK)
    assert worker.cell(0, 3)[2].tolist() == [[42.0] * 4]


def test_the_same_cell_runs_again_and_again(worker: Worker) -> None:
    for value in range(20):
        worker.run(0, float(value))
        worker.answers(1)
        assert worker.cell(0, 0)[2].tolist() == [[2.0 * value] * 4]


def test_each_worker_gets_its_own_answers(cpu: Gateway) -> None:
    workers = [cpu.worker(), cpu.worker()]
    requests = [worker.run(0, 10.0 * number) for number, worker in enumerate(workers, 1)]
    for number, (worker, request) in enumerate(zip(workers, requests, strict=True), 1):
        assert [answer.request for answer in worker.answers(1)] == [request]
        assert worker.cell(0, 0)[2][0, 0] == 20.0 * number


def test_a_request_past_its_deadline_is_not_run(worker: Worker) -> None:
    worker.run(0, 5.0, lifetime=-1.0)
    assert worker.answers(1)[0].status == Outcome.EXPIRED
    assert worker.cell(0, 0)[2][0, 0] == -1


# -- batches ---------------------------------------------------------------------------------------------------------


def busy(gateway: Gateway) -> Worker:
    """A worker whose first request is in work: what it sends now waits."""
    worker = gateway.worker()
    first = worker.run(7, 0.0)
    until(lambda: gateway.child.progress.read().request == first)
    return worker


def test_what_waits_runs_together_up_to_the_best_batch(batching: Gateway) -> None:
    worker = busy(batching)
    requests = [worker.run(credit, 1.0) for credit in range(6)]
    answers = worker.answers(7)
    assert [answer.request for answer in answers[1:]] == requests
    assert [answer.length for answer in answers] == [1, 4, 4, 4, 4, 2, 2]


def test_a_batch_is_of_one_model_and_the_oldest_goes_first(batching: Gateway) -> None:
    worker = busy(batching)
    requests = [worker.run(credit, 1.0, model=model) for credit, model in enumerate([1, 0, 1, 0])]
    order = [answer.request for answer in worker.answers(5)[1:]]
    assert order == [requests[0], requests[2], requests[1], requests[3]]


def test_a_suspect_runs_alone(batching: Gateway) -> None:
    worker = busy(batching)
    requests = [worker.run(credit, 1.0, alone=credit == 1) for credit in range(4)]
    answers = {answer.request: answer.length for answer in worker.answers(5)}
    assert [answers[request] for request in requests] == [3, 1, 3, 3]


def test_a_batch_across_workers_answers_each(batching: Gateway) -> None:
    second = batching.worker()
    second.run(0, 1.0)
    second.answers(1)  # the slot has met it
    first = busy(batching)
    first.run(0, 1.0)
    second.run(0, 1.0)
    assert [answer.length for answer in first.answers(2)] == [1, 2]
    assert [answer.length for answer in second.answers(1)] == [2]


def test_what_expired_while_it_waited_is_left_out_of_the_batch(batching: Gateway) -> None:
    worker = busy(batching)
    late, good = worker.run(0, 1.0, lifetime=0.005), worker.run(1, 1.0)
    answers = {answer.request: answer for answer in worker.answers(3)}
    assert answers[late].status == Outcome.EXPIRED
    assert (answers[good].status, answers[good].length) == (Outcome.OK, 1)


def test_what_is_cancelled_while_it_waits_is_not_run(batching: Gateway) -> None:
    worker = busy(batching)
    cancelled, good = worker.run(0, 1.0), worker.run(1, 1.0)
    worker.channel.send(pack(Kind.CANCEL, request=cancelled))
    worker.channel.send(pack(Kind.CANCEL, request=10**9))  # one that was never there
    answers = {answer.request: answer for answer in worker.answers(3)}
    assert answers[cancelled].status == Outcome.EXPIRED
    assert (answers[good].status, answers[good].length) == (Outcome.OK, 1)
    assert (worker.cell(0, 0)[2] == -1).all()


def test_the_page_names_the_request_in_work_and_all_of_a_batch(batching: Gateway) -> None:
    worker = busy(batching)
    page = batching.child.progress
    worker.run(0, 1.0)
    worker.run(1, 1.0)
    until(lambda: page.read().request == ALL)
    worker.answers(3)
    until(lambda: page.read().request == 0 and page.load() == 0)


def test_the_requests_of_a_worker_that_has_left_are_forgotten(batching: Gateway) -> None:
    leaving = busy(batching)
    for credit in range(6):
        leaving.run(credit, 1.0)
    leaving.close()
    batching.workers.remove(leaving)
    staying = batching.worker()
    staying.run(0, 1.0)
    answer = staying.answers(1)[0]
    assert answer.length == 1
    assert answer.f1 < 0.2  # at most one run of the other worker was in its way


# -- faults ----------------------------------------------------------------------------------------------------------


def test_a_run_that_raises_fails_its_request_alone(worker: Worker) -> None:
    requests = [worker.run(credit, value, model=1) for credit, value in enumerate([5, 250, 6])]
    answers = {answer.request: answer.status for answer in worker.answers(3)}
    assert [answers[request] for request in requests] == [Outcome.OK, Outcome.FAILED, Outcome.OK]
    assert [worker.cell(1, credit)[2][0, 0] for credit in (0, 2)] == [15.0, 18.0]


def test_a_number_that_is_no_cell_fails_its_request_alone(worker: Worker) -> None:
    worker.channel.send(pack_run(5, 10_000, 0, 1, False, time.monotonic() + 60))
    assert worker.answers(1)[0].status == Outcome.FAILED
    worker.run(0, 3.0)
    assert worker.answers(1)[0].status == Outcome.OK


def test_each_request_counts_once_as_done_also_when_its_batch_failed(models: list[ModelSpec]) -> None:
    """A batch that raises is run again, one by one; the page counts requests, not attempts."""
    from framelane.server.slots.process import Slot

    class Page:
        done = 0

        def start(self, request: int, now: float) -> None:
            pass

        def finish(self, count: int = 1) -> None:
            self.done += count

    slot, page = Slot.__new__(Slot), Page()
    slot.__dict__.update(_progress=page, _sessions=[Raises()], _config=Names(), _permits=None)
    slot._run([request(number) for number in range(3)])
    assert page.done == 3


class Raises:
    def run(self, items: list[Any]) -> None:
        raise ValueError

    def check_device(self) -> None:
        pass


class Names:
    class Model:
        name = "double"

    models = (Model,)


def request(number: int) -> Any:
    from framelane.server.slots.process import Request

    class Peer:
        open = False
        audit = False

        def bound(self, model: int, cell: int) -> None:
            pass

    message = Message(Kind.RUN, 0, 0, 0, number, number + 1, 0, 1, 0, 0, 0, 0.0, time.monotonic() + 60, 0.0, 0.0)
    return Request(Peer(), message, 0.0)


# -- routes ----------------------------------------------------------------------------------------------------------


def test_a_slot_that_is_not_routed_to_sends_stale_requests_away_unrun(cpu: Gateway, worker: Worker) -> None:
    cpu.route(5, active=False)
    worker.run(0, 5.0, epoch=1)
    assert worker.answers(1)[0].status == Outcome.MOVED
    worker.run(0, 5.0, epoch=5)
    assert worker.answers(1)[0].status == Outcome.MOVED
    assert worker.cell(0, 0)[2][0, 0] == -1


def test_a_worker_that_heard_of_newer_routes_first_is_believed(cpu: Gateway, worker: Worker) -> None:
    cpu.route(5, active=False)
    worker.run(0, 5.0, epoch=6)
    assert worker.answers(1)[0].status == Outcome.OK


def test_an_active_slot_takes_requests_of_older_routes(cpu: Gateway, worker: Worker) -> None:
    cpu.route(9, active=True)
    worker.run(0, 5.0, epoch=2)
    assert worker.answers(1)[0].status == Outcome.OK


# -- on a card: runs on a thread of their own ------------------------------------------------------------------------


class Gate:
    """A card whose runs wait until they are let through, one by one."""

    def __init__(self, folder: Path, models: list[ModelSpec], patch: pytest.MonkeyPatch, batch: int) -> None:
        self.folder = folder
        self.opened = 0
        for name, value in {"PYTHONPATH": TESTS, "CARD_GATE": str(folder), "CARD_BATCH": str(batch)}.items():
            patch.setenv(name, value)
        self.slot = Gateway(models, module="card_slot")
        self.worker = self.slot.worker()

    def gathered(self) -> list[int]:
        """The sizes of the batches that were gathered, in order."""
        found = sorted(self.folder.glob("gathered-*"), key=lambda path: int(path.name.partition("-")[2]))
        return [int(path.read_text()) for path in found if path.read_text()]

    def open(self) -> None:
        self.opened += 1
        (self.folder / f"open-{self.opened}").touch()


@pytest.fixture
def gate(
    tmp_path: Path, models: list[ModelSpec], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Gate]:
    gate = Gate(tmp_path, models, monkeypatch, request.param)
    yield gate
    gate.slot.close()


def test_a_card_whose_models_were_opened_at_low_priority_serves(
    models: list[ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are opened on another thread, and which card is meant is a property of the thread."""
    monkeypatch.setenv("PYTHONPATH", TESTS)
    gateway = Gateway(models, module="card_slot", quietly=True)
    try:
        worker = gateway.worker()
        worker.run(0, 3.0)
        assert worker.answers(1)[0].status == Outcome.OK
    finally:
        gateway.close()


@pytest.mark.parametrize("gain", ["2", "0.5"], ids=["overlapped", "one thread"])
def test_a_slot_whose_card_is_lost_ends_instead_of_failing_all_that_comes(
    models: list[ModelSpec], monkeypatch: pytest.MonkeyPatch, gain: str
) -> None:
    for name, value in {"PYTHONPATH": TESTS, "CARD_GAIN": gain, "CARD_LOST": "1"}.items():
        monkeypatch.setenv(name, value)
    gateway = Gateway(models, module="card_slot")
    try:
        worker = gateway.worker()
        worker.run(0, 5.0, model=1)
        assert worker.answers(1)[0].status == Outcome.OK
        request = worker.run(1, 250.0, model=1)
        ended = os.waitid(os.P_PIDFD, gateway.child.pidfd, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_status == DEVICE_LOST
        assert gateway.child.progress.read().request == request, "what it had in work is suspected"
        with pytest.raises(PeerGone):  # no answer: what a slot held when it died is sent to another one
            worker.answers(1)
    finally:
        gateway.close()


@pytest.mark.parametrize("gate", [1], indirect=True)
def test_the_next_batch_is_gathered_while_one_runs_and_no_third(gate: Gate) -> None:
    requests = [gate.worker.run(credit, 1.0 + credit) for credit in range(4)]
    until(lambda: len(gate.gathered()) == 2)
    select.select([], [], [], 0.05)
    assert gate.gathered() == [1, 1]
    for count in range(4):
        gate.open()
        assert gate.worker.answers(1)[0].request == requests[count]
        assert gate.worker.cell(0, count)[2][0, 0] == 2 * (1.0 + count)


@pytest.mark.parametrize("gate", [4], indirect=True)
def test_a_batch_that_is_not_full_waits_for_the_run_to_end(gate: Gate) -> None:
    gate.worker.run(0, 1.0)
    until(lambda: gate.gathered() == [1])
    for credit in range(1, 4):
        gate.worker.run(credit, 1.0)
    until(lambda: gate.slot.child.progress.read().waiting == 3)
    assert gate.gathered() == [1]
    gate.worker.run(4, 1.0)
    until(lambda: gate.gathered() == [1, 4])
    gate.open()
    gate.open()
    assert [answer.length for answer in gate.worker.answers(5)] == [1, 4, 4, 4, 4]


@pytest.mark.parametrize("gate", [1], indirect=True)
def test_a_run_that_hangs_stops_the_turns_though_the_loop_lives(gate: Gate) -> None:
    request = gate.worker.run(0, 1.0)
    page = gate.slot.child.progress
    until(lambda: page.read().request == request)
    loops = page.read().loops
    gate.slot.child.channel.send(pack(Kind.PING))
    gate.worker.run(1, 1.0)
    until(lambda: gate.gathered() == [1, 1])
    assert page.read().loops == loops
    gate.open()
    gate.worker.answers(1)
    until(lambda: page.read().loops > loops)
    gate.open()


@pytest.mark.parametrize("gate", [4], indirect=True)
def test_a_batch_that_fails_on_a_card_is_run_one_by_one(gate: Gate) -> None:
    first = gate.worker.run(0, 1.0)
    until(lambda: gate.gathered() == [1])
    requests = [gate.worker.run(credit, value, model=1) for credit, value in enumerate([5, 250, 6, 7])]
    for _ in range(6):
        gate.open()
    answers = {answer.request: answer.status for answer in gate.worker.answers(5)}
    assert [answers[number] for number in (first, *requests)] == [0, 0, Outcome.FAILED, 0, 0]
    assert gate.slot.child.progress.read().done == 5


@pytest.mark.parametrize("gate", [1], indirect=True)
def test_a_card_that_is_told_to_stop_finishes_what_it_has(gate: Gate) -> None:
    requests = [gate.worker.run(credit, 1.0) for credit in range(3)]
    until(lambda: len(gate.gathered()) == 2)
    gate.slot.child.channel.send(pack(Kind.STOP))
    for _ in range(3):
        gate.open()
    assert [answer.request for answer in gate.worker.answers(3)] == requests
    assert select.select([gate.slot.child.pidfd], [], [], 10)[0]


# -- life ------------------------------------------------------------------------------------------------------------


def test_a_workers_memory_and_descriptors_are_returned_when_it_leaves(cpu: Gateway) -> None:
    pid = cpu.child.pid
    until(lambda: mappings(pid, "memfd:framelane-slab") == len(cpu.workers))
    before = descriptors(pid)
    for _ in range(5):
        worker = cpu.worker()
        worker.run(0, 1.0)
        worker.answers(1)
        worker.close()
        cpu.workers.remove(worker)
    until(lambda: mappings(pid, "memfd:framelane-slab") == len(cpu.workers) and descriptors(pid) == before)


def test_an_idle_slot_does_not_turn(cpu: Gateway, worker: Worker) -> None:
    worker.run(0, 1.0)
    worker.answers(1)
    page = cpu.child.progress
    until(lambda: page.read().request == 0)
    select.select([], [], [], 0.05)
    loops = page.read().loops
    select.select([], [], [], 0.1)
    assert page.read().loops == loops


def test_a_ping_turns_the_loop_of_an_idle_slot(cpu: Gateway) -> None:
    loops = cpu.child.progress.read().loops
    cpu.child.channel.send(pack(Kind.PING))
    until(lambda: cpu.child.progress.read().loops > loops)


def test_a_slot_told_to_stop_finishes_what_waits_and_ends(models: list[ModelSpec]) -> None:
    gateway = Gateway(models, "sim:40")
    try:
        worker = busy(gateway)
        requests = [worker.run(credit, 1.0) for credit in range(3)]
        until(lambda: gateway.child.progress.read().waiting == 3)
        gateway.child.channel.send(pack(Kind.STOP))
        assert [answer.request for answer in worker.answers(4)[1:]] == requests
        assert select.select([gateway.child.pidfd], [], [], 10)[0]
    finally:
        gateway.close()


def test_a_slot_whose_gateway_is_gone_ends_by_itself(models: list[ModelSpec]) -> None:
    gateway = Gateway(models, "sim:1")
    pid = gateway.child.pid
    gateway.child.channel.sock.shutdown(socket.SHUT_RDWR)
    assert select.select([gateway.child.pidfd], [], [], 10)[0]
    gateway.close()
    assert not alive(pid)


def test_a_slot_never_decodes_images(cpu: Gateway) -> None:
    assert mappings(cpu.child.pid, "cv2") == 0
    assert mappings(cpu.child.pid, "simplejpeg") == 0


@pytest.mark.parametrize(
    ("device", "says"), [("cuda", "framelane[gpu]"), ("sim:8", ""), ("cpu", "model.toml says inputs x float32[9]")]
)
def test_a_slot_that_cannot_start_says_why_and_has_its_own_status(tmp_path: Path, device: str, says: str) -> None:
    toml = "".join(
        f'[[{side}]]\nname = "{name}"\ndtype = "float32"\nshape = [9]\n'
        for side, name in (("inputs", "x"), ("outputs", "y"))
    )
    spec = Registry([write_double(tmp_path, toml=toml).parent]).get("double")
    pages = Memory.create("pages", PAGE_BYTES)
    cells = [ModelCells(1, spec.inputs, spec.outputs)]
    config = {"slot": 0, "device": parse_device(device), "models": [spec], "cells": cells}
    child = Child(MODULE, "slot-0", config, pages, 0)
    os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
    with pytest.raises(PeerGone):
        child.channel.receive()
    assert child.reap() == START_FAILED
    assert says in child.failure().message
    assert child.failure().message.startswith("slot-0: ")
    child.close()


def test_outputs_of_zeros_are_no_leftovers(worker: Worker) -> None:
    """A cell is rewritten as a whole by every run."""
    worker.run(0, 0.0)
    worker.answers(1)
    np.testing.assert_array_equal(worker.cell(0, 0)[2], np.zeros((1, 4), np.float32))
