"""The plan: what is decided for a machine or a container, with a reason for each line."""

import msgspec
import pytest

from framelane.models.cuda import CardFacts, DriverFacts
from framelane.models.devices import DeviceError, parse_device
from framelane.models.gpu import GpuFacts
from framelane.models.providers import arena_budget
from framelane.server.config import ConfigError, Settings
from framelane.server.ops.machine import Machine
from framelane.server.plan import Plan, make_plan
from framelane.server.slots.cards import cpus_near, make_tuning, per_card

GIB = 2**30


def machine(cores: float = 4.0, memory: float = 16.0) -> Machine:
    return Machine(cores, "cores this process may use", int(memory * GIB), "the machine's memory")


def reasons(plan: Plan) -> dict[str, tuple[str, str]]:
    return {choice.what: (choice.value, choice.why) for choice in plan.choices}


def test_on_a_cpu_there_is_a_worker_and_a_slot_per_core() -> None:
    plan = make_plan(Settings(device="cpu"), machine(4))
    assert (plan.workers, plan.active_slots) == (4, 4)
    assert "one per core: 4 cores this process may use" in reasons(plan)["workers"][1]


@pytest.mark.parametrize(
    ("device", "slots"), [("sim:8", 1), ("cuda", 2), ("cuda:1", 2), ("tensorrt", 2), ("cuda:0,1,2,3", 8)]
)
def test_a_card_gets_two_slots_and_a_simulated_one_a_single(device: str, slots: int) -> None:
    plan = make_plan(Settings(device=device), machine(8))
    assert (plan.workers, plan.active_slots) == (8, slots)


def cards(count: int, gib: float = 22.5) -> GpuFacts:
    found = tuple(CardFacts(index, "NVIDIA L4", int(gib * GIB), f"0000:{index}b:00.0", "8.9") for index in range(count))
    return GpuFacts(
        wheels={"onnxruntime-gpu": "1.31.1"},
        providers=("cuda", "tensorrt"),
        build_cuda=(13, 0),
        driver=DriverFacts((13, 0), found),
    )


def test_auto_plans_for_the_card_where_it_works_and_for_the_cores_where_not() -> None:
    with_card = make_plan(Settings(), machine(8), cards(1))
    assert with_card.active_slots == 2
    assert "NVIDIA L4, 22.5 GiB" in reasons(with_card)["slots per card"][1]
    without = make_plan(Settings(), machine(8), GpuFacts(wheels={"onnxruntime": "1.32.0"}))
    assert without.active_slots == 8
    assert "runs on nothing else" in reasons(without)["device"][1]
    old = msgspec.structs.replace(cards(1), driver=DriverFacts((12, 4)))
    assert "install a newer driver" in reasons(make_plan(Settings(), machine(8), old))["device"][1]


def test_a_card_that_is_not_there_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="there is no card 2; there are 0"):
        make_plan(Settings(device="cuda:0,2"), machine(8), cards(2))


def test_more_processes_of_a_card_than_mps_serves_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"80 slots would share a card.*60"):
        make_plan(
            Settings(device="cuda", gpu_density=20, active_slots=3, audit_slots=1), machine(64, 256), cards(1, 80)
        )


def test_more_slots_than_the_memory_of_a_card_holds_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"40 slots .* do not fit a card of 22.5 GiB"):
        make_plan(Settings(device="cuda", gpu_density=20), machine(64), cards(1))


@pytest.mark.parametrize(
    ("density", "active", "standby", "cards", "processes"),
    [(1, 2, 1, 1, 3), (2, 2, 1, 1, 6), (3, 2, 1, 1, 9), (10, 2, 2, 1, 40), (1, 8, 4, 4, 3), (1, 2, 1, 2, 2)],
)
def test_standbys_of_the_other_replicas_of_a_card_are_counted(
    density: int, active: int, standby: int, cards: int, processes: int
) -> None:
    device = parse_device("cuda:" + ",".join(map(str, range(cards))))
    settings = Settings(gpu_density=density, standby_slots=standby)
    assert per_card(settings, device, active) == processes


@pytest.mark.parametrize(
    ("density", "active", "standby", "on_card", "processes"), [(3, 2, 1, 1, 7), (3, 2, 0, 1, 7), (10, 2, 2, 2, 22)]
)
def test_standbys_that_one_replica_of_a_card_has_for_all_are_counted_once(
    density: int, active: int, standby: int, on_card: int, processes: int
) -> None:
    settings = Settings(gpu_density=density, standby_slots=standby, gpu_standbys=on_card)
    assert per_card(settings, parse_device("cuda"), active) == processes


