"""Choosing a density, with the campaign's figures and with curves that no hill-climber survives."""

import pytest

from framelane.loadtests.density import Objective, Search, Trial, choose, judge, merged

CAMPAIGN = [
    Trial(density=48, users=500, delivery=0.979, p50_ms=259),
    Trial(density=48, users=700, delivery=0.986, p50_ms=245),
    Trial(density=64, users=700, delivery=0.944),
    Trial(density=80, users=500, delivery=0.994, p50_ms=132),
    Trial(density=80, users=700, delivery=0.994, p50_ms=132),
    Trial(density=80, users=800, delivery=0.877),
]


def test_campaign_picks_80_at_700_and_plans_for_500():
    choice = choose(CAMPAIGN, Objective(), users=700)
    assert (choice.best, choice.capacity, choice.collapse, choice.plan_for) == (80, 700, 800, 500)
    assert not choice.monotonic
    assert choice.reasons[0] == "density 80 at 700 users: delivery 99.4%, p50 132 ms; holds the objective"
    assert choice.reasons[-1].startswith("density 64 at 700 users: delivery 94.4%; misses it")


def test_without_a_count_densities_are_compared_at_the_largest_that_any_held():
    assert choose(CAMPAIGN, Objective()).best == 80


def test_campaign_objective_holds_exactly_at_its_own_figures():
    assert not Objective().misses(CAMPAIGN[0])
    assert Objective(delivery=0.98).misses(CAMPAIGN[0]) == ["delivery 97.9% < 98.0%"]


def test_p50_that_was_not_measured_holds_nothing():
    assert Objective().misses(CAMPAIGN[2])[1] == "p50 unknown > 259 ms"
    assert not Objective(delivery=0.9, p50_ms=None).misses(CAMPAIGN[2])


def test_nothing_holds_says_so():
    choice = choose(CAMPAIGN, Objective(delivery=0.999))
    assert choice.best is None
    assert choice.reasons == ("no density held the objective at any count",)


def test_count_is_judged_by_the_median_of_its_runs():
    runs = [Trial(density=1, users=10, delivery=d, p50_ms=50) for d in (0.99, 0.5, 0.985)]
    assert merged(runs).delivery == 0.985
    assert judge({10: runs}, Objective()).capacity == 10


def test_step_is_confirmed_once_both_its_ends_were_run_often_enough():
    good, bad = ([Trial(density=1, users=u, delivery=d, p50_ms=50)] for u, d in ((10, 0.99), (20, 0.5)))
    assert not judge({10: good, 20: bad * 2}, Objective(), confirmations=2).confirmed
    assert judge({10: good * 2, 20: bad * 2}, Objective(), confirmations=2).confirmed


def run(search, capacity):
    """Let a search run against a world in which density d holds capacity(d) users."""
    trials = []
    while (step := search.next(trials)) is not None:
        density, users = step
        held = users <= capacity(density)
        trials.append(Trial(density=density, users=users, delivery=0.99 if held else 0.8, p50_ms=100))
        assert len(trials) < 500
    return trials


def test_search_finds_the_best_of_densities_that_are_not_monotonic():
    world = {48: 700, 64: 400, 80: 750, 96: 300}
    ladder = tuple(range(50, 801, 50))
    trials = run(Search(densities=(48, 64, 80, 96), ladder=ladder, confirmations=2), world.__getitem__)
    choice = choose(trials, Objective(), confirmations=2)
    assert (choice.best, choice.capacity, choice.collapse) == (80, 750, 800)
    assert {v.density: v.capacity for v in choice.verdicts} == world
    assert all(verdict.confirmed for verdict in choice.verdicts)
    assert len(trials) <= 4 * 7


def test_search_refines_on_both_sides_of_the_best():
    world = {40: 500, 48: 600, 56: 650, 60: 900, 64: 700, 80: 400}
    search = Search(densities=(48, 64, 80), ladder=tuple(range(100, 1001, 100)), refine=4)
    trials = run(search, lambda density: world.get(density, 500))
    choice = choose(trials, Objective())
    assert (choice.best, choice.capacity) == (60, 900)


def test_search_is_resumed_from_its_trials():
    search = Search(densities=(1, 2), ladder=(10, 20, 30, 40), confirmations=1)
    trials = run(search, {1: 20, 2: 30}.__getitem__)
    for count in range(len(trials)):
        step = search.next(trials[:count])
        assert step == (trials[count].density, trials[count].users)


@pytest.mark.parametrize(("capacity", "found"), [(0, None), (1000, 40)])
def test_search_ends_at_the_ends_of_the_ladder(capacity, found):
    trials = run(Search(densities=(1,), ladder=(10, 20, 30, 40)), lambda density: capacity)
    assert judge({t.users: [t] for t in trials}, Objective()).capacity == found
