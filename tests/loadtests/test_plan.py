"""Plans and projections, with the campaign's figures."""

import contextlib
import importlib.resources

import pytest

from framelane.loadtests.cost import Price, parse_prices
from framelane.loadtests.plan import Demand, Layout, PlanError, Stages, error_of, make_plan, per_gpu, project
from framelane.models.devices import DeviceError
from framelane.models.providers import arena_budget

PRICES = parse_prices(importlib.resources.files("framelane.loadtests").joinpath("prices.toml").read_text())
L40S = PRICES["aws-g6e-xlarge"]


@pytest.mark.parametrize("tax", [1.44, 1.48])
def test_campaign_projection(tax):
    found = project(22, 0.64, tax, 45)
    assert 28 <= found.after_s < 29
    assert 1.27 <= found.ratio <= 1.31
    assert found.holds


def test_campaign_projection_in_seconds():
    assert project(22, 14 / 22, 1.48).after_s == pytest.approx(20.7 + 8, abs=0.05)


def test_projection_beyond_its_limit():
    assert not project(40, 0.64, 1.48, 45).holds


@pytest.mark.parametrize("arguments", [(22, 1.1, 1.48), (0, 0.5, 1.48), (22, 0.5, 0)])
def test_projection_of_nonsense_is_refused(arguments):
    with pytest.raises(PlanError):
        project(*arguments)


def test_tax_goes_on_as_it_ended():
    stages = Stages(worker_ms=1, slot_ms=10, tax=(1, 1.44, 2.08))
    assert [round(stages.tax_at(n), 2) for n in (1, 2, 3, 4)] == [1, 1.44, 2.08, 2.72]
    assert Stages(worker_ms=1, slot_ms=10).tax_at(5) == 1


def test_taxed_card_gives_what_the_probe_read():
    stages = Stages(worker_ms=1, slot_ms=10, tax=(1, 1.44, 2.08))
    assert per_gpu(stages, 2) / per_gpu(stages, 1) == pytest.approx(2 / 1.44)
    assert per_gpu(stages, 3) / per_gpu(stages, 1) == pytest.approx(3 / 2.08)


def test_campaign_demand_fits_the_campaign_machines_and_their_cost():
    # One L40S: about 150 frames per second (200 users at 0.75). 700 users on four of them.
    stages = Stages(worker_ms=3, slot_ms=6.67, tax=(1.0,))
    plan = make_plan(Demand(users=700), stages, Layout(slots_per_gpu=1, headroom=0.1), L40S)
    assert (plan.machines, plan.limit) == (4, "GPU")
    assert plan.usd_per_user_hour == pytest.approx(0.0106, rel=0.01)


def test_cores_decide_where_they_are_what_is_short():
    plan = make_plan(Demand(users=1000, fps=1), Stages(worker_ms=20, slot_ms=0.5), Layout(), L40S)
    assert plan.limit == "cores"
    assert plan.machines == 8
    assert {need.resource for need in plan.needs} == {"GPU", "cores"}


def test_headroom_is_left_free():
    stages = Stages(worker_ms=0.1, slot_ms=10)
    plans = [make_plan(Demand(users=100, fps=1), stages, Layout(slots_per_gpu=1, headroom=h), L40S) for h in (0, 0.5)]
    assert [plan.gpus for plan in plans] == [1, 2]
    assert plans[0].utilisation == pytest.approx(1.0)


def test_gateways_ask_for_replicas_of_their_own():
    stages = Stages(gateway_ms=1, worker_ms=0.1, slot_ms=0.1)
    plan = make_plan(Demand(users=1000, fps=2), stages, Layout(headroom=0, slots_per_replica=8), L40S)
    assert plan.replicas == 3


def test_slots_that_do_not_fit_the_card_are_refused():
    with pytest.raises(PlanError, match=r"a card of 22\.5 GiB"):
        make_plan(Demand(users=1), Stages(worker_ms=1, slot_ms=1), Layout(slots_per_gpu=40), PRICES["aws-g6-xlarge"])


@pytest.mark.parametrize("slots", [57, 60])
def test_more_slots_than_mps_serves_are_refused_on_a_card_of_any_size(slots):
    layout = Layout(slots_per_gpu=slots, standby_per_gpu=3)
    price = Price(usd_per_hour=1, as_of="today", source="x")
    if slots + 3 > 60:
        with pytest.raises(PlanError, match="MPS serves at most 60"):
            make_plan(Demand(users=1), Stages(worker_ms=1, slot_ms=1), layout, price)
    else:
        make_plan(Demand(users=1), Stages(worker_ms=1, slot_ms=1), layout, price)


@pytest.mark.parametrize("machine", ["aws-g6-xlarge", "aws-g6e-xlarge"])
@pytest.mark.parametrize("model_mib", [0, 128, 300, 2000])
def test_what_is_planned_is_what_serve_takes(machine, model_mib):
    price = PRICES[machine]
    planned = [slots for slots in range(1, 60) if fits(slots, price, model_mib)]
    assert planned == [slots for slots in range(1, 60) if share(slots + 1, price) >= model_mib]
    assert planned


def fits(slots, price, model_mib):
    layout = Layout(slots_per_gpu=slots, standby_per_gpu=1, model_mib=model_mib)
    with contextlib.suppress(PlanError):
        make_plan(Demand(users=1), Stages(worker_ms=1, slot_ms=1), layout, price)
        return True
    return False


def share(processes, price):
    """MiB that ``serve`` gives each slot's model; less than nothing where it refuses."""
    try:
        return arena_budget(int(price.gpu_memory_gib * 2**30), processes, 1) / 2**20
    except DeviceError:
        return -1


def test_what_is_not_known_is_said():
    price = Price(usd_per_hour=1, as_of="today", source="x")
    plan = make_plan(Demand(users=1), Stages(worker_ms=1, slot_ms=1), Layout(slots_per_gpu=2), price)
    assert len(plan.warnings) == 3
    assert "framelane probe" in plan.warnings[0]


def test_error_is_a_share_of_what_was_measured():
    assert error_of(110, 100) == pytest.approx(0.1)
    assert error_of(1, 0) != error_of(1, 0)
