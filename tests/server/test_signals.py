"""Which signals are the first, and which end everything. What they do to a server is in ``tests/e2e/test_drain.py``."""

import pytest

from framelane.server.signals import is_another


@pytest.mark.parametrize(
    ("first", "now", "expected"),
    [(None, 5.0, False), (5.0, 5.0, False), (5.0, 5.2, False), (5.0, 5.3, True), (5.0, 500.0, True)],
)
def test_a_signal_is_another_one_unless_it_comes_with_the_first(
    first: float | None, now: float, expected: bool
) -> None:
    assert is_another(first, now) is expected
