"""The simulated device: real outputs, a capacity that is known, and a card that several processes share."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_models import write_double

from framelane.models import reference_network
from framelane.models.devices import DeviceError, Simulation, parse_device
from framelane.models.locks import ByteLocks
from framelane.models.registry import ModelSpec, Registry, load_model
from framelane.models.session import Bound, OnnxSession, open_session
from framelane.models.simulated import SharedCard, SimulatedSession

STAY_ON_THE_CARD = """
import sys
from framelane.models.devices import parse_device
from framelane.models.simulated import SharedCard
card = SharedCard(parse_device(sys.argv[1]).simulation)
place = card._enter()
print(place, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A group that no other test run on this machine can be in."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return "g"


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return load_model(write_double(tmp_path))


def session(spec: ModelSpec, device: str) -> SimulatedSession:
    opened = open_session(spec, parse_device(device))
    assert isinstance(opened, SimulatedSession)
    return opened


def cell(opened: SimulatedSession | OnnxSession) -> Bound:
    return opened.bind(
        tuple(np.zeros((1, *tensor.shape), tensor.dtype) for tensor in opened.spec.inputs),
        tuple(np.full((1, *tensor.shape), 5, tensor.dtype) for tensor in opened.spec.outputs),
    )


def simulation(text: str) -> Simulation:
    found = parse_device(text).simulation
    assert found is not None
    return found


class Member:
    """Another process that runs on the card until it is told to stop, or killed."""

    def __init__(self, device: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STAY_ON_THE_CARD, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def entered(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def members() -> Iterator[list[Member]]:
    started: list[Member] = []
    yield started
    for member in started:
        member.kill()


# -- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["blazeface_short", "face_landmark"])
def test_outputs_are_those_of_the_recorded_real_run(name: str) -> None:
    spec = Registry([]).get(name)
    simulated, real = session(spec, "sim:0"), OnnxSession(spec, parse_device("cpu"))
    answer, truth = cell(simulated), cell(real)
    with np.load(spec.path.with_name("recorded.npz")) as recorded:
        for tensor, array in zip(spec.inputs, truth.inputs, strict=True):
            array[0] = recorded[tensor.name]
    simulated.run([answer])
    real.run([truth])
    for ours, theirs in zip(answer.outputs, truth.outputs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_without_a_recording_the_outputs_are_those_of_a_real_run_of_noise(spec: ModelSpec) -> None:
    answers = []
    for opened in (session(spec, "sim:0"), session(spec, "sim:8")):
        items = [cell(opened) for _ in range(3)]
        opened.run(items)
        answers += [item.outputs[0].tolist() for item in items]
    assert answers == answers[:1] * 6
    assert all(0 < value < 2 for value in answers[0][0])  # twice the noise


def test_the_reference_network_answers_with_numbers_that_are_not_nothing(tmp_path: Path) -> None:
    reference_network.generate(tmp_path / "reference", side=32, blocks=1)
    opened = session(load_model(tmp_path / "reference"), "sim:0")
    answer = cell(opened)
    opened.run([answer])
    assert np.count_nonzero(answer.outputs[0]) > 64


def test_the_device_says_simulated(spec: ModelSpec) -> None:
    assert session(spec, "sim:8").device == "sim:8 (SIMULATED)"


def test_a_model_that_could_not_run_for_real_is_refused_here_too(tmp_path: Path) -> None:
    bad = load_model(write_double(tmp_path, batch=4))
    with pytest.raises(Exception, match="fixes the batch axis"):
        session(bad, "sim:8")


def test_a_real_device_cannot_be_simulated(spec: ModelSpec) -> None:
    with pytest.raises(DeviceError, match="cpu is not a simulation"):
        SimulatedSession(spec, parse_device("cpu"))


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "best"), [("sim:8", 1), ("sim:8:batch=4", 4), ("sim:8:batch=99", 8)])
def test_the_batch_is_what_was_asked_for_but_never_beyond_the_model(spec: ModelSpec, device: str, best: int) -> None:
    opened = session(spec, device)
    assert opened.best_batch == best
    assert set(opened.warm_up()) == {1, best}


def slept(monkeypatch: pytest.MonkeyPatch, opened: SimulatedSession, items: int) -> float:
    """Milliseconds that a run would wait."""
    waits: list[float] = []
    monkeypatch.setattr("framelane.models.simulated.time.sleep", waits.append)
    opened.run([cell(opened) for _ in range(items)])
    return sum(waits) * 1000


def test_a_run_waits_its_time_and_more_per_item(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = session(spec, "sim:8:batch=4:item=0.5")
    assert slept(monkeypatch, opened, 1) == pytest.approx(8.5)
    assert slept(monkeypatch, opened, 4) == pytest.approx(10.0)
    assert opened.warm_up() == {1: 8.5, 4: 10.0}


def test_capacity_is_one_run_after_another_and_costs_no_cpu(spec: ModelSpec) -> None:
    opened = session(spec, "sim:8")
    item = cell(opened)
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(12):
        opened.run([item])
    assert 12 * 0.008 <= time.perf_counter() - start < 2.0
    assert time.process_time() - cpu < 0.048


# -- the shared card -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tax", "running", "factor"),
    [
        ("1,1.44,2.08", 1, 1.0),
        ("1,1.44,2.08", 3, 2.08),
        ("1,1.44,2.08", 5, 2.08 + 2 * 0.64),
        ("1,1,1", 9, 1.0),
        ("1.5", 4, 1.5),
    ],
)
def test_beyond_the_list_the_last_step_of_the_tax_goes_on(group: str, tax: str, running: int, factor: float) -> None:
    card = SharedCard(simulation(f"sim:8:group={group}:tax={tax}"))
    assert card._factor(running) == pytest.approx(factor)


def test_others_are_counted_wherever_they_sit_and_whenever_they_came(group: str) -> None:
    """The kernel lists locks by age, not by place: the one at place 1 is now the oldest."""
    one, two, three, four = (ByteLocks(f"sim-{group}") for _ in range(4))
    one.acquire(0)
    two.acquire(1)
    one.release(0)
    one.acquire(0)
    three.acquire(2)
    assert [locks.held_by_others(64) for locks in (one, two, three, four)] == [2, 2, 2, 3]
    for locks in (one, two, three, four):
        locks.close()


def test_a_member_in_another_process_slows_a_run_and_its_death_ends_that(
    group: str, members: list[Member], spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = f"sim:8:group={group}:tax=1,3"
    members.append(Member(device))
    opened = session(spec, device)
    assert members[0].entered() == 0
    card = opened._card
    assert card is not None
    monkeypatch.setattr("framelane.models.simulated.time.monotonic", lambda: 0.0)
    waits: list[float] = []
    monkeypatch.setattr("framelane.models.simulated.time.sleep", waits.append)
    card.run(0.008)
    assert waits[-1] == pytest.approx(0.024)  # when the run is due, seen from a clock that stands still
    members[0].kill()
    card.run(0.008)
    assert waits[-1] == pytest.approx(0.008)


def test_three_killed_members_leave_their_places_to_others(group: str, members: list[Member]) -> None:
    device = f"sim:8:group={group}:tax=1,2,3,4"
    members += [Member(device) for _ in range(3)]
    assert sorted(member.entered() for member in members) == [0, 1, 2]
    locks = ByteLocks(f"sim-{group}")
    assert locks.held_by_others(64) == 3
    for member in members:
        member.kill()
    assert locks.held_by_others(64) == 0
    locks.close()


def test_serial_members_take_turns_and_a_killed_one_passes_its_turn_on(group: str, members: list[Member]) -> None:
    device = f"sim:8:group={group}:serial"
    members += [Member(device), Member(device)]
    first = next(member for member in members if _readable_first(members) is member)
    second = next(member for member in members if member is not first)
    assert first.entered() == 0
    locks = ByteLocks(f"sim-{group}")
    assert not locks.try_acquire(0)
    first.kill()
    assert second.entered() == 0  # waits until the kernel has freed the dead one's turn
    assert not locks.try_acquire(0)
    second.kill()
    assert locks.try_acquire(0)
    locks.close()


def _readable_first(members: list[Member]) -> Member:
    import select

    outputs = {member.process.stdout: member for member in members}
    ready, _, _ = select.select(list(outputs), [], [], 30)
    return outputs[ready[0]]


def test_groups_do_not_share_a_card(group: str) -> None:
    one, other = SharedCard(simulation(f"sim:8:group={group}:serial")), SharedCard(simulation("sim:8:group=h:serial"))
    assert one._enter() == 0
    assert other._enter() == 0


def test_more_members_than_places_is_an_error_that_names_the_group(group: str) -> None:
    cards = [SharedCard(simulation(f"sim:8:group={group}:tax=1,2")) for _ in range(65)]
    assert [card._enter() for card in cards[:64]] == list(range(64))
    with pytest.raises(DeviceError, match=r"more than 64 slots run in the simulated group 'g'"):
        cards[64].run(0.0)
    for card in cards:
        card._locks.close()
