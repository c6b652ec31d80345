"""The budget of each client: fair, within the capacity, and told only when there is something to tell."""

import math
import random

import pytest

from framelane.server.lanes.pace import fair_share, held_to, interval_ms, worth_telling

GREEDY = math.inf


@pytest.mark.parametrize(
    ("rates", "share"),
    [
        ([GREEDY], 95),
        ([GREEDY] * 5, 19),
        ([5, GREEDY], 89),
        ([5, 10, GREEDY, GREEDY], 38.5),
        ([30, GREEDY, GREEDY], 95 / 3),
        ([5, 10], 77),
        ([], 95),
    ],
)
def test_modest_clients_keep_their_rate_and_the_rest_is_shared_equally(rates: list[float], share: float) -> None:
    assert fair_share(rates, 100) == pytest.approx(share)


def test_shares_never_add_up_to_more_than_the_capacity() -> None:
    dice = random.Random(1)
    for _ in range(300):
        rates = [dice.choice([GREEDY, dice.uniform(0, 60)]) for _ in range(dice.randint(1, 50))]
        capacity = dice.uniform(1, 1000)
        share = fair_share(rates, capacity)
        assert sum(min(rate, share) for rate in rates) <= capacity


def test_interval_stays_within_what_clients_can_be_asked_for() -> None:
    assert interval_ms(1000, 33) == 33
    assert interval_ms(math.inf, 33) == 33
    assert interval_ms(10, 33) == 100
    assert interval_ms(0.01, 33) == interval_ms(0, 33) == 5000


def test_client_that_sends_about_what_it_was_told_may_want_more() -> None:
    assert held_to(10, 100)
    assert held_to(100, 100)
    assert not held_to(5, 100)


@pytest.mark.parametrize(
    ("told_ms", "new_ms", "after_s", "worth"),
    [
        (100, 105, 60, False),
        (100, 95, 60, False),
        (100, 150, 0.4, False),
        (100, 150, 0.6, True),
        (100, 60, 1, False),
        (100, 60, 3, True),
        (35, 33, 60, False),
    ],
)
def test_slower_is_told_soon_and_faster_late_and_little_not_at_all(
    told_ms: int, new_ms: int, after_s: float, worth: bool
) -> None:
    assert worth_telling(told_ms, 10.0, new_ms, 10.0 + after_s) is worth
