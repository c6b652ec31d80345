"""A worker's decisions about its slots: every run ends exactly once, whatever the slots and the gateway do."""

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from framelane.preprocess.links import ALL, Links, ModelFailed, NoSlotLeft, Run, SlotEnded, SlotsEnded
from framelane.preprocess.memory import Memory
from framelane.preprocess.messages import Channel, Kind, Message, Outcome, PeerGone, pack_ran
from framelane.preprocess.progress import PAGE_BYTES, ProgressPage

SLOTS = 3


class Slot:
    """The far end of a link: what a slot has been asked to run, in order."""

    def __init__(self, number: int, generation: int) -> None:
        ours, self.theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.number = number
        self.generation = generation
        self.asked: list[Message] = []
        self.alive = True

    def read(self) -> list[Message]:
        """Everything asked since the last reading."""
        fresh: list[Message] = []
        try:
            while self.alive and (messages := self.channel.receive()):
                fresh += messages
        except PeerGone:
            pass  # the worker has given this link up
        self.asked += fresh
        return fresh

    def answer(self, message: Message, outcome: Outcome = Outcome.OK) -> None:
        self.asked.remove(message)
        with contextlib.suppress(PeerGone):
            self.channel.send(pack_ran(message.request, message.cell, outcome, 1, 0.001, 0.0))

    def die(self) -> None:
        self.alive = False
        self.channel.close()


class Bench:
    """Links with slots that a test plays."""

    def __init__(self) -> None:
        self.pages = Memory.create("pages", SLOTS * PAGE_BYTES)
        self.epoll = select.epoll()
        self.links = Links(self.epoll, self.pages, 1)
        self.slots: dict[int, Slot] = {}
        self.epoch = 0
        self.ended: dict[str, Exception | None] = {}

    def add(self, number: int, generation: int = 0) -> Slot:
        slot = Slot(number, generation)
        self.slots[number] = slot
        self.links.add(number, generation, number, slot.theirs.detach())
        return slot

    def route(self, *numbers: int, share_cores: bool = False) -> int:
        self.epoch += 1
        self.links.route(self.epoch, sum(1 << number for number in numbers), share_cores)
        return self.epoch

    def run(self, task: str, deadline: float = 100.0, cell: int = 7) -> None:
        self.links.run(task, 0, 2, cell, deadline)

    def finish(self, finished: list[tuple[Run, Exception | None]]) -> None:
        for run, error in finished:
            assert run.task not in self.ended, f"{run.task} ended twice"
            self.ended[run.task] = error

    def hear(self) -> None:
        for descriptor, _ in self.epoll.poll(0):
            self.finish(self.links.receive(descriptor))

    def gone(self, slot: Slot, suspect: int = 0) -> None:
        self.finish(self.links.gone(slot.number, slot.generation, suspect))

    def retry(self, now: float = 0.0) -> None:
        self.finish(self.links.retry_parked(now))

    def close(self) -> None:
        for slot in self.slots.values():
            slot.die()
        for number, slot in self.slots.items():
            self.links.gone(number, slot.generation, 0)
        self.epoll.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


# -- where runs go ---------------------------------------------------------------------------------------------------


def test_a_run_says_where_its_tensors_are_and_until_when(bench: Bench) -> None:
    slot = bench.add(1)
    epoch = bench.route(1)
    bench.links.run("frame", 0, 2, 9, 12.5)
    (message,) = slot.read()
    assert (message.model, message.cell, message.epoch, message.status, message.t1) == (2, 9, epoch, 0, 12.5)


def test_slots_are_told_which_runs_are_cancelled(bench: Bench) -> None:
    slots = [bench.add(number) for number in range(2)]
    bench.route(0, 1)
    for task in ("left", "left", "stays", "stays"):
        bench.run(task)
    asked = {message.request: slot for slot in slots for message in slot.read()}
    bench.links.cancel("left")
    told = [message for slot in slots for message in slot.read()]
    assert [message.kind for message in told] == [Kind.CANCEL, Kind.CANCEL]
    assert {message.request for message in told} == set(sorted(asked)[:2])
    assert not bench.ended


def test_runs_go_to_the_slot_with_the_least_in_flight(bench: Bench) -> None:
    slots = [bench.add(number) for number in range(3)]
    bench.route(0, 1, 2)
    for number in range(6):
        bench.run(f"frame {number}")
    assert [len(slot.read()) for slot in slots] == [2, 2, 2]


