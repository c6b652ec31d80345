"""What is warned of before anything has been measured, and after."""

import pytest

from framelane.server.cautions import cautions, measured_cautions
from framelane.server.config import Settings
from framelane.server.ops.machine import Machine
from framelane.server.plan import make_plan

TWO_CORES = Machine(2.0, "cores", 16 << 30, "memory")


def warned(**settings: object) -> list[str]:
    given = Settings(**settings)  # type: ignore[arg-type]
    return cautions(given, make_plan(given, TWO_CORES))


def test_defaults_are_fine() -> None:
    assert warned() == []
    assert warned(device="sim:8") == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cpu", "active_slots": 4}, "active_slots = 4 on 2 cores: they take turns"),
        ({"device": "auto", "active_slots": 4}, "where the device turns out to be the CPU"),
        ({"workers": 6}, "workers = 6 on 2 cores"),
        ({"device": "cpu", "gpu_permits": 1}, "gpu_permits has no use on the CPU"),
        ({"device": "cuda", "gpu_permits": 1, "active_slots": 2}, "the other slots only wait"),
        ({"device": "cuda", "active_slots": 4, "workers": 1, "credits": 2}, "credits = 4 would do"),
        ({"device": "cuda", "gpu_density": 4, "standby_slots": 1}, "a card holds 4 standbys"),
        ({"workers": 2, "credits": 3, "in_work": 7}, "cells for 6 frames: no more can be in work"),
        ({"mailbox_bytes": 2**20, "max_frame_bytes": 2**21}, "always refused as rate_limited"),
        ({"outbox_bytes": 2**16}, "raise outbox_bytes"),
        ({"device": "sim:600"}, "a run takes 600 ms: no result can be in time"),
        ({"device": "sim:100:batch=2", "max_clients": 10}, "are 100 frames per second, but 20 are all"),
        ({"device": "sim:200", "client_fps": 6.0}, "not one client can have what it is promised"),
    ],
)
def test_what_cannot_work_together_is_said_with_its_cure(settings: dict[str, object], words: str) -> None:
    assert any(words in caution for caution in warned(**settings)), warned(**settings)


def test_standbys_that_are_shared_or_few_are_fine() -> None:
    assert warned(device="cuda", gpu_density=4, standby_slots=1, gpu_standbys=1) == []
    assert warned(device="cuda", gpu_density=2, standby_slots=1) == []
    assert warned(device="cpu", gpu_density=4, standby_slots=1) == []


def test_a_card_has_room_for_more_slots_than_cores() -> None:
    assert warned(device="cuda", active_slots=3) == []


def test_what_was_measured_is_held_against_the_settings() -> None:
    settings = Settings(max_clients=100, client_fps=10.0, deadline_ms=50)
    assert measured_cautions(settings, 0.01, 2000.0) == []
    assert measured_cautions(settings, 0.01, float("inf")) == []
    slow = measured_cautions(settings, 0.06, 300.0)
    assert "a frame alone takes 60 ms" in slow[0]
    assert "but 300 were measured" in slow[1]
    assert "or use 30" in slow[1]
