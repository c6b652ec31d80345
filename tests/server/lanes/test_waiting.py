"""The waiting room: order, positions, those who come back, and the cost of a crowd."""

import random

from framelane.server.lanes.lane import Lane
from framelane.server.lanes.waiting import WaitingRoom


def lane(ticket: str) -> Lane:
    opened = Lane(0, None)  # type: ignore[arg-type]  # nothing is written here
    opened.ticket = ticket
    return opened


def test_first_come_first_served() -> None:
    room = WaitingRoom(10, 5.0)
    lanes = [lane(name) for name in "abc"]
    assert [room.enter(each, 0.0) for each in lanes] == [1, 2, 3]
    assert [room.take() for _ in range(4)] == [*lanes, None]
    assert len(room) == 0


def test_lost_client_keeps_its_position_within_the_grace_period() -> None:
    room = WaitingRoom(10, 5.0)
    first, second = lane("a"), lane("b")
    room.enter(first, 0.0)
    room.enter(second, 0.0)
    room.leave(first, 1.0, lost=True)
    assert (len(room), room.present) == (2, 1)
    back = lane("a")
    assert room.enter(back, 5.9) == 1
    room.expire(100.0)
    assert room.take() is back


def test_place_goes_to_whoever_is_present() -> None:
    room = WaitingRoom(10, 5.0)
    first, second = lane("a"), lane("b")
    room.enter(first, 0.0)
    room.enter(second, 0.0)
    room.leave(first, 1.0, lost=True)
    assert room.take() is second
    assert room.take() is None
    assert room.knows("a")


def test_position_is_given_up_after_the_grace_period_or_a_goodbye() -> None:
    room = WaitingRoom(10, 5.0)
    for name in "abc":
        room.enter(lane(name), 0.0)
    lost, polite = lane("d"), lane("e")
    room.enter(lost, 0.0)
    room.enter(polite, 0.0)
    room.leave(polite, 1.0, lost=False)
    room.leave(lost, 1.0, lost=True)
    room.expire(5.9)
    assert room.knows("d")
    room.expire(6.0)
    assert not room.knows("d")
    assert len(room) == 3


def test_client_that_was_lost_twice_has_the_later_grace_period() -> None:
    room = WaitingRoom(10, 5.0)
    first = lane("a")
    room.enter(first, 0.0)
    room.leave(first, 0.0, lost=True)
    again = lane("a")
    room.enter(again, 4.0)
    room.leave(again, 4.0, lost=True)
    room.expire(6.0)
    assert room.knows("a")
    room.expire(9.0)
    assert not room.knows("a")


def test_old_connection_does_not_take_the_position_of_the_new_one_with_it() -> None:
    room = WaitingRoom(10, 5.0)
    old, new = lane("a"), lane("a")
    room.enter(old, 0.0)
    room.enter(new, 1.0)
    room.leave(old, 2.0, lost=False)
    assert room.take() is new


def test_positions_are_told_when_they_change_but_not_too_often() -> None:
    room = WaitingRoom(10, 5.0)
    lanes = [lane(str(number)) for number in range(4)]
    for each in lanes:
        room.enter(each, 0.0)
    assert room.news(10.0, 100, 2.0) == []
    room.take()
    assert room.news(10.0, 100, 2.0) == [(lanes[1], 1), (lanes[2], 2), (lanes[3], 3)]
    room.take()
    assert room.news(11.0, 100, 2.0) == []
    assert room.news(12.0, 100, 2.0) == [(lanes[2], 1), (lanes[3], 2)]


def test_ten_thousand_who_wait_cost_little_per_step() -> None:
    room = WaitingRoom(10_000, 5.0)
    for number in range(10_000):
        room.enter(lane(str(number)), 0.0)
    assert room.full
    told = 0
    for step in range(100):
        room.take()
        news = room.news(10.0 + step * 0.1, 200, 2.0)
        assert len(news) <= 200
        told += len(news)
    assert 9_000 < told <= 20_000


def test_any_order_of_steps_keeps_order_and_positions() -> None:
    for seed in range(60):
        dice, room, now = random.Random(seed), WaitingRoom(30, 5.0), 0.0
        line: list[str] = []  # the model: tickets in order
        present: dict[str, Lane] = {}
        gone: dict[str, float] = {}
        for number in range(300):
            now += dice.choice([0.0, 0.1, 1.0])
            step = dice.choice(["enter", "enter", "lose", "leave", "back", "take", "news"])
            room.expire(now)
            for ticket in [ticket for ticket, until in gone.items() if until <= now]:
                del gone[ticket]
                line.remove(ticket)
            if step == "enter" and not room.full:
                ticket = str(number)
                present[ticket] = lane(ticket)
                line.append(ticket)
                assert room.enter(present[ticket], now) == len(line)
            elif step in ("lose", "leave") and present:
                ticket = dice.choice(list(present))
                room.leave(present.pop(ticket), now, lost=step == "lose")
                if step == "lose":
                    gone[ticket] = now + 5.0
                else:
                    line.remove(ticket)
            elif step == "back" and gone:
                ticket = dice.choice(list(gone))
                del gone[ticket]
                present[ticket] = lane(ticket)
                room.enter(present[ticket], now)
            elif step == "take":
                expected = next((present[ticket] for ticket in line if ticket in present), None)
                assert room.take() is expected
                if expected is not None:
                    line.remove(expected.ticket)
                    del present[expected.ticket]
            elif step == "news":
                for told, position in room.news(now, dice.choice([5, 100]), 0.5):
                    assert line[position - 1] == told.ticket
            assert (len(room), room.present) == (len(line), len(present))
