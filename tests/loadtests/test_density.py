"""Choosing a density, with the campaign's figures and with curves that no hill-climber survives."""

import pytest

from framelane.loadtests.density import (
    DensityError,
    Layout,
    Objective,
    Search,
    Trial,
    certain,
    choose,
    interval,
    judge,
    merged,
)

CAMPAIGN = [
    Trial(density=Layout(48), users=500, delivery=0.979, p50_ms=259),
    Trial(density=Layout(48), users=700, delivery=0.986, p50_ms=245),
    Trial(density=Layout(64), users=700, delivery=0.944),
    Trial(density=Layout(80), users=500, delivery=0.994, p50_ms=132),
    Trial(density=Layout(80), users=700, delivery=0.994, p50_ms=132),
    Trial(density=Layout(80), users=800, delivery=0.877),
]


def test_campaign_picks_80_at_700_and_plans_for_500():
    choice = choose(CAMPAIGN, Objective(), users=700)
    assert (choice.best, choice.capacity, choice.collapse, choice.plan_for) == (Layout(80), 700, 800, 500)
    assert not choice.monotonic
    assert choice.reasons[0] == "density 80 at 700 users: delivery 99.4%, p50 132 ms; holds the objective"
    assert choice.reasons[-1].startswith("density 64 at 700 users: delivery 94.4%; misses it")


def test_without_a_count_densities_are_compared_at_the_largest_that_any_held():
    assert choose(CAMPAIGN, Objective()).best == Layout(80)


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
    runs = [Trial(density=Layout(1), users=10, delivery=d, p50_ms=50) for d in (0.99, 0.5, 0.985)]
    assert merged(runs).delivery == 0.985
    assert judge({10: runs}, Objective()).capacity == 10


def test_step_is_confirmed_once_both_its_ends_were_run_often_enough():
    good, bad = ([Trial(density=Layout(1), users=u, delivery=d, p50_ms=50)] for u, d in ((10, 0.99), (20, 0.5)))
    assert not judge({10: good, 20: bad * 2}, Objective(), confirmations=2).confirmed
    assert judge({10: good * 2, 20: bad * 2}, Objective(), confirmations=2).confirmed


def layouts(*replicas):
    return tuple(Layout(count) for count in replicas)


def run(search, capacity):
    """Let a search run against a world in which density d holds capacity(d) users."""
    trials = []
    while (step := search.next(trials)) is not None:
        density, users = step
        held = users <= capacity(density.replicas)
        trials.append(Trial(density=density, users=users, delivery=0.99 if held else 0.8, p50_ms=100))
        assert len(trials) < 500
    return trials


def test_search_finds_the_best_of_densities_that_are_not_monotonic():
    world = {48: 700, 64: 400, 80: 750, 96: 300}
    ladder = tuple(range(50, 801, 50))
    search = Search(densities=layouts(48, 64, 80, 96), ladder=ladder, confirmations=2)
    trials = run(search, world.__getitem__)
    choice = choose(trials, Objective(), confirmations=2)
    assert (choice.best, choice.capacity, choice.collapse) == (Layout(80), 750, 800)
    assert {v.density.replicas: v.capacity for v in choice.verdicts} == world
    assert all(verdict.confirmed for verdict in choice.verdicts)
    assert len(trials) <= 4 * search.at_most()


def test_search_refines_on_both_sides_of_the_best():
    world = {40: 500, 48: 600, 56: 650, 60: 900, 64: 700, 80: 400}
    search = Search(densities=layouts(48, 64, 80), ladder=tuple(range(100, 1001, 100)), refine=4)
    trials = run(search, lambda density: world.get(density, 500))
    choice = choose(trials, Objective())
    assert (choice.best, choice.capacity) == (Layout(60), 900)


def test_search_is_resumed_from_its_trials():
    search = Search(densities=layouts(1, 2), ladder=(10, 20, 30, 40), confirmations=1)
    trials = run(search, {1: 20, 2: 30}.__getitem__)
    for count in range(len(trials)):
        step = search.next(trials[:count])
        assert step == (trials[count].density, trials[count].users)


@pytest.mark.parametrize(("capacity", "found"), [(0, None), (1000, 40)])
def test_search_ends_at_the_ends_of_the_ladder(capacity, found):
    trials = run(Search(densities=layouts(1), ladder=(10, 20, 30, 40)), lambda density: capacity)
    assert judge({t.users: [t] for t in trials}, Objective()).capacity == found


@pytest.mark.parametrize(
    ("text", "layout"),
    [("80", Layout(80)), ("2x4", Layout(2, 4)), ("2x4x1", Layout(2, 4, 1)), ("2x0x3", Layout(2, 0, 3))],
)
def test_density_is_written_as_it_is_read(text, layout):
    assert Layout.parse(text) == layout
    assert str(layout) == text


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "2x", "1x2x3x4", "1.5"])
def test_density_that_cannot_be_read_is_refused(text):
    with pytest.raises(DensityError, match="REPLICAS"):
        Layout.parse(text)


def trials_at(users, *deliveries, void=""):
    return [Trial(density=Layout(1), users=users, delivery=d, p50_ms=50, void=void) for d in deliveries]


def test_void_run_holds_nothing_and_does_not_count_beside_others():
    void = trials_at(10, 1.0, void="late")
    assert Objective().misses(void[0]) == ["void: late"]
    assert merged([*void, *trials_at(10, 0.98)]).delivery == 0.98
    assert judge({10: void}, Objective()).capacity is None


def test_count_that_missed_below_the_capacity_is_a_hole():
    found = judge({10: trials_at(10, 0.99), 20: trials_at(20, 0.9), 30: trials_at(30, 0.99)}, Objective())
    assert (found.capacity, found.holes) == (30, (20,))


def test_runs_that_contradict_each_other_are_run_twice_as_often():
    search = Search(densities=layouts(1), ladder=(10,), confirmations=2)
    assert search.next(trials_at(10, 0.99, 0.99)) is None
    assert search.next(trials_at(10, 0.99, 0.90)) == (Layout(1), 10)
    assert search.next(trials_at(10, 0.99, 0.90, 0.99, 0.90)) is None


def test_comfortable_count_is_measured_and_a_lower_one_if_it_does_not_hold():
    search = Search(densities=layouts(1), ladder=(10, 20, 30, 40), confirmations=1)
    known = [*trials_at(40, 0.99)]
    assert search.next(known) == (Layout(1), 30)
    assert search.next([*known, *trials_at(30, 0.9)]) == (Layout(1), 20)
    assert search.next([*known, *trials_at(30, 0.99)]) is None


def test_density_that_cannot_be_run_is_left_out():
    search = Search(densities=layouts(1, 2), ladder=(10,), confirmations=1, excluded=layouts(1))
    assert search.next([]) == (Layout(2), 10)


def test_interval_of_a_single_run_says_nothing():
    assert interval([0.99]) == (0.99, float("-inf"), float("inf"))
    assert interval([1.0, 1.0]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("deliveries", "sure"),
    [((0.99, 0.991, 0.992), True), ((0.90, 0.91, 0.9), True), ((0.975, 0.99, 0.98), False), ((0.99,), False)],
)
def test_count_is_certain_when_its_runs_scatter_on_one_side_of_the_limit(deliveries, sure):
    assert certain(trials_at(10, *deliveries), Objective()) is sure
