"""This replica among the others: operators' words and kicks, everybody's counts, clients that change replicas.

    operator ──▶ together ──▶ clients here            (at once, with or without Redis)
                    └─────── channel ──▶ the others ──▶ their clients

Without Redis, or while it is away, everything works for the clients of this replica.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from framelane.preprocess.packets import encode_event
from framelane.server import protocol
from framelane.server.lanes.abroad import Abroad, digest
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane

from .messages import Beat, Kick, Message, Moved, Notice, Spent, Target
from .peers import TOLD, Peers

if TYPE_CHECKING:
    from .channel import Channel

_MOST_MOVED = 4096
_MOST_KNOWN = 50_000


class Together(Abroad):
    """What joins this replica to its fleet.

    Args:
        exchange: the clients here.
        replica: this one's name.
        grace_s: how long a client that has left another replica is known.
        most: places of the whole fleet; None: each replica decides by itself.
    """

    def __init__(self, exchange: Exchange, replica: str, grace_s: float, most: int | None) -> None:
        self._exchange = exchange
        self._replica = replica
        self._grace_s = grace_s
        self._peers = Peers(replica, most)
        self._moved: dict[bytes, tuple[float, float]] = {}  # digest of a ticket → since when it waits, and until when
        self._channel: Channel | None = None
        self._running: asyncio.Task[None] | None = None
        self.limited = most is not None
        self.notices = 0
        self.kicks = 0

    def join(self, url: str, fleet: str) -> None:
        """Be joined to the fleet of this name as soon as ``run`` runs.

        Raises:
            ConfigError: the address cannot be read.
        """
        from .channel import Channel  # a replica that is alone need not load redis

        self._channel = Channel(url, fleet, self._replica, self._beat, self._hear)
        self._exchange.reception.abroad = self._exchange.passes.abroad = self

    def start(self) -> None:
        """``run`` until this replica has left."""
        self._running = asyncio.create_task(self.run())

    async def run(self) -> None:
        """Keep the way to the others open until it is cancelled; nothing to do without one."""
        if self._channel is not None:
            await self._channel.run()

    # -- operators ---------------------------------------------------------------------------------------------------

    def notice(self, to: Target, text: str) -> dict[str, Any]:
        """Say something to one client or to a campaign, wherever in the fleet they are; what is known of it."""
        message = Notice(sender=self._replica, to=_hidden(to), text=text)
        return self._everywhere(message, self._say(message))

    def kick(self, to: Target) -> dict[str, Any]:
        """End the connections of one client or of a campaign; what is known of it."""
        message = Kick(sender=self._replica, to=_hidden(to))
        return self._everywhere(message, self._end(message))

    def _everywhere(self, message: Message, here: int) -> dict[str, Any]:
        channel = self._channel
        reached = channel is not None and channel.works
        if channel is not None:
            channel.publish(message)
        others = len(self._peers.others(time.monotonic())) if reached else 0
        return {"clients_here": here, "other_replicas_told": others, "degraded": self.degraded()}

    # -- what people see ---------------------------------------------------------------------------------------------

    def degraded(self) -> list[str]:
        """What does not work, though clients here are served."""
        if self._channel is None or self._channel.works:
            return []
        return ["the other replicas cannot be reached (redis)"]

    def status(self) -> dict[str, Any]:
        """For /v1/status."""
        if self._channel is None:
            return {}
        others = self._peers.others(time.monotonic())
        own = self._beat()
        return {
            "replica": self._replica,
            "redis": "up" if self._channel.works else "down",
            "breaks": self._channel.pulse.breaks,
            "unsent": self._channel.unsent,
            "replicas": sorted([self._replica, *(beat.replica for beat in others)]),
            "admitted": own.admitted + sum(beat.admitted for beat in others),
            "waiting": own.waiting + sum(beat.waiting for beat in others),
            "notices": self.notices,
            "kicks": self.kicks,
        }

    # -- draining ----------------------------------------------------------------------------------------------------

    async def my_turn(self, patience: float) -> None:
        """Wait until no other replica of the fleet drains; at most so many seconds."""
        if self._channel is not None:
            await self._channel.my_turn(patience)

    async def leaving(self) -> None:
        """Tell the others whom they have to expect. The next replica may drain when this one has ended."""
        if self._channel is None:
            return
        reception, now = self._exchange.reception, time.monotonic()
        lanes = [lane for lane in self._exchange.delivery.lanes.values() if lane.ticket]
        waiting = {lane.ticket: None if lane.admitted else reception.room.since(lane) for lane in lanes}
        self._tell_moved(waiting, now)
        await asyncio.sleep(0)  # the messages go before the clients do

    async def left(self) -> None:
        """This replica has drained: it is the next one's turn."""
        if self._channel is not None:
            await self._channel.turn_over()
        if self._running is not None:
            self._running.cancel()

    # -- Abroad ------------------------------------------------------------------------------------------------------

    def places(self, admitted: int, line: Sequence[float], now: float) -> int:
        """As ``Abroad.places``."""
        reachable = self._channel is not None and self._channel.works
        wall = [_wall(since, now) for since in line]
        found = self._peers.places(admitted, wall, now, reachable=reachable)
        assert found is not None
        return found

    def ahead(self, since: float, now: float) -> int:
        """As ``Abroad.ahead``."""
        return self._peers.ahead(_wall(since, now), now)

    def arrived(self, ticket: str, now: float) -> float | None:
        """As ``Abroad.arrived``."""
        found = self._moved.pop(digest(ticket), None) if ticket and self._moved else None
        if found is None or found[1] < time.time():
            return None
        return -math.inf if not found[0] else now + found[0] - time.time()

    def lost(self, ticket: str, since: float | None, now: float) -> None:
        """As ``Abroad.lost``."""
        self._tell_moved({ticket: since}, now)

    def spent(self, token: bytes, ticket: bytes, until: float) -> None:
        """As ``Abroad.spent``."""
        if self._channel is not None:
            self._channel.publish(Spent(sender=self._replica, token=token, ticket=ticket, until=until))

    # -- the channel -------------------------------------------------------------------------------------------------

    def _beat(self) -> Beat:
        reception, now = self._exchange.reception, time.monotonic()
        beat = Beat(
            replica=self._replica,
            admitted=reception.admission.occupied,
            waiting=reception.room.present,
            line=[_wall(since, now) for since in reception.room.oldest(TOLD)],
        )
        self._peers.told(beat)
        return beat

    def _hear(self, message: Message) -> None:
        if isinstance(message, Beat):
            self._peers.heard(message, time.monotonic())
        elif message.sender == self._replica:
            return  # done here before it was sent
        elif isinstance(message, Notice):
            self._say(message)
        elif isinstance(message, Kick):
            self._end(message)
        elif isinstance(message, Spent):
            self._exchange.passes.elsewhere(message.token, message.ticket, message.until)
        else:
            self._expect(message)

    def _tell_moved(self, waiting: dict[str, float | None], now: float) -> None:
        if self._channel is None or not waiting:
            return
        tickets = [(digest(ticket), 0.0 if since is None else _wall(since, now)) for ticket, since in waiting.items()]
        until = time.time() + self._grace_s
        for start in range(0, len(tickets), _MOST_MOVED):
            some = dict(tickets[start : start + _MOST_MOVED])
            self._channel.publish(Moved(sender=self._replica, tickets=some, until=until))

    def _expect(self, moved: Moved) -> None:
        now = time.time()
        if len(self._moved) + len(moved.tickets) > _MOST_KNOWN:
            self._moved = {key: found for key, found in self._moved.items() if found[1] > now}
        until = min(moved.until, now + self._grace_s)
        for ticket, since in list(moved.tickets.items())[: _MOST_KNOWN - len(self._moved)]:
            self._moved[ticket] = since, until

    # -- clients here ------------------------------------------------------------------------------------------------

    def _say(self, notice: Notice) -> int:
        packets: dict[int, bytes] = {}
        event, count = protocol.Notice(text=notice.text), 0
        for lane in self._meant(notice.to):
            if lane.flavour not in packets:
                packets[lane.flavour] = encode_event(lane.flavour, "notice", event)
            self._exchange.delivery.deliver(lane, packets[lane.flavour])
            count += 1
        self.notices += count
        return count

    def _end(self, kick: Kick) -> int:
        lanes = list(self._meant(kick.to))
        for lane in lanes:
            self._exchange.kick(lane)
        if kick.to.token:
            self._exchange.passes.revoke(kick.to.token)  # its client may be anywhere, and come here
        self.kicks += len(lanes)
        return len(lanes)

    def _meant(self, to: Target) -> Iterator[Lane]:
        """The clients here that a verb is about; those who hear one answer only (they have no ticket) are not."""
        for lane in list(self._exchange.delivery.lanes.values()):
            if not lane.ticket or lane.cut:
                continue
            if (
                (to.lane and lane.id == to.lane)
                or (to.token and lane.token == to.token)
                or (to.campaign and lane.campaign == to.campaign)
                or (to.ticket and digest(lane.ticket).hex() == to.ticket)
            ):
                yield lane


def _hidden(to: Target) -> Target:
    """The target without its client's secret."""
    return Target(
        lane=to.lane, token=to.token, campaign=to.campaign, ticket=digest(to.ticket).hex() if to.ticket else ""
    )


def _wall(moment: float, now: float) -> float:
    """Unix time of a moment of ``time.monotonic``, to the tenth of a second."""
    return round(time.time() + moment - now, 1)
