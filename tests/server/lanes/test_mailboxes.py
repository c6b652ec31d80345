"""Who is served next: depth, order, fairness, and the byte budget."""

import random
from typing import Any

from framelane.preprocess.pool import Job
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.mailboxes import Mailboxes


def lane(**options: Any) -> Lane:
    return Lane(0, None, **options)  # type: ignore[arg-type]  # nothing is written here


def job(owner: Lane, seq: int, size: int = 1, deadline: float = 10.0) -> Job:
    return Job(bytes(size), b"", seq, 0, 0.0, deadline, owner)


def check(mailboxes: Mailboxes, lanes: list[Lane]) -> None:
    """What must hold after every step."""
    assert mailboxes.bytes == sum(len(waiting.data) for each in lanes for waiting in each.jobs)
    assert mailboxes.lanes == sum(bool(each.place) for each in lanes)
    for each in lanes:
        assert bool(each.place) == (bool(each.jobs) and each.in_work < each.parallel)
        assert len(each.jobs) <= each.depth
        assert 0 <= each.in_work <= each.parallel


def test_newer_frame_replaces_unstarted_one() -> None:
    mailboxes, one = Mailboxes(100), lane()
    old, new = job(one, 0), job(one, 1)
    assert mailboxes.offer(one, old) is None
    assert mailboxes.offer(one, new) is old
    assert mailboxes.take() is new
    assert mailboxes.take() is None


def test_at_most_one_frame_of_a_lane_is_in_work() -> None:
    mailboxes, one = Mailboxes(100), lane()
    mailboxes.offer(one, job(one, 0))
    assert mailboxes.take() is not None
    mailboxes.offer(one, job(one, 1))
    assert mailboxes.take() is None
    mailboxes.finished(one)
    taken = mailboxes.take()
    assert taken is not None
    assert taken.seq == 1


def test_lanes_are_served_in_turn_however_much_one_sends() -> None:
    mailboxes = Mailboxes(1000)
    greedy, modest = lane(depth=50, queues=True), lane(depth=50, queues=True)
    for seq in range(50):
        mailboxes.offer(greedy, job(greedy, seq))
    for seq in range(5):
        mailboxes.offer(modest, job(modest, seq))
    served = []
    for _ in range(10):
        taken = mailboxes.take()
        assert taken is not None
        served.append(taken.owner)
        mailboxes.finished(taken.owner)
    assert served == [greedy, modest] * 5


def test_queue_keeps_order_and_refuses_the_newest_when_full() -> None:
    mailboxes, one = Mailboxes(100), lane(depth=2, queues=True)
    jobs = [job(one, seq) for seq in range(3)]
    assert [mailboxes.offer(one, each) for each in jobs] == [None, None, jobs[2]]
    assert mailboxes.take() is jobs[0]
    mailboxes.finished(one)
    assert mailboxes.take() is jobs[1]


def test_lane_that_may_have_several_in_work_gets_them_in_turn_with_others() -> None:
    mailboxes, wide, other = Mailboxes(100), lane(depth=4, queues=True), lane()
    wide.parallel = 2
    for seq in range(3):
        mailboxes.offer(wide, job(wide, seq))
    mailboxes.offer(other, job(other, 0))
    taken = [mailboxes.take() for _ in range(4)]
    assert [each and (each.owner, each.seq) for each in taken] == [(wide, 0), (other, 0), (wide, 1), None]


def test_byte_budget_holds_over_all_lanes() -> None:
    mailboxes, one, two = Mailboxes(10), lane(), lane()
    assert mailboxes.offer(one, job(one, 0, 8)) is None
    late = job(two, 0, 3)
    assert mailboxes.offer(two, late) is late
    assert mailboxes.bytes == 8
    assert mailboxes.offer(two, job(two, 1, 2)) is None
    too_big = job(one, 1, 9)
    assert mailboxes.offer(one, too_big) is too_big
    assert one.jobs[0].seq == 0
    check(mailboxes, [one, two])


def test_replacing_counts_the_bytes_that_go() -> None:
    mailboxes, one = Mailboxes(10), lane()
    mailboxes.offer(one, job(one, 0, 8))
    mailboxes.offer(one, job(one, 1, 10))
    assert mailboxes.bytes == 10


def test_cleared_lane_leaves_the_ring_and_its_bytes() -> None:
    mailboxes, one, two = Mailboxes(10), lane(), lane()
    waiting = job(one, 0, 5)
    mailboxes.offer(one, waiting)
    mailboxes.offer(two, job(two, 0, 1))
    assert mailboxes.clear(one) == [waiting]
    check(mailboxes, [one, two])
    assert mailboxes.clear(one) == []


def test_overdue_frames_are_found_also_behind_one_in_work() -> None:
    mailboxes, one, two = Mailboxes(100), lane(depth=3, queues=True), lane()
    mailboxes.offer(one, job(one, 0, deadline=1.0))
    mailboxes.take()
    late = [job(one, 1, deadline=1.0), job(one, 2, deadline=2.0)]
    for each in late:
        mailboxes.offer(one, each)
    mailboxes.offer(two, job(two, 0, deadline=9.0))
    assert mailboxes.overdue([one, two], 1.5) == late[:1]
    assert mailboxes.overdue([one, two], 2.5) == late[1:]
    check(mailboxes, [one, two])


def test_any_order_of_steps_keeps_ring_and_bytes_right() -> None:
    for seed in range(50):
        dice, mailboxes = random.Random(seed), Mailboxes(40)
        lanes = [lane(), lane(depth=3, queues=True), lane(depth=3, queues=True), lane()]
        lanes[2].parallel = 2
        for step in range(300):
            one = dice.choice(lanes)
            kind = dice.choice(["offer", "offer", "take", "finished", "clear", "overdue"])
            if kind == "offer":
                mailboxes.offer(one, job(one, step, dice.randint(1, 20), deadline=step + dice.randint(1, 30)))
            elif kind == "take":
                taken = mailboxes.take()
                assert (taken is None) == (
                    not any(each.jobs and each.in_work < each.parallel for each in lanes)
                ) or taken
            elif kind == "finished" and one.in_work:
                mailboxes.finished(one)
            elif kind == "clear" and dice.random() < 0.2:
                mailboxes.clear(one)
            elif kind == "overdue":
                assert all(each.deadline < step for each in mailboxes.overdue(lanes, step))
            check(mailboxes, lanes)
