"""Connections that the server ends in good order: it says `refused` and why, closes, and counts.

    expired       the client's token has expired and was not renewed: come back with another one
    idle          a client has a place and sends nothing: others wait for it
    rate_limited  it goes on sending more than it may, whatever it is told

A client that cannot be talked to is cut elsewhere (``delivery``, ``conduct``). ``turn`` looks once a second.
"""

from __future__ import annotations

from msgspec import UNSET

from framelane.server.protocol import CLOSE_CODES, Cut, Refusal, RefusedData

from .accounts import Accounts
from .conduct import cut
from .delivery import Delivery
from .lane import Lane
from .limits import Limits
from .passes import Passes

_LOOK_S = 1.0
_RETRY_MS = 5_000


class Endings:
    """Finds the connections that are over.

    Args:
        delivery: the way to the clients.
        accounts: where endings are counted.
        passes: who may be here.
        limits: see ``Limits``.
    """

    __slots__ = ("_accounts", "_delivery", "_limits", "_looked_at", "_passes")

    def __init__(self, delivery: Delivery, accounts: Accounts, passes: Passes, limits: Limits) -> None:
        self._delivery = delivery
        self._accounts = accounts
        self._passes = passes
        self._limits = limits
        self._looked_at = 0.0

    def turn(self, now: float) -> None:
        """End what time has ended. Those who hear one answer only (they have no ticket) are soon gone by themselves."""
        if now - self._looked_at < _LOOK_S or not (self._passes.tokens or self._limits.idle_s):
            return
        self._looked_at = now
        for lane in [lane for lane in self._delivery.lanes.values() if lane.ticket and not lane.cut]:
            if lane.expires_at <= now:
                self.end(lane, Cut.EXPIRED, Refusal.UNAUTHORIZED, "the token has expired", retry_after_ms=0)
            elif self._limits.idle_s and self._idle(lane, now):
                why = f"nothing was sent for {self._limits.idle_s:g} s"
                self.end(lane, Cut.IDLE, Refusal.IDLE, why)

    def too_fast(self, lane: Lane, now: float) -> None:
        """A frame was more than the client may send. It is forgiven at a rate, as bad messages are."""
        limits = self._limits
        refill = (now - lane.too_fast_at) * limits.excess_per_s
        lane.too_fast = max(0.0, lane.too_fast - refill) + 1
        lane.too_fast_at = now
        if lane.too_fast > limits.excess_burst and not lane.cut:
            why = "more is sent than may be, and goes on"
            self.end(lane, Cut.RATE_LIMITED, Refusal.RATE_LIMITED, why, retry_after_ms=_RETRY_MS)

    def end(self, lane: Lane, reason: Cut, code: Refusal, message: str, *, retry_after_ms: int | None = None) -> None:
        """Tell a client why its connection ends, and close it."""
        cut(self._accounts, lane, reason, message)
        after = UNSET if retry_after_ms is None else retry_after_ms
        data = RefusedData(code=code, message=message, retry_after_ms=after)
        self._delivery.tell(lane, "refused", data, control=True)
        lane.writer.close(CLOSE_CODES[code], code)

    def _idle(self, lane: Lane, now: float) -> bool:
        """Whether a client with a place has sent nothing for too long."""
        if not lane.admitted or lane.last_seq != lane.seq_seen:
            lane.seq_seen, lane.active_at = lane.last_seq, now
        return now - lane.active_at > self._limits.idle_s
