"""Clients that misbehave: how much is answered, and when the connection is cut, by name.

Bad messages have a rate (a bucket of tokens), since anyone can make a mistake. Frames that end a worker or two slots
are counted by client: once is bad luck, again and again is an attack or a bug, and each costs others their latency.
"""

from __future__ import annotations

import logging

from framelane.server.protocol import Cut

from .accounts import Accounts
from .lane import Lane
from .limits import Limits

log = logging.getLogger(__name__)

_LOGGED = 100  # /metrics counts them all; whoever floods must not flood the log, too


class Conduct:
    """Decides who has to go.

    Args:
        accounts: where cuts are counted.
        limits: see ``Limits``.
    """

    __slots__ = ("_accounts", "_limits")

    def __init__(self, accounts: Accounts, limits: Limits) -> None:
        self._accounts = accounts
        self._limits = limits

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

    def fatal_frame(self, lane: Lane, now: float) -> bool:
        """Whether a client that has sent a fatal frame may stay."""
        times = lane.fatal_at
        times.append(now)
        while times[0] < now - self._limits.fatal_s:
            times.popleft()
        if len(times) < self._limits.fatal_frames:
            return True
        cut(self._accounts, lane, Cut.FATAL_FRAMES, f"{len(times)} of its frames ended a worker or two slots")
        return False


def cut(accounts: Accounts, lane: Lane, reason: Cut, why: str) -> None:
    """Enter that a lane is cut, once."""
    if lane.cut:
        return
    lane.cut = True
    accounts.cut[reason] += 1
    if accounts.cut[reason] <= _LOGGED:
        log.warning("lane %s is cut (%s): %s", lane.id, reason, why)
