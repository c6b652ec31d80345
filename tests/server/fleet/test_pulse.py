"""Whether the way to the others and back works."""

from framelane.server.fleet.pulse import SILENCE_S, Pulse


def test_it_works_once_the_own_beat_was_heard() -> None:
    pulse = Pulse()
    pulse.connected(10.0)
    assert not pulse.works(10.5)
    pulse.heard(11.0)
    assert pulse.works(11.0 + SILENCE_S)
    assert not pulse.works(11.1 + SILENCE_S)


def test_a_listener_that_hears_nothing_is_dead_though_nothing_failed() -> None:
    pulse = Pulse()
    pulse.connected(10.0)
    assert not pulse.is_dead(10.0 + SILENCE_S)
    assert pulse.is_dead(10.1 + SILENCE_S), "it never heard anything"
    pulse.heard(12.0)
    assert not pulse.is_dead(12.0 + SILENCE_S)
    assert pulse.is_dead(12.1 + SILENCE_S), "it went silent"


def test_only_a_way_that_worked_counts_as_broken() -> None:
    pulse = Pulse()
    pulse.lost()
    assert pulse.breaks == 0
    pulse.connected(1.0)
    pulse.heard(1.5)
    pulse.lost()
    assert (pulse.breaks, pulse.works(1.6)) == (1, False)
