"""What a user costs: cost per user-hour from a machine's price. Prices are inputs, never facts. No I/O here.

    cost per user-hour = machines × price per machine-hour ÷ users served at the objective

Users who are not served well are not in the divisor: a count of users that misses its delivery objective has no cost,
it has an outage.
"""

from __future__ import annotations

import tomllib
from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]


class CostError(ValueError):
    """A price that cannot be read or is not listed; the message says what there is."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one machine costs, and what one gets for it.

    Attributes:
        usd_per_hour: US dollars per machine-hour.
        gpu: the card's name; "" for none or unknown.
        gpus: cards per machine.
        gpu_memory_gib: usable memory of one card; 0 for unknown.
        cores: processor cores (vCPUs) of the machine; 0 for unknown.
        as_of: when the price was read, as year-month or year-month-day.
        source: who said so.
        note: what else there is to know.
    """

    usd_per_hour: Positive
    gpu: str = ""
    gpus: Annotated[int, Meta(ge=0)] = 1
    gpu_memory_gib: Annotated[float, Meta(ge=0)] = 0.0
    cores: Annotated[int, Meta(ge=0)] = 0
    as_of: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}(-\d{2})?$|^today$")]
    source: Annotated[str, Meta(min_length=1)]
    note: str = ""


def parse_prices(text: str) -> dict[str, Price]:
    """Prices by name from the text of a TOML file; each needs ``usd_per_hour``, ``as_of`` and ``source``.

    Raises:
        CostError: naming what is wrong.
    """
    try:
        return msgspec.convert(tomllib.loads(text), dict[str, Price])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise CostError(f"prices: {error}") from None


def choose_price(given: str, listed: dict[str, Price]) -> Price:
    """A listed price by its name, or a number of US dollars per machine-hour.

    Raises:
        CostError: neither.
    """
    if given in listed:
        return listed[given]
    try:
        return msgspec.convert({"usd_per_hour": float(given), "as_of": "today", "source": "given by you"}, Price)
    except (ValueError, msgspec.ValidationError):
        names = ", ".join(listed)
        raise CostError(f"price {given!r}: give dollars per machine-hour above 0, or one of {names}") from None


def cost_per_user_hour(usd_per_hour: float, machines: int, users: float) -> float:
    """US dollars for one user for one hour.

    Raises:
        CostError: no users, or no machines.
    """
    if users <= 0 or machines <= 0:
        raise CostError(f"{machines} machines for {users:g} users: there must be some of both")
    return usd_per_hour * machines / users


def cost_per_month(usd_per_hour: float, machines: int, hours: float = 730.0) -> float:
    """US dollars for machines that run all the time; a month has 730 hours."""
    return usd_per_hour * machines * hours
