"""How processes are replaced: the budget as pure decisions, the keeper with real processes that do as they are told."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from replica import HERE, descriptors, until

from framelane.preprocess import keeper as keeper_module
from framelane.preprocess.children import Child, StartFailed
from framelane.preprocess.keeper import MAX_START_FAILURES, Budget, Keeper, restart_delay
from framelane.preprocess.memory import Memory
from framelane.preprocess.messages import Message
from framelane.preprocess.progress import PAGE_BYTES


@pytest.mark.parametrize(
    ("failures", "seconds"), [(-1, 0.0), (0, 0.0), (1, 0.25), (2, 0.5), (3, 1.0), (7, 10.0), (50, 10.0), (10**5, 10.0)]
)
def test_restarts_are_spaced_out_up_to_ten_seconds(failures: int, seconds: float) -> None:
    assert restart_delay(failures) == seconds


def test_short_lives_in_a_row_are_replaced_later_and_later_and_a_long_one_at_once() -> None:
    budget = Budget()
    assert [budget.pause(1.0) for _ in range(4)] == [0.0, 0.25, 0.5, 1.0]
    assert budget.pause(60.0) == 0.0
    assert [budget.pause(1.0) for _ in range(2)] == [0.0, 0.25]


def test_an_end_that_was_asked_for_does_not_count() -> None:
    budget = Budget()
    for _ in range(3):
        budget.pause(1.0)
    budget.forgive()
    assert [budget.pause(1.0) for _ in range(3)] == [0.0, 0.0, 0.25]


def test_what_cannot_start_is_tried_a_few_times_and_what_dies_for_ever() -> None:
    budget = Budget()
    pauses = [budget.pause(0.1, could_start=False) for _ in range(MAX_START_FAILURES)]
    assert pauses[-1] is None
    assert None not in pauses[:-1]
    assert budget.pause(0.1, could_start=True) is not None


# -- with processes --------------------------------------------------------------------------------------------------


class Talker:
    def __init__(self, index: int, generation: int, child: Child) -> None:
        self.index = index
        self.generation = generation
        self.child = child
        self.born = time.monotonic()


class Kennel:
    """Keeps processes that are ready at once, and end as ``then`` says."""

    def __init__(self) -> None:
        self.pages = Memory.create("pages", 2 * PAGE_BYTES)
        self.then = "wait"
        self.refusals: list[str] = []
        self.buried: list[tuple[int, int]] = []
        self.keeper = Keeper("talker", spawn=self.spawn, introduce=self.introduce, hear=self.hear, bury=self.bury)

    def spawn(self, index: int, generation: int) -> Talker:
        if "spawn" in self.refusals:
            self.refusals.remove("spawn")
            raise OSError("no descriptors now")
        config = {"messages": self.then == "wait", "then": self.then}
        return Talker(index, generation, Child("child_that_talks", f"talker-{index}", config, self.pages, index))

    def introduce(self, _talker: Talker) -> None:
        if "introduce" in self.refusals:
            self.refusals.remove("introduce")
            raise OSError("no descriptors now")

    def hear(self, talker: Talker, message: Message) -> None:
        self.keeper.proven(talker)

    def bury(self, talker: Talker) -> None:
        self.buried.append((talker.index, talker.generation))


@pytest_asyncio.fixture
async def kennel(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kennel]:
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setattr(keeper_module, "restart_delay", lambda _failures: 0.0)
    kennel = Kennel()
    yield kennel
    await kennel.keeper.stop(1.0)
    kennel.pages.close()


async def test_a_process_that_ends_is_followed_by_one_of_the_next_generation(kennel: Kennel) -> None:
    await kennel.keeper.start(2)
    assert kennel.keeper.complete
    first = kennel.keeper.living[1]
    first.child.kill()
    await until(lambda: kennel.keeper.living.get(1, first) is not first)
    assert kennel.buried == [(1, 0)]
    assert kennel.keeper.living[1].generation == kennel.keeper.restarts == 1


async def test_a_first_process_that_cannot_start_fails_the_start_and_may_be_tried_again(kennel: Kennel) -> None:
    kennel.then = "refuse"
    with pytest.raises(StartFailed, match="talker-0: RuntimeError: no more of it"):
        await kennel.keeper.start(1)
    assert kennel.keeper.living == {}
    assert kennel.keeper.restarts == 0
    kennel.then = "wait"
    await kennel.keeper.begin(0)


async def test_a_place_whose_processes_cannot_start_any_more_is_given_up_and_can_be_filled_again(
    kennel: Kennel,
) -> None:
    fatal: list[StartFailed] = []
    kennel.keeper.on_fatal = fatal.append
    await kennel.keeper.start(1)
    kennel.then = "refuse"
    os.kill(kennel.keeper.living[0].child.pid, signal.SIGKILL)
    await until(lambda: fatal)
    assert "no more of it" in kennel.keeper.given_up[0]
    assert len(kennel.buried) == MAX_START_FAILURES
    kennel.then = "wait"
    await kennel.keeper.begin(0)
    assert kennel.keeper.given_up == {}
    assert kennel.keeper.living[0].generation == MAX_START_FAILURES


@pytest.mark.parametrize("refused", ["spawn", "introduce"])
async def test_a_replacement_that_cannot_be_had_now_is_tried_again_and_nothing_of_it_is_left(
    kennel: Kennel, refused: str
) -> None:
    await kennel.keeper.start(1)
    before = descriptors()
    first = kennel.keeper.living[0]
    kennel.refusals += [refused] * 2
    first.child.kill()
    await until(lambda: not kennel.refusals and kennel.keeper.living.get(0, first) is not first)
    await until(lambda: descriptors() == before)
    assert len(kennel.keeper.living) == 1


async def test_stopping_lets_them_finish_and_kills_those_that_take_longer(kennel: Kennel) -> None:
    await kennel.keeper.start(1)
    deaf = kennel.keeper.living[0]
    os.kill(deaf.child.pid, signal.SIGSTOP)
    async with asyncio.timeout(10):
        await kennel.keeper.stop(0.1)
    assert kennel.keeper.living == {}
    assert kennel.keeper.restarts == 0