def test_between_equals_the_slot_where_less_waits_is_taken(bench: Bench) -> None:
    """Other workers' requests count too: the slot's progress page tells."""
    busy, idle = bench.add(0), bench.add(1)
    ProgressPage(bench.pages.view, 0).wait(3)
    bench.route(0, 1)
    bench.run("frame")
    assert (len(busy.read()), len(idle.read())) == (0, 1)


def test_on_shared_cores_a_few_short_runs_wait_for_one_slot_before_the_next_is_woken(bench: Bench) -> None:
    slots = [bench.add(number) for number in range(2)]
    bench.route(0, 1, share_cores=True)
    for number in range(6):
        bench.run(f"frame {number}")
    assert [len(slot.read()) for slot in slots] == [4, 2]


def test_on_shared_cores_long_runs_go_to_an_idle_slot(bench: Bench) -> None:
    slots = [bench.add(number) for number in range(2)]
    bench.route(0, 1, share_cores=True)
    for link in bench.links._links.values():
        link.run_s = 0.008
    for number in range(4):
        bench.run(f"frame {number}")
    assert [len(slot.read()) for slot in slots] == [2, 2]


def test_a_slot_is_used_only_once_a_route_leads_to_it(bench: Bench) -> None:
    slot = bench.add(0)
    bench.run("frame")
    bench.retry()
    assert slot.read() == []
    bench.route(0)
    bench.retry()
    assert len(slot.read()) == 1


def test_a_route_that_arrives_before_its_slot_takes_effect_when_the_slot_does(bench: Bench) -> None:
    bench.route(2)
    bench.run("frame")
    slot = bench.add(2)
    bench.retry()
    assert len(slot.read()) == 1


def test_without_a_slot_a_run_is_parked_until_its_deadline(bench: Bench) -> None:
    bench.run("frame", deadline=10.0)
    bench.retry(now=10.0)
    assert bench.ended == {}
    bench.retry(now=10.1)
    assert isinstance(bench.ended["frame"], NoSlotLeft)
    assert bench.links.parked == []


def test_requests_of_two_workers_differ(bench: Bench) -> None:
    other = Links(bench.epoll, bench.pages, 2)
    other.run("theirs", 0, 0, 0, 1.0)
    bench.run("ours")
    assert other.parked[0].request != bench.links.parked[0].request


# -- how runs end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(Outcome.OK, type(None)), (Outcome.FAILED, ModelFailed), (Outcome.EXPIRED, NoSlotLeft)],
)
def test_an_answer_ends_its_run(bench: Bench, outcome: Outcome, error: type) -> None:
    slot = bench.add(0)
    bench.route(0)
    bench.run("frame")
    slot.answer(slot.read()[0], outcome)
    bench.hear()
    assert type(bench.ended["frame"]) is error


def test_moved_runs_wait_for_the_newer_routes_and_then_go_elsewhere(bench: Bench) -> None:
    old, new = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("frame")
    old.answer(old.read()[0], Outcome.MOVED)
    bench.hear()
    bench.retry()
    assert old.read() == []
    assert new.read() == []
    epoch = bench.route(1)
    bench.retry()
    assert [message.epoch for message in new.read()] == [epoch]
    assert bench.ended == {}


def test_moved_after_the_newer_routes_have_arrived_is_sent_on_at_once(bench: Bench) -> None:
    old, new = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("frame")
    old.answer(old.read()[0], Outcome.MOVED)
    bench.route(1)
    bench.hear()
    bench.retry()
    assert len(new.read()) == 1


def test_a_moved_run_ends_at_its_deadline_when_no_routes_come(bench: Bench) -> None:
    slot = bench.add(0)
    bench.route(0)
    bench.run("frame", deadline=5.0)
    slot.answer(slot.read()[0], Outcome.MOVED)
    bench.hear()
    bench.retry(now=6.0)
    assert isinstance(bench.ended["frame"], NoSlotLeft)


# -- deaths ----------------------------------------------------------------------------------------------------------


def test_what_was_in_flight_is_sent_again_only_when_the_end_is_certain(bench: Bench) -> None:
    dying, other = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("frame")
    bench.route(1)
    dying.die()
    bench.hear()
    bench.retry()
    assert other.read() == []  # the old process may still write into the cells
    bench.gone(dying)
    bench.retry()
    assert len(other.read()) == 1


