"""The one way from the server to a client: a finished packet, to one lane.

Every event goes through ``Delivery.deliver``, `ready` included. It refuses a target that is empty, foreign or gone,
since a mistaken target must reach nobody rather than everybody. What a client does not read waits in its lane's outbox,
which is bounded in messages and in bytes: beyond that results are shed (``slow_reader``), and a client that reads
nothing for a while is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framelane.preprocess.packets import encode_event
from framelane.server.errors import DeliveryError
from framelane.server.protocol import Cut

from .accounts import Accounts
from .conduct import cut
from .lane import Lane
from .limits import Limits

_NOBODY = object()


class Delivery:
    """Delivers packets to the lanes that are connected here.

    Args:
        accounts: where the fates of results are entered.
        limits: see ``Limits``.
        clock: seconds on the clock of the deadlines (``time.monotonic``).

    Attributes:
        lanes: everyone who is connected, by id.
    """

    __slots__ = ("_accounts", "_blocked", "_clock", "_limits", "lanes")

    def __init__(self, accounts: Accounts, limits: Limits, clock: Callable[[], float]) -> None:
        self._accounts = accounts
        self._limits = limits
        self._clock = clock
        self._blocked: set[Lane] = set()
        self.lanes: dict[str, Lane] = {}

    def open(self, lane: Lane) -> None:
        """From now on the lane can be a target."""
        self.lanes[lane.id] = lane

    def close(self, lane: Lane) -> None:
        """The lane's connection has ended: what its client has not taken reaches nobody."""
        self.lanes.pop(lane.id, None)
        self._blocked.discard(lane)
        self._accounts.left += sum(deadline is not None for _packet, deadline in lane.outbox)
        lane.outbox.clear()
        lane.outbox_bytes = 0

    def deliver(self, lane: Lane, packet: bytes, deadline: float | None = None, *, control: bool = False) -> None:
        """Deliver a finished packet to one client.

        Args:
            lane: the target.
            packet: in the lane's flavour.
            deadline: for a result, when it is worth nothing any more; its fate is entered here. None for all else.
            control: it is not shed, however full the outbox (`ready`, pings: few, and not provoked by the client).

        Raises:
            DeliveryError: the target is no lane, or not connected here.
        """
        if self.lanes.get(getattr(lane, "id", ""), _NOBODY) is not lane:
            raise DeliveryError(f"no such target: {lane!r:.60}")
        if lane.outbox:
            self._queue(lane, packet, deadline, control)
        elif lane.writer.write(packet):
            accounts = self._accounts
            accounts.bytes_out += len(packet)
            if deadline is not None:
                accounts.delivered += 1
            else:
                accounts.told += 1
        else:
            lane.outbox.append((packet, deadline))
            lane.outbox_bytes = len(packet)
            lane.blocked_since = self._clock()
            self._blocked.add(lane)

    def tell(self, lane: Lane, name: str, payload: Any, *, control: bool = False) -> None:
        """Encode an event in the lane's flavour and deliver it. Raises as ``deliver``."""
        self.deliver(lane, encode_event(lane.flavour, name, payload), control=control)

    def written(self, lane: Lane) -> None:
        """The writer has got rid of the packet at the head of the outbox: go on with the rest."""
        if not lane.outbox:
            return  # the lane was closed meanwhile
        outbox, now = lane.outbox, self._clock()
        self._accepted(*outbox[0])
        self._leave_outbox(lane)
        lane.blocked_since = now
        while outbox:
            packet, deadline = outbox[0]
            if deadline is not None and deadline < now:
                self._accounts.slow_reader += 1
            elif not lane.writer.write(packet):
                return
            else:
                self._accepted(packet, deadline)
            self._leave_outbox(lane)
        lane.blocked_since = None
        self._blocked.discard(lane)

    def _accepted(self, packet: bytes, deadline: float | None) -> None:
        self._accounts.bytes_out += len(packet)
        if deadline is not None:
            self._accounts.delivered += 1
        else:
            self._accounts.told += 1

    @property
    def blocked(self) -> int:
        """How many clients have not read what was last written to them."""
        return len(self._blocked)

    def cut_stalled(self, now: float) -> None:
        """Cut every client that has taken nothing for ``stall_s``. Call it now and then."""
        for lane in list(self._blocked):
            since = lane.blocked_since
            if since is not None and now - since > self._limits.stall_s and not lane.cut:
                cut(self._accounts, lane, Cut.SLOW_READER, f"it has read nothing for {now - since:.1f} s")
                lane.writer.abort()

    def _queue(self, lane: Lane, packet: bytes, deadline: float | None, control: bool) -> None:
        limits = self._limits
        full = len(lane.outbox) >= limits.outbox_messages or lane.outbox_bytes + len(packet) > limits.outbox_bytes
        if not full or control:
            lane.outbox.append((packet, deadline))
            lane.outbox_bytes += len(packet)
        elif deadline is not None:
            self._accounts.slow_reader += 1
        else:
            self._accounts.notices_shed += 1

    def _leave_outbox(self, lane: Lane) -> None:
        packet, _deadline = lane.outbox.popleft()
        lane.outbox_bytes -= len(packet)
