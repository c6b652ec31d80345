"""Cost per user-hour, with the campaign's figures."""

import importlib.resources

import pytest

from framelane.loadtests.cost import CostError, choose_price, cost_per_month, cost_per_user_hour, parse_prices

LISTED = parse_prices(importlib.resources.files("framelane.loadtests").joinpath("prices.toml").read_text())


@pytest.mark.parametrize(("users", "usd"), [(500, 0.015), (700, 0.0106)])
def test_campaign_figures_follow_from_four_cards_at_the_listed_price(users, usd):
    cost = cost_per_user_hour(LISTED["aws-g6e-xlarge"].usd_per_hour, 4, users)
    assert cost == pytest.approx(usd, rel=0.01)


def test_every_listed_price_says_when_and_from_whom():
    assert all(price.as_of >= "2026" and price.source and price.gpu for price in LISTED.values())


def test_file_says_that_prices_are_inputs():
    text = importlib.resources.files("framelane.loadtests").joinpath("prices.toml").read_text()
    assert text.startswith("# Prices are inputs.")


def test_price_is_a_name_or_a_number():
    assert choose_price("aws-g6-xlarge", LISTED).gpu == "L4"
    assert choose_price("1.5", LISTED).usd_per_hour == 1.5


@pytest.mark.parametrize("given", ["cheap", "-1", "0", "nan"])
def test_price_that_is_neither_is_refused_with_the_names(given):
    with pytest.raises(CostError, match="aws-g6e-xlarge"):
        choose_price(given, LISTED)


@pytest.mark.parametrize("text", ["[x]\nusd_per_hour = 1.0", "[x]\nusd_per_hour = 'a'", "x = = 1"])
def test_listed_price_without_date_or_source_is_refused(text):
    with pytest.raises(CostError):
        parse_prices(text)


def test_nobody_served_has_no_cost():
    with pytest.raises(CostError):
        cost_per_user_hour(7.4, 4, 0)


def test_month_has_730_hours():
    assert cost_per_month(1.0, 2) == 1460
