"""What limits a replica, from windows that were made up: no clock, no processes."""

from typing import Any

import pytest

from framelane.preprocess.stages import Stage
from framelane.server.ops.diagnosis import Diagnosis, Limit, diagnose
from framelane.server.ops.pressure import Facts
from framelane.server.ops.window import Load, Window

CARD = Facts(device="cuda:0", on_cores=False)


def window(slots: float = 0.1, workers: float = 0.1, gateway: float = 0.1, *, count: int = 1, **changes: Any) -> Window:
    """Ten seconds of ten clients at 10 frames per second, of which each resource was taken for such a share."""
    loads = [
        Load("gateway", "gateway", "active", gateway, gateway),
        *(Load("worker", f"worker-{index}", "active", workers, workers) for index in range(2)),
        *(Load("slot", f"slot-{index}", "active", slots, 0.01) for index in range(count)),
        Load("worker", "worker-2", "parked", 0.0, 0.0),
        Load("slot", "slot-9", "standby", 1.0, 0.0),
    ]
    usual: dict[str, Any] = {"clients": 10, "admitted": 10, "senders": 10, "received_fps": 100.0}
    usual |= {"delivered_fps": 100.0, "cores": 4.0, "capacity_fps": 1000.0, "loads": loads}
    return Window(seconds=10.0, **{**usual, **changes})


def found(seen: Window, facts: Facts = CARD) -> Diagnosis:
    return diagnose(seen, facts)


def test_busy_slots_are_the_limit_and_another_slot_the_advice() -> None:
    said = found(window(slots=0.97, stages={Stage.QUEUE: 0.2, Stage.SLOT_WAIT: 0.05}))
    assert said.limit is Limit.SLOTS
    assert said.sentence.startswith("slot-bound: the active slot is 97 % busy and frames wait 250 ms for that")
    assert "--active-slots 2" in said.advice
    assert said.headroom_users is None


def test_a_device_that_is_busy_itself_needs_more_compute() -> None:
    assert found(window(slots=0.97, gpu=0.95)).limit is Limit.GPU
    assert found(window(slots=0.97), Facts(on_cores=False, shared_device=True)).limit is Limit.GPU


def test_busy_slots_on_a_device_that_is_not_need_another_slot() -> None:
    said = found(window(slots=0.97, gpu=0.13, count=2))
    assert said.limit is Limit.SLOTS
    assert "only 13 % busy" in said.sentence
    assert "--active-slots 3" in said.advice


def test_busy_workers_with_idle_cores_need_more_workers() -> None:
    said = found(window(workers=0.95))
    assert said.limit is Limit.PREPROCESS
    assert "the 2 workers are 95 % busy" in said.sentence
    assert "--workers 4" in said.advice


def test_a_busy_event_loop_needs_a_second_replica() -> None:
    said = found(window(slots=0.31, gateway=0.92))
    assert said.limit is Limit.GATEWAY
    assert said.advice.startswith("a second replica: the event loop is 92 % busy while the slots are 31 % busy")


def test_waiting_for_a_core_counts_as_taken_by_the_event_loop() -> None:
    loads = [Load("gateway", "gateway", "active", 0.95, 0.6, 0.35), Load("slot", "slot-0", "active", 0.2, 0.0)]
    assert found(window(loads=loads)).limit is Limit.GATEWAY


def test_an_event_loop_that_mostly_tells_clients_things_fans_out() -> None:
    assert found(window(gateway=0.95, told_fps=4000.0)).limit is Limit.FAN_OUT


def test_results_that_are_not_read_are_the_networks() -> None:
    said = found(window(slots=0.95, shed_fps=40.0, blocked=4.0))
    assert said.limit is Limit.NETWORK
    assert "4 of 10 clients do not read" in said.sentence
    assert "29 % of the results are shed" in said.sentence


def test_clients_that_wait_while_nothing_is_busy_wait_for_places() -> None:
    said = found(window(waiting=3), Facts(on_cores=False, max_clients=10))
    assert said.limit is Limit.ADMISSION
    assert said.advice.startswith("raise --max-clients (now 10)")


