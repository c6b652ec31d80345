"""How many users there are, when."""

import pytest

from framelane.loadtests.swarm.shapes import SHAPES, Stage, Walk, Wish, levels


def test_steps_end_with_the_last_level_whatever_the_step():
    assert levels(50, 800, 150) == [50, 200, 350, 500, 650, 800]
    assert levels(50, 120, 50) == [50, 100, 120]
    assert levels(100, 100, 50) == [100]
    assert levels(200, 100, 50) == [100]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_comes_to_its_most_users_and_never_above(shape):
    stages = Wish(shape=shape, users=300, first=50, step=100, seconds=10).stages()
    assert max(stage.users for stage in stages) == 300
    assert all(stage.rate >= 1 and stage.seconds > 0 for stage in stages)


def test_spike_comes_all_at_once_and_goes():
    few, many, again = Wish(shape="spike", users=400, seconds=10).stages()
    assert (few.users, many.users, again.users) == (100, 400, 100)
    assert many.rate > few.rate


def test_ramp_climbs_in_the_time_of_one_level():
    stages = Wish(shape="ramp", users=550, first=50, seconds=100).stages()
    assert [stage.users for stage in stages] == [*range(50, 550, 50), 550]
    assert sum(stage.seconds for stage in stages[:-1]) == pytest.approx(100)


def test_soak_is_measured_in_parts_without_anybody_going():
    stages = Wish(shape="soak", users=30, seconds=100).stages()
    assert [stage.users for stage in stages] == [30] * 5
    assert sum(stage.seconds for stage in stages) == 100
    walk = Walk(stages, settle_s=0)
    for second in range(110):
        walk.now(second, users=30)
    assert [mark.stop - mark.start for mark in walk.marks] == [20] * 5


def test_level_is_measured_from_when_it_is_reached_and_has_settled():
    walk = Walk([Stage(10, 5, 20), Stage(20, 5, 20)], settle_s=2)
    assert walk.now(0, users=0).users == 10
    assert walk.now(3, users=10).users == 10
    assert [(mark.users, mark.start, mark.stop) for mark in walk.marks] == [(10, 5, 25)]
    assert walk.now(24, users=10).users == 10
    assert walk.now(25, users=10).users == 20
    assert walk.now(26, users=15).users == 20
    assert walk.now(27, users=20).users == 20
    assert walk.now(49, users=20) is None
    assert [mark.users for mark in walk.marks] == [10, 20]


def test_level_that_is_never_reached_is_never_measured():
    walk = Walk([Stage(10, 5, 20)])
    for second in range(100):
        assert walk.now(second, users=9).users == 10
    assert walk.marks == []
