"""The one way to a client: targets, outboxes, and readers that do not read."""

from typing import Any

import pytest

from framelane.preprocess.packets import WEBSOCKET
from framelane.server.errors import DeliveryError
from framelane.server.lanes.accounts import Accounts
from framelane.server.lanes.delivery import Delivery
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.limits import Limits


class Reader:
    """A writer whose client reads, or does not."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.stuck: bytes | None = None
        self.reads = True
        self.aborted = 0

    def write(self, packet: bytes) -> bool:
        assert self.stuck is None, "a second packet while the first one waits"
        if self.reads:
            self.got.append(packet)
        else:
            self.stuck = packet
        return self.reads

    def abort(self) -> None:
        self.aborted += 1


class World:
    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.accounts = Accounts()
        self.delivery = Delivery(self.accounts, Limits(pipeline="echo", **limits), lambda: self.now)

    def lane(self) -> Lane:
        lane = Lane(WEBSOCKET, Reader())
        self.delivery.open(lane)
        return lane

    def unblock(self, lane: Lane, reads: bool = True) -> None:
        """The client takes what waits; from now on it reads, or not."""
        reader: Any = lane.writer
        reader.reads = reads
        reader.got.append(reader.stuck)
        reader.stuck = None
        self.delivery.written(lane)


@pytest.mark.parametrize("target", [None, "", [], 0, "lane"])
def test_empty_or_unknown_target_is_refused(target: Any) -> None:
    world = World()
    lane = world.lane()
    with pytest.raises(DeliveryError):
        world.delivery.deliver(target, b"x")
    assert lane.writer.got == []  # type: ignore[attr-defined]


def test_foreign_and_closed_lanes_are_refused() -> None:
    world, other = World(), World()
    foreign, gone = other.lane(), world.lane()
    world.delivery.close(gone)
    twin = Lane(WEBSOCKET, Reader())
    twin.id = world.lane().id
    for target in (foreign, gone, twin):
        with pytest.raises(DeliveryError):
            world.delivery.deliver(target, b"x", 1.0)
    assert world.accounts.delivered == 0


def test_only_results_have_a_fate_here() -> None:
    world = World()
    lane = world.lane()
    world.delivery.deliver(lane, b"result", 1.0)
    world.delivery.deliver(lane, b"notice")
    assert lane.writer.got == [b"result", b"notice"]  # type: ignore[attr-defined]
    assert world.accounts.delivered == 1


def test_what_is_not_read_waits_in_order() -> None:
    world = World()
    lane = world.lane()
    lane.writer.reads = False  # type: ignore[attr-defined]
    for packet in (b"0", b"1", b"2"):
        world.delivery.deliver(lane, packet, 9.0)
    assert world.accounts.delivered == 0
    world.unblock(lane)
    assert lane.writer.got == [b"0", b"1", b"2"]  # type: ignore[attr-defined]
    assert world.accounts.delivered == 3
    assert (lane.outbox_bytes, len(lane.outbox), lane.blocked_since) == (0, 0, None)


def test_outbox_is_bounded_in_messages_and_sheds_by_kind() -> None:
    world = World(outbox_messages=2)
    lane = world.lane()
    lane.writer.reads = False  # type: ignore[attr-defined]
    for _ in range(4):
        world.delivery.deliver(lane, b"result", 9.0)
    world.delivery.deliver(lane, b"notice")
    world.delivery.deliver(lane, b"control", control=True)
    assert (world.accounts.slow_reader, world.accounts.notices_shed, len(lane.outbox)) == (2, 1, 3)


def test_outbox_is_bounded_in_bytes() -> None:
    world = World(outbox_bytes=10)
    lane = world.lane()
    lane.writer.reads = False  # type: ignore[attr-defined]
    for size in (6, 5, 4):
        world.delivery.deliver(lane, bytes(size), 9.0)
    assert (world.accounts.slow_reader, lane.outbox_bytes) == (1, 10)


def test_result_that_became_too_old_in_the_outbox_is_not_delivered() -> None:
    world = World()
    lane = world.lane()
    lane.writer.reads = False  # type: ignore[attr-defined]
    for packet, deadline in ((b"0", 1.0), (b"1", 1.0), (b"2", 3.0)):
        world.delivery.deliver(lane, packet, deadline)
    world.now = 2.0
    world.unblock(lane)
    assert lane.writer.got == [b"0", b"2"]  # type: ignore[attr-defined]
    assert (world.accounts.delivered, world.accounts.slow_reader) == (2, 1)


def test_client_that_takes_nothing_is_cut_once() -> None:
    world = World(stall_s=5.0)
    lane, reader = world.lane(), world.lane()
    lane.writer.reads = False  # type: ignore[attr-defined]
    world.delivery.deliver(lane, b"0")
    world.delivery.deliver(reader, b"0")
    world.delivery.cut_stalled(5.0)
    assert world.accounts.cut == {}
    world.delivery.cut_stalled(5.1)
    world.delivery.cut_stalled(6.0)
    assert world.accounts.cut == {"slow_reader": 1}
    assert (lane.writer.aborted, reader.writer.aborted) == (1, 0)  # type: ignore[attr-defined]


def test_client_that_takes_a_little_is_not_cut() -> None:
    world = World(stall_s=5.0)
    lane = world.lane()
    lane.writer.reads = False  # type: ignore[attr-defined]
    for _ in range(3):
        world.delivery.deliver(lane, b"0")
    world.now = 4.0
    world.unblock(lane, reads=False)
    world.delivery.cut_stalled(8.0)
    assert world.accounts.cut == {}


def test_results_in_the_outbox_of_a_client_that_goes_have_left() -> None:
    world = World()
    lane = world.lane()
    lane.writer.reads = False  # type: ignore[attr-defined]
    world.delivery.deliver(lane, b"0", 9.0)
    world.delivery.deliver(lane, b"1", 9.0)
    world.delivery.deliver(lane, b"notice")
    world.delivery.close(lane)
    assert world.accounts.left == 2
    world.delivery.written(lane)  # a writer that reports too late
    assert world.accounts.delivered == 0
    world.delivery.cut_stalled(100.0)
    assert world.accounts.cut == {}
