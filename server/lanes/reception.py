"""Clients come, wait, get a place, hear how often they may send, and go.

    enter ──▶ greet: ready                      a place is free, or was held for one that lost its connection
                └──▶ waiting … waiting ──▶ ready   as places become free, first come first served
    leave                                       a lost connection keeps its place or its position for a while

A client shows who it is with the ticket that `ready` and `waiting` gave it: random, and told to nobody else. An older
connection with the same ticket, which a phone that changed its network leaves behind, gives way to the new one.
"""

from __future__ import annotations

import math
import secrets

from framelane.server.errors import Refused
from framelane.server.protocol import Cut, Hello, Pace, Ready, Refusal, Waiting

from . import pace
from .abroad import Abroad
from .accounts import Accounts
from .admission import Admission
from .capacity import Capacity
from .conduct import cut
from .delivery import Delivery
from .lane import Lane, Writer
from .limits import Limits
from .waiting import WaitingRoom

_SWEEP = 200  # positions looked at per turn
_NEWS_S = 2.0
_LINE = 32  # of those who wait, so many are told to other replicas by their time
_LOOK_S = 1.0
_MOST_RETRY_S = 600.0
_TURNOVER_WEIGHT = 0.2


class Reception:
    """Takes clients in and keeps the order of those who wait.

    Args:
        delivery: the way to them.
        accounts: where connections are counted.
        capacity: what can be shared out.
        limits: see ``Limits``.

    Attributes:
        abroad: what other replicas mean for the places here.
        admission: places.
        room: who waits for one.
        interval_ms: what clients with a place are asked to keep.
    """

    __slots__ = ("_accounts", "_capacity", "_delivery", "_given_at", "_limits", "_looked_at", "_new",
                 "_senders", "_tickets", "_turnover_s", "abroad", "admission", "interval_ms", "room")  # fmt: skip

    def __init__(self, delivery: Delivery, accounts: Accounts, capacity: Capacity, limits: Limits) -> None:
        self._delivery = delivery
        self._accounts = accounts
        self._capacity = capacity
        self._limits = limits
        self._tickets: dict[str, Lane] = {}
        self._given_at = 0.0
        self._looked_at = 0.0
        self._senders = self._new = 0
        self._turnover_s = limits.retry_after_ms / 1000
        self.abroad = Abroad()
        self.admission = Admission(limits)
        self.room = WaitingRoom(limits.waiting_room, limits.grace_s)
        self.interval_ms = limits.interval_ms

    @property
    def senders(self) -> int:
        """How many clients that have a place have sent frames lately."""
        return self._senders

    @property
    def held_back(self) -> bool:
        """Whether clients wait, or are asked to send less than they might."""
        return self.room.present > 0 or self.interval_ms > self._limits.interval_ms

    def describe_places(self) -> str:
        """How many clients may come, in words."""
        limits, rate = self._limits, self._capacity.rate
        if limits.max_clients is not None:
            return f"{limits.max_clients}, as configured"
        if rate == float("inf"):
            return "open until the capacity is known"
        places = self.admission.places(self._capacity.sure)
        return f"{places} now: {rate:.0f} frames per second were measured, a client is promised {limits.client_fps:g}"

    def enter(self, hello: Hello, flavour: int, writer: Writer, now: float, *, may_wait: bool) -> Lane:
        """Open a lane: with a place, or with a position in the waiting room.

        Raises:
            Refused: there is neither.
        """
        limits, queues = self._limits, hello.policy == "queue"
        lane = Lane(
            flavour,
            writer,
            depth=limits.queue_depth if queues else 1,
            queues=queues,
            parallel=limits.parallel if queues and not limits.stateful else 1,
        )
        lane.fault_tokens = limits.fault_burst
        self._expire(now)
        if may_wait:
            lane.ticket = self._recognise(lane, hello.resume or "", now) or secrets.token_urlsafe(18)
            lane.resumes = hello.resume is not None
        self._seat(lane, now)
        self._delivery.open(lane)
        self._accounts.connected += 1
        if lane.ticket:
            self._tickets[lane.ticket] = lane
        return lane

    def greet(self, lane: Lane, now: float) -> None:
        """Say `ready` or `waiting`, once the door has finished its own handshake."""
        if lane.admitted:
            self._say_ready(lane, now)
            return
        if not self.room.present:
            self._given_at = now
        position = self.room.enter(lane, now, lane.since)
        self._say_waiting(lane, position + self.abroad.ahead(self.room.since(lane) or now, now))
        self._fill(now)  # a place may have fallen free during the handshake

    def leave(self, lane: Lane, now: float, *, lost: bool) -> None:
        """A client has gone. If its connection was only `lost`, it may come back to where it was."""
        if self._tickets.get(lane.ticket) is lane:
            del self._tickets[lane.ticket]
        if lost and lane.resumes:
            self.abroad.lost(lane.ticket, None if lane.admitted else self.room.since(lane), now)
        if lane.admitted:
            self.admission.give_back(lane, now, lost=lost and lane.resumes)
            self._fill(now)
        else:
            self.room.leave(lane, now, lost=lost)

    def turn(self, now: float) -> None:
        """What time changes: places that fall free, positions and paces that clients should hear of."""
        self._expire(now)
        self._fill(now)
        if len(self.room):
            for lane, position in self.room.news(now, _SWEEP, _NEWS_S, self.abroad.ahead):
                self._say_waiting(lane, position)
        if now - self._looked_at >= _LOOK_S:
            self._look(now)

    # -- places ------------------------------------------------------------------------------------------------------

    def _recognise(self, lane: Lane, ticket: str, now: float) -> str | None:
        """The ticket, if it is one of ours or of another replica; an older connection that shows it gives way."""
        older = self._tickets.get(ticket)
        if older is not None:
            cut(self._accounts, older, Cut.RESUMED, "its client came back on another connection")
            if older.admitted:
                self.admission.give_back(older, now, lost=True)
            else:
                self.room.leave(older, now, lost=True)
            older.admitted = False  # what it still sends is not served
            older.ticket = ""
            older.writer.abort()
            return ticket
        if self.admission.holds(ticket) or self.room.knows(ticket):
            return ticket
        lane.since = self.abroad.arrived(ticket, now)
        return None if lane.since is None else ticket

    def _places(self, now: float) -> int:
        """How many more clients may have a place now."""
        own = self.admission.places(self._capacity.sure)
        if not self.abroad.limited:
            return own
        return min(own, self.abroad.places(self.admission.occupied, self.room.oldest(_LINE), now))

    def _seat(self, lane: Lane, now: float) -> None:
        """Give the lane the place that it may have; if it has to wait, its position comes with the greeting.

        Raises:
            Refused: there is neither.
        """
        held = self.admission.reclaim(lane.ticket)  # its own, however little is free by now
        first = lane.since == -math.inf  # it had a place at another replica
        if held or ((first or not self.room.present) and self._places(now)):
            self.admission.take(lane)
            return
        if not lane.ticket or (self.room.full and not self.room.knows(lane.ticket)):
            after = max(self._limits.retry_after_ms, round(1000 * min(self._turnover_s, _MOST_RETRY_S)))
            raise Refused("all places are taken", code=Refusal.FULL, retry_after_ms=after)
        lane.admitted = False

    def _fill(self, now: float) -> None:
        """Give the places that are free to those who wait."""
        if not self.room.present:
            return
        for _ in range(min(self._places(now), _SWEEP)):
            lane = self.room.take()
            if lane is None:
                return
            lane.admitted = True
            self.admission.take(lane)
            self._turnover_s += (now - self._given_at - self._turnover_s) * _TURNOVER_WEIGHT
            self._given_at = now
            self._say_ready(lane, now)

    def _expire(self, now: float) -> None:
        self.admission.expire(now)
        self.room.expire(now)

    # -- pace --------------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """See what everybody has sent, and tell those whose share has changed."""
        seconds, self._looked_at = now - self._looked_at, now
        sending: list[tuple[Lane, float]] = []
        for lane in self._delivery.lanes.values():
            frames, lane.frames_seen = lane.frames - lane.frames_seen, lane.frames
            if lane.admitted:
                self.admission.measured(lane, frames / seconds)
                if frames and lane.ticket:
                    sending.append((lane, frames / seconds))
        self._senders, self._new = len(sending), 0
        if sending:
            self._share(sending, now)
        else:
            self.interval_ms = self._limits.interval_ms

    def _share(self, sending: list[tuple[Lane, float]], now: float) -> None:
        wants = (float("inf") if pace.held_to(rate, lane.paced_ms) else rate for lane, rate in sending)
        shortest = self._limits.interval_ms
        self.interval_ms = interval = pace.interval_ms(pace.fair_share(wants, self._capacity.rate), shortest)
        for lane, _rate in sending:
            if pace.worth_telling(lane.paced_ms, lane.paced_at, interval, now):
                lane.paced_ms, lane.paced_at = interval, now
                self._delivery.tell(lane, "pace", Pace(interval_ms=interval))

    # -- words -------------------------------------------------------------------------------------------------------

    def _say_ready(self, lane: Lane, now: float) -> None:
        limits = self._limits
        self._new += 1
        share = pace.equal_share(self._senders + self._new, self._capacity.rate)
        interval = max(self.interval_ms, pace.interval_ms(share, limits.interval_ms))
        lane.paced_ms, lane.paced_at = interval, now
        ready = Ready(
            lane=lane.id,
            pipeline=limits.pipeline,
            window=lane.depth + lane.parallel if lane.queues else limits.window,
            max_frame_bytes=limits.max_frame_bytes,
            interval_ms=interval,
            deadline_ms=limits.deadline_ms,
            ticket=lane.ticket,
        )
        self._delivery.tell(lane, "ready", ready, control=True)

    def _say_waiting(self, lane: Lane, position: int) -> None:
        seconds = min(max(position * self._turnover_s, 0.5), _MOST_RETRY_S)
        place = Waiting(position=position, retry_after_ms=round(1000 * seconds), ticket=lane.ticket)
        self._delivery.tell(lane, "waiting", place)