def test_what_a_slot_finished_before_it_died_is_taken_and_not_run_again(bench: Bench) -> None:
    dying, other = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("finished")
    bench.run("begun")
    bench.route(1)
    first, second = dying.read()
    dying.answer(first)
    dying.die()
    bench.gone(dying, suspect=second.request)
    bench.retry()
    assert bench.ended == {"finished": None}
    assert [message.request for message in other.read()] == [second.request]


def test_only_what_was_in_work_is_suspected_and_sent_alone(bench: Bench) -> None:
    dying, other = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("suspect")
    bench.run("bystander")
    suspect, bystander = dying.read()
    bench.route(1)
    dying.die()
    bench.gone(dying, suspect=suspect.request)
    bench.retry()
    assert {message.request: message.status for message in other.read()} == {suspect.request: 1, bystander.request: 0}


@pytest.mark.parametrize(("suspect", "error"), [("frame", SlotEnded), ("batch", NoSlotLeft), ("other", NoSlotLeft)])
def test_what_ended_a_slot_alone_is_to_blame_also_when_no_other_slot_was_free_in_time(
    bench: Bench, suspect: str, error: type[Exception]
) -> None:
    dying = bench.add(0)
    bench.route(0)
    bench.run("frame", deadline=5.0)
    (run,) = dying.read()
    dying.die()
    bench.gone(dying, suspect={"frame": run.request, "batch": ALL, "other": run.request + 1}[suspect])
    bench.retry(now=6.0)
    assert type(bench.ended["frame"]) is error


def test_a_whole_batch_is_suspected(bench: Bench) -> None:
    dying, other = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("one")
    bench.run("two")
    bench.route(1)
    dying.die()
    bench.gone(dying, suspect=ALL)
    bench.retry()
    assert [message.status for message in other.read()] == [1, 1]


def test_a_run_that_waits_behind_a_batch_in_a_second_dying_slot_is_not_blamed_for_it(bench: Bench) -> None:
    """Suspects run alone: whatever batch the second slot ended on, this run was not in it."""
    slots = [bench.add(number) for number in range(3)]
    bench.route(0)
    bench.run("frame")
    for number in (0, 1):
        bench.route(number + 1)
        slots[number].die()
        bench.gone(slots[number], suspect=ALL)
        bench.retry()
    assert [message.status for message in slots[2].read()] == [1]
    assert bench.ended == {}


def test_a_run_that_two_slots_ended_on_meets_no_third_and_the_others_go_on(bench: Bench) -> None:
    slots = [bench.add(number) for number in range(3)]
    bench.route(0)
    bench.run("poison")
    bench.run("innocent")
    poison = slots[0].read()[0].request
    for number in (0, 1):
        bench.route(number + 1)
        slots[number].die()
        bench.gone(slots[number], suspect=poison)
        bench.retry()
    assert isinstance(bench.ended.pop("poison"), SlotsEnded)
    (message,) = slots[2].read()
    slots[2].answer(message)
    bench.hear()
    assert bench.ended == {"innocent": None}


def test_slots_that_are_killed_while_idle_make_nobody_suspect(bench: Bench) -> None:
    bench.run("frame")
    for generation in range(5):
        slot = bench.add(0, generation)
        bench.route(0)
        bench.retry()
        assert [message.status for message in slot.read()] == [0]
        slot.die()
        bench.gone(slot, suspect=0)
    assert bench.ended == {}


def test_the_end_of_another_incarnation_is_none_of_this_one(bench: Bench) -> None:
    slot = bench.add(0, generation=4)
    bench.route(0)
    bench.run("frame")
    assert bench.links.gone(0, 3, ALL) == []
    assert bench.links.gone(1, 4, ALL) == []
    slot.answer(slot.read()[0])
    bench.hear()
    assert bench.ended == {"frame": None}


def test_a_run_sent_to_a_slot_that_has_just_died_is_not_lost(bench: Bench) -> None:
    dead, other = bench.add(0), bench.add(1)
    bench.route(0)
    dead.die()
    bench.run("frame")
    bench.hear()
    bench.route(1)
    bench.gone(dead)
    bench.retry()
    assert len(other.read()) == 1


