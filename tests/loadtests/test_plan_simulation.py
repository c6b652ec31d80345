"""The simulated path of a frame, where arithmetic knows the answer."""

import pytest

from framelane.loadtests.plan import Stages
from framelane.loadtests.plan_simulation import Load, Replica, simulate

STAGES = Stages(gateway_ms=0.2, worker_ms=2.0, slot_ms=10.0, slot_cpu_ms=0.0, wait_ms=0.4)
ROOMY = Replica(workers=2, slots=1, cores=8, spread=0.0, deadline_ms=10_000)


def test_lone_client_sees_the_sum_of_the_stages():
    found = simulate(STAGES, ROOMY, Load(users=1, fps=0, pause_ms=5), 5)
    assert found.p50_ms == pytest.approx(12.6, rel=0.01)
    assert found.delivery == 1.0


@pytest.mark.parametrize(("slots", "per_second"), [(1, 100), (2, 2 / 0.0144), (3, 3 / 0.0208)])
def test_saturated_slots_give_what_they_can(slots, per_second):
    stages = Stages(gateway_ms=0, worker_ms=0.1, slot_ms=10, slot_cpu_ms=0, wait_ms=0, tax=(1, 1.44, 2.08))
    replica = Replica(workers=4, slots=slots, cores=8, spread=0.0, credits=4, deadline_ms=10_000)
    found = simulate(stages, replica, Load(users=12, fps=0), 5)
    assert found.per_second == pytest.approx(per_second, rel=0.02)
    assert found.slots_busy > 0.97


def test_cores_are_shared_by_all_processes():
    stages = Stages(gateway_ms=1, worker_ms=4, slot_ms=0.1, slot_cpu_ms=0.1, wait_ms=0)
    replica = Replica(workers=2, slots=2, cores=1, spread=0.0, deadline_ms=10_000, generator_ms=0.9)
    found = simulate(stages, replica, Load(users=8, fps=0), 5)
    assert found.per_second == pytest.approx(1000 / 6.0, rel=0.02)


def test_overload_lowers_the_delivery_and_keeps_the_age_below_the_deadline():
    replica = Replica(workers=2, slots=1, cores=8, deadline_ms=500)
    found = simulate(STAGES, replica, Load(users=200, fps=1), 20)
    assert 75 <= found.per_second <= 101
    assert found.delivery == pytest.approx(0.45, abs=0.07)
    assert found.p95_ms <= 500


def test_open_load_below_capacity_is_delivered():
    found = simulate(STAGES, ROOMY, Load(users=80, fps=0.75), 20)
    assert found.delivery == 1.0
    assert found.per_second == pytest.approx(60, rel=0.03)


def test_frames_of_two_runs_go_through_a_slot_twice():
    replica = Replica(workers=2, slots=1, cores=8, spread=0.0, runs=2, deadline_ms=10_000)
    assert simulate(STAGES, replica, Load(users=1, fps=0, pause_ms=1), 5).p50_ms == pytest.approx(12.6, rel=0.01)


def test_same_seed_same_run():
    runs = [simulate(STAGES, Replica(), Load(users=20, fps=2), 5) for _ in range(2)]
    assert runs[0] == runs[1]
