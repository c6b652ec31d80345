"""Which replica gets what."""

from typing import Any

import pytest

from framelane.models.cuda import CardFacts, DriverFacts
from framelane.models.devices import DeviceError, parse_device
from framelane.models.gpu import GpuFacts
from framelane.server.config import ConfigError, Settings
from framelane.server.fleet.layout import Layout, check_cards_of, lay_out, on_its_card, ranges, share_cpus
from framelane.server.slots.cards import per_card

PORTS = range(8001, 8100)


def laid_out(**given: Any) -> Layout:
    asked = {"replicas": None, "active": None, "devices": ["cuda:0"], "density": None, "cpus": range(8), **given}
    return lay_out(**asked, ports=PORTS)


def test_default_is_two_that_serve_and_a_spare() -> None:
    layout = laid_out()
    assert (len(layout.members), layout.active) == (3, 2)
    assert [member.port for member in layout.members] == [8001, 8002, 8003]


def test_one_replica_serves_alone() -> None:
    layout = laid_out(replicas=1)
    assert (len(layout.members), layout.active, layout.shares) == (1, 1, ())


def test_replicas_go_round_the_devices() -> None:
    layout = laid_out(replicas=5, devices=["cuda:0", "cuda:1"])
    assert [member.device for member in layout.members] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]


def test_density_decides_how_many_serve_and_a_spare_comes_on_top() -> None:
    layout = laid_out(devices=["cuda:0", "cuda:1"], density=2)
    assert (len(layout.members), layout.active) == (5, 4)


def test_density_below_the_replicas_makes_more_spares() -> None:
    layout = laid_out(replicas=6, devices=["cuda:0", "cuda:1"], density=1)
    assert layout.active == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replicas": 2, "active": 3}, "--active 3 of 2"),
        ({"active": 5, "density": 2, "devices": ["cuda:0", "cuda:1"]}, "--density 2 allows"),
        ({"devices": ["gpu"]}, "'gpu'"),
    ],
)
def test_contradiction_is_refused_with_both_sides(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=says) as refused:
        laid_out(**given)
    assert isinstance(refused.value, ConfigError) or refused.value.code == "bad_device"  # type: ignore[attr-defined]


def test_cpus_are_cut_into_blocks_of_neighbours() -> None:
    assert share_cpus([7, 0, 1, 2, 3, 4, 5], 3) == ((0, 1), (2, 3), (4, 5, 7))


def test_too_few_cpus_are_shared_and_workers_are_divided() -> None:
    layout = laid_out(replicas=5, active=4, cpus=[0, 1])
    assert (layout.shares, layout.workers) == ((), 1)
    assert laid_out(cpus=range(8)).workers is None


def test_every_choice_has_its_reason() -> None:
    choices = laid_out(cpus=range(2)).choices
    assert all(choice.value and choice.why for choice in choices)


def test_ranges_are_short() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def gpu(cards: int = 2, gib: float = 22.5) -> GpuFacts:
    found = tuple(
        CardFacts(index, "NVIDIA L4", int(gib * 2**30), f"0000:{index}b:00.0", "8.9") for index in range(cards)
    )
    return GpuFacts(
        wheels={"onnxruntime-gpu": "1.31.1"},
        providers=("cuda", "tensorrt"),
        build_cuda=(13, 0),
        driver=DriverFacts((13, 0), found),
    )


def each_on_its_card(settings: Settings, layout: Layout) -> list[dict[str, int]]:
    return [on_its_card(settings, layout.members, member) for member in layout.members]


@pytest.mark.parametrize("replicas", [1, 2])
def test_up_to_two_replicas_on_a_card_each_have_their_standbys(replicas: int) -> None:
    found = each_on_its_card(Settings(standby_slots=1), laid_out(replicas=replicas))
    assert found == [{"gpu_density": replicas}] * replicas


def test_of_more_replicas_the_first_on_each_card_has_the_standbys_and_all_know_it() -> None:
    layout = laid_out(replicas=7, devices=["cuda:0", "tensorrt:1"])
    settings = Settings(standby_slots=2, active_slots=3)
    found = each_on_its_card(settings, layout)
    assert [options.get("standby_slots", 2) for options in found] == [2, 2, 0, 0, 0, 0, 0]
    assert {options["gpu_standbys"] for options in found} == {2}
    assert [options["gpu_density"] for options in found] == [4, 3, 4, 3, 4, 3, 4]
    for member, options in zip(layout.members, found, strict=True):
        told = Settings(**{"standby_slots": 2, "active_slots": 3, **options})
        assert per_card(told, parse_device(member.device), 3) == options["gpu_density"] * 3 + 2


@pytest.mark.parametrize("device", ["cpu", "auto", "sim:8:group=one"])
def test_replicas_that_share_no_card_keep_their_standbys(device: str) -> None:
    assert each_on_its_card(Settings(standby_slots=1), laid_out(devices=[device])) == [{"gpu_density": 3}] * 3


def test_what_the_operator_says_of_density_and_standbys_is_kept() -> None:
    settings = Settings(standby_slots=1, gpu_density=5, gpu_standbys=5)
    assert each_on_its_card(settings, laid_out(replicas=3)) == [{"gpu_density": 5}] * 3


def test_a_fleet_that_a_card_cannot_hold_is_refused_before_a_replica_starts() -> None:
    """Twenty replicas of two slots on an L4 have no memory; with three slots each they are also too many for MPS."""
    twenty = laid_out(replicas=20, active=19).members
    with pytest.raises(DeviceError, match=r"41 slots .* do not fit a card of 22.5 GiB"):
        check_cards_of(Settings(standby_slots=1), twenty, gpu())
    with pytest.raises(ConfigError, match=r"61 slots would share a card, and MPS serves at most 60"):
        check_cards_of(Settings(standby_slots=1, active_slots=3), twenty, gpu(gib=80))
    check_cards_of(Settings(active_slots=3), twenty, gpu(gib=80))
    check_cards_of(Settings(standby_slots=1), laid_out(replicas=12, active=11).members, gpu())


def test_a_fleet_on_the_cpu_is_not_held_against_a_card() -> None:
    check_cards_of(Settings(standby_slots=31), laid_out(replicas=20, devices=["cpu"]).members, gpu())
    check_cards_of(Settings(standby_slots=31), laid_out(replicas=20, devices=["auto"]).members, GpuFacts())