def test_an_event_for_a_link_that_was_closed_in_the_same_turn_is_nothing(bench: Bench) -> None:
    """One poll names several descriptors, and handling the first may close the second's link."""
    answers, dead = bench.add(0), bench.add(1)
    bench.route(0, 1)
    bench.run("frame")
    answers.answer(answers.read()[0])
    dead.die()
    events = [descriptor for descriptor, _ in bench.epoll.poll(0)]
    assert len(events) == 2
    bench.route(1)
    bench.run("next step of the frame")  # finds out that the other slot is dead
    for descriptor in events:
        bench.finish(bench.links.receive(descriptor))
    bench.gone(dead)
    assert bench.ended == {"frame": None}
    assert [run.task for run in bench.links.parked] == ["next step of the frame"]


def test_the_end_of_a_slot_whose_channel_somebody_still_holds_does_not_wait_for_an_end_of_file(bench: Bench) -> None:
    """A process that the slot forked inherits its sockets, and may outlive it."""
    slot, other = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("frame")
    with socket.socket(fileno=os.dup(slot.channel.fileno())):
        slot.die()
        bench.gone(slot)
        bench.hear()
    bench.route(1)
    bench.retry()
    assert len(other.read()) == 1


def test_a_dead_slots_descriptors_are_returned(bench: Bench) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for generation in range(5):
        slot = bench.add(0, generation)
        bench.route(0)
        slot.die()
        bench.gone(slot)
    assert len(os.listdir("/proc/self/fd")) == before


# -- quarantine ------------------------------------------------------------------------------------------------------


def test_what_an_unkillable_slot_holds_is_handed_back_and_sent_elsewhere_alone(bench: Bench) -> None:
    stuck, other = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("frame")
    bench.route(1)
    (run,) = bench.links.quarantine(0, 0)
    assert run.task == "frame"
    run.cell = 99
    bench.retry()
    (message,) = other.read()
    assert (message.cell, message.status) == (99, 1)
    stuck.die()
    bench.gone(stuck, suspect=run.request)
    other.answer(message)
    bench.hear()
    assert bench.ended == {"frame": None}


# -- acknowledging routes --------------------------------------------------------------------------------------------


def test_routes_are_acknowledged_at_once_when_nothing_is_in_flight(bench: Bench) -> None:
    bench.add(0)
    epoch = bench.route(0)
    assert bench.links.drained_epoch() == epoch
    assert bench.links.drained_epoch() == 0  # once


def test_routes_are_acknowledged_only_when_nothing_is_in_flight_on_slots_they_do_not_name(bench: Bench) -> None:
    old, _ = bench.add(0), bench.add(1)
    bench.route(0)
    bench.run("frame")
    epoch = bench.route(1)
    assert bench.links.drained_epoch() == 0
    old.answer(old.read()[0])
    bench.hear()
    assert bench.links.drained_epoch() == epoch


def test_what_is_in_flight_on_slots_that_stay_does_not_hold_the_acknowledgement_up(bench: Bench) -> None:
    bench.add(0)
    bench.route(0)
    bench.run("frame")
    epoch = bench.route(0)
    assert bench.links.drained_epoch() == epoch


def test_a_dead_slot_holds_the_acknowledgement_up_until_its_end_is_certain(bench: Bench) -> None:
    dying = bench.add(0)
    bench.route(0)
    bench.run("frame")
    epoch = bench.route()
    dying.die()
    bench.hear()
    assert bench.links.drained_epoch() == 0
    bench.gone(dying)
    assert bench.links.drained_epoch() == epoch


