"""Clients that misbehave: how much is answered, and when the connection is cut, by name.

Bad messages have a rate (a bucket of tokens), since anyone can make a mistake. A frame that ends a worker or two slots
costs everybody: its client is not listened to for a while, which doubles each time, and is cut when it goes on. Whoever
comes back at once is no better for it: meanwhile its address gets no new connection. Those that it has are left alone,
since many visitors may share it.
"""

from __future__ import annotations

import logging
import math
from collections import deque

from framelane.server.errors import Refused
from framelane.server.protocol import Cut, Refusal

from .accounts import Accounts
from .lane import Lane
from .limits import Limits

log = logging.getLogger(__name__)

_LOGGED = 100  # /metrics counts them all; whoever floods must not flood the log, too
_LONGEST_PAUSE_S = 60.0
_MOST_REMEMBERED = 10_000  # addresses
_MOST_COUNTED = 16  # fatal frames of an address: by then the pause has long been the longest


class Conduct:
    """Decides who has to wait, and who has to go.

    Args:
        accounts: where cuts are counted.
        limits: see ``Limits``.
    """

    __slots__ = ("_accounts", "_held", "_limits")

    def __init__(self, accounts: Accounts, limits: Limits) -> None:
        self._accounts = accounts
        self._limits = limits
        self._held: dict[str, tuple[deque[float], float]] = {}  # address → its fatal frames, and until when it is held

    def check(self, address: str, now: float) -> None:
        """Whether a connection from there may come in.

        Raises:
            Refused: a frame that came from there has ended a process.
        """
        _times, until = self._held.get(address, ((), 0.0))
        if now < until:
            why = "a frame from this address has ended a process of the server"
            raise Refused(why, code=Refusal.RATE_LIMITED, retry_after_ms=math.ceil(1000 * (until - now)))

    def bad_message(self, lane: Lane, message: str, now: float) -> bool:
        """Whether a bad message is still answered. If not, the lane must be cut."""
        burst = float(self._limits.fault_burst)
        refill = (now - lane.faults_at) * self._limits.faults_per_s
        lane.fault_tokens = min(burst, lane.fault_tokens + refill) - 1
        lane.faults_at = now
        if lane.fault_tokens >= 0:
            return True
        cut(self._accounts, lane, Cut.FLOOD, f"it floods with bad messages, the last: {message}")
        return False

    def fatal_frame(self, lane: Lane, now: float, *, suspected: bool = False) -> bool:
        """Whether a client that has sent a fatal frame may stay; none of its is taken before ``lane.paused_until``.

        Args:
            lane: its lane.
            now: seconds on the lanes' clock.
            suspected: the frame may be innocent: it only counts.
        """
        own = self._count(lane.fatal_at, now)
        stays = own < self._limits.fatal_frames
        if not suspected or not stays:
            self._hold(lane, own, now)
        if not stays:
            cut(self._accounts, lane, Cut.FATAL_FRAMES, f"{own} of its frames ended a worker or two slots")
        elif not suspected:
            pause_s = lane.paused_until - now
            log.warning("lane %s is held back for %.0f s: its frame ended a worker or two slots", lane.id, pause_s)
        return stays

    def _hold(self, lane: Lane, own: int, now: float) -> None:
        times, _until = self._held.pop(lane.address, (deque(maxlen=_MOST_COUNTED), 0.0))
        pause_s = self._limits.fatal_pause_s * 2.0 ** (max(own, self._count(times, now)) - 1)
        lane.paused_until = now + min(pause_s, _LONGEST_PAUSE_S)
        if lane.address:
            self._held[lane.address] = times, lane.paused_until  # at the end: who was quiet longest is forgotten first
            if len(self._held) > _MOST_REMEMBERED:
                del self._held[next(iter(self._held))]

    def _count(self, times: deque[float], now: float) -> int:
        """Enter one more, and count those of late."""
        times.append(now)
        while times[0] < now - self._limits.fatal_s:
            times.popleft()
        return len(times)


def cut(accounts: Accounts, lane: Lane, reason: Cut, why: str) -> None:
    """Enter that a lane is cut, once."""
    if lane.cut:
        return
    lane.cut = True
    accounts.cut[reason] += 1
    if accounts.cut[reason] <= _LOGGED:
        log.warning("lane %s is cut (%s): %s", lane.id, reason, why)
