"""Permits of a device: never more than there are, and nobody is passed over."""

import threading

import pytest

from framelane.server.slots.permits import Permits


@pytest.fixture
def card(tmp_path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return "cuda:0"


def never() -> None:
    raise AssertionError("it had to wait")


def test_whoever_waits_for_a_permit_gets_it_before_the_one_who_gives_it_back(card: str) -> None:
    busy, other = Permits(card, 1), Permits(card, 1)  # as in two replicas
    order, waits = [], threading.Event()

    def run() -> None:
        place = other.acquire(waits.set)
        order.append("other")
        other.release(place)

    for _ in range(20):
        waits.clear()
        place = busy.acquire(never)
        thread = threading.Thread(target=run)
        thread.start()
        assert waits.wait(20)
        busy.release(place)
        place = busy.acquire(lambda: None)  # at once, as a slot does that has more to run
        order.append("busy")
        busy.release(place)
        thread.join()
    assert order == ["other", "busy"] * 20


def test_there_are_as_many_permits_as_were_asked_for(card: str) -> None:
    slots = [Permits(card, 2) for _ in range(3)]
    assert {slots[0].acquire(never), slots[1].acquire(never)} == {0, 1}
    with pytest.raises(AssertionError, match="it had to wait"):
        slots[2].acquire(never)