# -- any order -------------------------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Runs, replies, deaths, routes and ends in any order. The gateway's promises are kept: GONE only after an end."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.now = 0.0
        self.count = 0
        self.generation = 0
        self.masks: dict[int, int] = {0: 0}
        self.suspicions: dict[int, int] = {}
        self.living: dict[str, float] = {}
        self.quarantined: set[int] = set()

    numbers = st.integers(0, SLOTS - 1)

    @rule(number=numbers)
    def start_slot(self, number: int) -> None:
        if number not in self.bench.slots:
            self.generation += 1
            self.bench.add(number, self.generation)

    @rule(numbers=st.sets(numbers))
    def change_routes(self, numbers: set[int]) -> None:
        epoch = self.bench.route(*numbers)
        self.masks[epoch] = sum(1 << number for number in numbers)

    @rule(lifetime=st.sampled_from([1.0, 5.0, 1000.0]))
    def submit(self, lifetime: float) -> None:
        self.count += 1
        task = f"frame {self.count}"
        self.living[task] = self.now + lifetime
        self.bench.run(task, self.now + lifetime, cell=self.count)

    @rule(number=numbers, which=st.integers(0, 5), outcome=st.sampled_from(list(Outcome)))
    def reply(self, number: int, which: int, outcome: Outcome) -> None:
        slot = self._slot_that_lives(number)
        if slot is not None and slot.asked:
            slot.answer(slot.asked[which % len(slot.asked)], outcome)

    @rule(number=numbers)
    def die(self, number: int) -> None:
        slot = self._slot_that_lives(number)
        if slot is not None:
            slot.die()

    @rule()
    def hear(self) -> None:
        self.bench.hear()

    @rule(number=numbers, blame=st.sampled_from(["nobody", "all", "first", "last", "a stranger"]), late=st.booleans())
    def end_is_certain(self, number: int, blame: str, late: bool) -> None:
        slot = self.bench.slots.get(number)
        if slot is None or slot.alive:
            return
        events = self.bench.epoll.poll(0) if late else []
        link = self.bench.links._links.get(number)
        flying = list(link.runs) if link else []
        answered = [request for request in flying if all(request != message.request for message in slot.asked)]
        choice = {"nobody": 0, "all": ALL, "a stranger": 5}
        suspect = choice.get(blame, flying[0 if blame == "first" else -1] if flying else 0)
        for request in flying:
            before = self.suspicions.get(request, 0)
            self.suspicions[request] = before + (suspect == request or (suspect == ALL and not before))
        del self.bench.slots[number]
        self.quarantined.discard(number)
        self.bench.gone(slot, suspect)
        for descriptor, _ in events:
            self.bench.finish(self.bench.links.receive(descriptor))
        assert number not in self.bench.links._links
        assert set(answered) <= set(flying)

    @rule(number=numbers)
    def quarantine(self, number: int) -> None:
        slot = self._slot_that_lives(number)
        if slot is not None:
            self.quarantined.add(number)
            for run in self.bench.links.quarantine(number, slot.generation):
                self.suspicions[run.request] = self.suspicions.get(run.request, 0) + 1

    @rule(seconds=st.sampled_from([0.0, 0.5, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.bench.retry(self.now)
        self.collect()
        assert all(deadline >= self.now for task, deadline in self.living.items() if self._parked(task))

    @precondition(lambda self: self.bench.links.unacknowledged)
    @rule()
    def acknowledge(self) -> None:
        links = self.bench.links
        elsewhere = [link for link in links._links.values() if link.runs and not (link.open and self._routed(link))]
        assert links.drained_epoch() == (0 if elsewhere else self.bench.epoch)

    def _slot_that_lives(self, number: int) -> Slot | None:
        slot = self.bench.slots.get(number)
        return slot if slot is not None and slot.alive else None

    def _parked(self, task: str) -> bool:
        return any(run.task == task for run in self.bench.links.parked)

    def _routed(self, link: Any) -> bool:
        return bool(self.masks[self.bench.epoch] >> link.slot & 1)

    @invariant()
    def collect(self) -> None:
        """What ended had been living, and what slots ended on was suspected as often as they are named."""
        for task, error in self.bench.ended.items():
            if task in self.living:
                del self.living[task]
            if isinstance(error, SlotsEnded):
                assert (1 if isinstance(error, SlotEnded) else 2) in self.suspicions.values()

    @invariant()
    def every_living_run_is_in_exactly_one_place(self) -> None:
        links = self.bench.links
        places = [run.task for link in links._links.values() for run in link.runs.values()]
        places += [run.task for run in links.parked]
        assert sorted(places) == sorted(self.living)

    @invariant()
    def slots_are_asked_only_what_a_route_led_to_them(self) -> None:
        for slot in self.bench.slots.values():
            for message in slot.read():
                assert self.masks[message.epoch] >> slot.number & 1
                assert slot.number not in self.quarantined
                assert message.status == (self.suspicions.get(message.request, 0) > 0)
                assert self.suspicions.get(message.request, 0) < 3

    def teardown(self) -> None:
        for slot in list(self.bench.slots.values()):
            slot.die()
            self.bench.gone(slot)
        self.bench.retry(self.now + 10_000)
        self.collect()
        assert self.living == {}
        assert len(self.bench.ended) == self.count
        assert self.bench.links._by_descriptor == {}
        self.bench.epoll.close()


AnyOrder.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_every_run_ends_exactly_once_in_any_order = AnyOrder.TestCase
