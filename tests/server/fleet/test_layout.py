"""Which replica gets what."""

from typing import Any

import pytest

from framelane.server.config import ConfigError
from framelane.server.fleet.layout import Layout, lay_out, ranges, share_cpus

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