def test_clients_that_wait_for_what_is_full_are_no_matter_of_admission() -> None:
    assert found(window(slots=0.95, waiting=3), Facts(on_cores=False, max_clients=10)).limit is Limit.SLOTS


def test_somewhat_busy_is_a_limit_only_while_frames_are_lost() -> None:
    calm = window(slots=0.8)
    assert found(calm).limit is Limit.IDLE
    assert found(window(slots=0.8, dropped_fps={"superseded": 10.0})).limit is Limit.SLOTS
    assert found(window(slots=0.8, held_back=True)).limit is Limit.SLOTS


def full_cores(slot: float, worker: float, gateway: float, others: float = 0.0) -> Window:
    """Two cores that are full: all look busy, since all wait for a core."""
    loads = [
        Load("gateway", "gateway", "active", 0.9, gateway, 0.9 - gateway),
        Load("worker", "worker-0", "active", 0.99, worker, 0.99 - worker),
        Load("slot", "slot-0", "active", 0.99, slot, 0.99 - slot),
    ]
    return window(loads=loads, cores=2.0, others=others)


@pytest.mark.parametrize(
    ("used", "limit"),
    [((0.9, 0.6, 0.5), Limit.SLOTS), ((0.5, 0.95, 0.2, 0.4), Limit.PREPROCESS), ((0.3, 0.2, 0.85, 0.7), Limit.GATEWAY)],
)
def test_on_full_cores_who_uses_most_of_them_is_the_limit(used: tuple[float, ...], limit: Limit) -> None:
    assert found(full_cores(*used), Facts()).limit is limit


def test_programs_that_have_taken_the_cores_are_named() -> None:
    said = found(window(workers=0.4, cores=2.0, others=1.4, dropped_fps={"expired": 50.0}), Facts())
    assert said.limit is Limit.PREPROCESS
    assert "other programs 70 %" in said.sentence
    assert "other programs use them" in said.advice


def test_where_others_have_taken_the_cores_the_busiest_is_the_limit_however_little_it_gets() -> None:
    """As measured beside nine others: 91 % busy, nearly all of it waiting for a core, as is the event loop."""
    seen = window(loads=[
        Load("gateway", "gateway", "active", 0.83, 0.08, 0.75),
        Load("worker", "worker-0", "active", 0.91, 0.06, 0.85),
        Load("slot", "slot-0", "active", 0.23, 0.01, 0.1),
    ], cores=2.0, others=1.8, dropped_fps={"superseded": 300.0})  # fmt: skip
    assert found(seen).limit is Limit.PREPROCESS


def test_headroom_follows_from_the_capacity_while_little_is_known() -> None:
    said = found(window(slots=0.1))
    assert (said.limit, said.headroom_users) == (Limit.IDLE, 90)
    assert said.sentence.startswith("idle: headroom about 90 users")


def test_headroom_is_no_more_than_the_tightest_resource_has() -> None:
    assert found(window(slots=0.5)).headroom_users == 10
    assert found(window(gateway=0.25)).headroom_users == 30


def test_headroom_is_no_more_than_there_are_places() -> None:
    assert found(window(), Facts(on_cores=False, max_clients=12)).headroom_users == 2


def test_without_clients_headroom_is_what_clients_are_promised() -> None:
    quiet = {"clients": 0, "admitted": 0, "senders": 0, "received_fps": 0.0, "delivered_fps": 0.0}
    assert found(window(0.0, 0.0, 0.0, **quiet)).headroom_users == 100


def test_frames_that_are_dropped_for_other_reasons_are_told() -> None:
    said = found(window(dropped_fps={"invalid": 50.0}))
    assert said.limit is Limit.IDLE
    assert "33 % of the frames are dropped as invalid" in said.sentence
    assert "look at what these clients send" in said.advice


def test_an_empty_window_is_idle() -> None:
    assert found(Window(seconds=1.0)).limit is Limit.IDLE