def test_standbys_of_ones_own_are_no_more_than_the_card_is_said_to_have() -> None:
    with pytest.raises(ConfigError, match="gpu_standbys = 1, but this replica alone has 2"):
        make_plan(Settings(device="cuda", standby_slots=2, gpu_standbys=1), machine(8), cards(1))
    make_plan(Settings(device="cuda:0,1", standby_slots=2, gpu_standbys=1), machine(8), cards(2))


def test_what_only_the_standbys_of_others_make_too_much_is_refused() -> None:
    """12 replicas of two active slots fit an L4, and one standby for all; not one standby each."""
    shared = {"device": "cuda", "gpu_density": 12, "active_slots": 2, "standby_slots": 1}
    with pytest.raises(DeviceError, match="36 slots"):
        make_plan(Settings(**shared), machine(16, 64), cards(1))  # type: ignore[arg-type]
    plan = make_plan(Settings(**shared, gpu_standbys=1), machine(16, 64), cards(1))  # type: ignore[arg-type]
    assert reasons(plan)["slots per card"][0] == "25"


def test_slots_take_turns_over_the_cards_and_divide_their_memory() -> None:
    device = parse_device("cuda:0,2")
    assert [device.of_slot(slot).name for slot in range(4)] == ["cuda:0", "cuda:2", "cuda:0", "cuda:2"]
    one = make_tuning(Settings(), device, 4, cards(3), models=2).memory
    assert one == arena_budget(int(22.5 * GIB), 2, 2)
    assert make_tuning(Settings(), parse_device("cpu"), 4, cards(3), models=2).memory == 0


@pytest.mark.parametrize(
    ("local", "near"), [("0-1,4", {0, 1, 4}), ("", {0, 1, 2, 3, 4}), ("64-127", {0, 1, 2, 3, 4}), ("2\n", {2})]
)
def test_a_slot_stays_on_the_cores_near_its_card(local: str, near: set[int]) -> None:
    assert cpus_near(local, {0, 1, 2, 3, 4}) == near


@pytest.mark.parametrize(("cores", "workers"), [(0.5, 1), (1.0, 1), (1.9, 1), (2.5, 2), (64.0, 64)])
def test_a_containers_share_of_the_cores_is_respected(cores: float, workers: int) -> None:
    limited = Machine(cores, "the container's cpu.max", 64 * GIB, "the machine's memory")
    plan = make_plan(Settings(device="cpu"), limited)
    assert plan.workers == workers
    assert f"{cores:g} the container's cpu.max" in reasons(plan)["workers"][1]


def test_what_was_configured_is_taken_and_said() -> None:
    settings = Settings(device="cpu", workers=3, active_slots=2, standby_slots=1, credits=5)
    plan = make_plan(settings, machine(16))
    assert (plan.workers, plan.active_slots, plan.standby_slots, plan.credits) == (3, 2, 1, 5)
    for what in ("workers", "active slots", "credits"):
        assert reasons(plan)[what][1] == "as configured"


def test_slots_and_processes_are_counted_over_all_kinds() -> None:
    settings = Settings(device="cpu", workers=3, spare_workers=2, active_slots=2, standby_slots=1, audit_slots=1)
    plan = make_plan(settings, machine(16))
    assert plan.slots == 4
    assert plan.processes == 9


def test_more_processes_than_fit_into_memory_are_refused_with_both_numbers() -> None:
    small = Machine(2.0, "cores", 512 * 2**20, "the container's memory.max")
    with pytest.raises(ConfigError) as caught:
        make_plan(Settings(device="cpu", workers=16), small)
    assert "16" in caught.value.message
    assert "the container's memory.max is 512 MiB" in caught.value.message
    assert "lower workers, active_slots, credits or max_frame_bytes" in caught.value.message
    make_plan(Settings(device="cpu", workers=1, active_slots=1, spare_workers=0), small)


def test_shared_memory_that_does_not_fit_is_refused_before_the_kernel_kills_somebody() -> None:
    """64 credits of 64 MiB frames in four workers and a spare are 20 GiB of pages that are touched at start."""
    settings = Settings(device="cpu", workers=4, credits=64, max_frame_bytes=64 * 2**20)
    with pytest.raises(ConfigError, match="64 credits for frames of 65536 KiB"):
        make_plan(settings, machine(4, memory=8))


def test_a_device_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(DeviceError, match="device 'gpu'"):
        make_plan(Settings(device="gpu"), machine())


def test_a_simulated_device_is_called_so() -> None:
    plan = make_plan(Settings(device="sim:8"), machine())
    assert "SIMULATED" in reasons(plan)["device"][1]
    assert plan.device.simulated
    assert "SIMULATED" not in reasons(make_plan(Settings(device="cpu"), machine()))["device"][1]


def test_every_line_of_the_plan_has_a_reason() -> None:
    for device in ("auto", "cpu", "cuda", "sim:1"):
        for choice in make_plan(Settings(device=device), machine()).choices:
            assert choice.what
            assert choice.value
            assert choice.why
