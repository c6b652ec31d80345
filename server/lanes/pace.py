"""How often each client may send, so that all that is sent can be served: the budget that `pace` tells.

The measured capacity is shared max-min fairly (Bertsekas, Gallager: "Data Networks", 6.5.2): who sends less than an
equal share keeps to what it sends, and the rest is shared equally among those who would send more. Below this budget
the clients find their own rate (additive increase, multiplicative decrease: ``sdk/pace.py``).

A new budget is told only where it differs enough from the last one, soon if it is slower, later if it is faster, so
that it neither swings nor costs a message per frame.
"""

from __future__ import annotations

from collections.abc import Iterable

_USED = 0.95  # of the capacity: what is promised must also be kept when frames come in bunches
_MODEST = 0.75  # of a share: who sends less does not want more
_SPARE = 1.2  # what a modest client may add without asking
_SLOWEST_MS = 5000
_SLOWER = 1.1
_FASTER = 0.85
_SLOWER_AFTER_S = 0.5
_FASTER_AFTER_S = 3.0


def fair_share(rates: Iterable[float], capacity: float) -> float:
    """Frames per second that each client may send.

    Args:
        rates: what each client that sends at all has sent per second; infinity for one that would send any amount.
        capacity: frames per second for all of them.
    """
    left = capacity * _USED
    wanted = sorted(rates)
    for index, rate in enumerate(wanted):
        share = left / (len(wanted) - index)
        if rate * _SPARE >= share * _MODEST:
            return share
        left -= rate * _SPARE
    return left


def equal_share(clients: int, capacity: float) -> float:
    """Frames per second for each of so many that would send any amount."""
    return capacity * _USED / clients


def interval_ms(share: float, shortest_ms: int) -> int:
    """The interval of `share` frames per second, within what clients can be asked for."""
    if share * _SLOWEST_MS <= 1000:
        return _SLOWEST_MS
    return max(shortest_ms, round(1000 / share))


def held_to(rate: float, told_ms: int) -> bool:
    """Whether a client sends about what it was told, and so might send more if it were told more."""
    return rate * told_ms >= _MODEST * 1000


def worth_telling(told_ms: int, told_at: float, new_ms: int, now: float) -> bool:
    """Whether a client that was told `told_ms` at `told_at` should hear the new interval now."""
    if new_ms > told_ms * _SLOWER:
        return now - told_at >= _SLOWER_AFTER_S
    return new_ms < told_ms * _FASTER and now - told_at >= _FASTER_AFTER_S
