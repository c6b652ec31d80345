"""The plan: what is decided for a machine or a container, with a reason for each line."""

import pytest

from framelane.models.devices import DeviceError
from framelane.server.config import ConfigError, Settings
from framelane.server.ops.machine import Machine
from framelane.server.plan import Plan, make_plan

GIB = 2**30


def machine(cores: float = 4.0, memory: float = 16.0) -> Machine:
    return Machine(cores, "cores this process may use", int(memory * GIB), "the machine's memory")


def reasons(plan: Plan) -> dict[str, tuple[str, str]]:
    return {choice.what: (choice.value, choice.why) for choice in plan.choices}


def test_on_a_cpu_there_is_a_worker_and_a_slot_per_core() -> None:
    plan = make_plan(Settings(device="cpu"), machine(4))
    assert (plan.workers, plan.active_slots) == (4, 4)
    assert "one per core: 4 cores this process may use" in reasons(plan)["workers"][1]


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "tensorrt", "sim:8"])
def test_a_device_that_is_shared_gets_one_slot(device: str) -> None:
    plan = make_plan(Settings(device=device), machine(8))
    assert (plan.workers, plan.active_slots) == (8, 1)


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
