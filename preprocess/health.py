"""Who hangs, and who is merely busy. Decides from the progress pages; no clock and no I/O here.

A process shows progress by turning its main loop: with work to do it turns all the time, and an idle one turns when it
is pinged. One that has not turned for ``limit_s`` hangs; but the time that it was ready to run and no core was free for
it does not count, so that an overloaded machine is never mistaken for a broken process. How long an answer takes, or
how much is waiting, plays no role.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum

_PING_S = 0.5


class Pulse(Enum):
    """What to do about a process."""

    BEATS = "nothing"
    SILENT = "ask it for a sign of life: an idle process turns when it is asked"
    HANGS = "put it down"


class Heartbeat:
    """What is known of one process's progress.

    Args:
        limit_s: seconds without a turn after which it hangs.
        now: monotonic seconds.
        waited: seconds in its life that the process could have run but had no core (``waited_for_cpu``); asked only
            once the process has been silent for half its limit.
    """

    __slots__ = ("_delay", "_loops", "_since", "_waited", "limit_s")

    def __init__(self, limit_s: float, now: float, waited: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self._waited = waited
        self._loops = -1
        self._since = now
        self._delay: float | None = None

    def silent(self, loops: int, now: float) -> float:
        """Seconds since the process was last seen to turn; call it regularly with the page's counter."""
        if loops != self._loops:
            self._loops = loops
            self._since = now
            self._delay = None
        return now - self._since

    def pulse(self, loops: int, now: float) -> Pulse:
        """Call it often; arguments as for ``silent``."""
        if self.hangs(loops, now):
            return Pulse.HANGS
        return Pulse.SILENT if self.silent(loops, now) > _PING_S else Pulse.BEATS

    def hangs(self, loops: int, now: float) -> bool:
        """Whether the process hangs; arguments as for ``silent``."""
        silent = self.silent(loops, now)
        if silent < self.limit_s / 2:
            return False
        if self._delay is None:
            self._delay = self._waited()
        return silent >= self.limit_s and silent - (self._waited() - self._delay) >= self.limit_s


def waited_for_cpu(pid: int) -> float:
    """Seconds that the threads of a process, together, have waited for a core so far (the kernel's run-queue delay)."""
    waited = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                waited += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        pass  # it ends
    return waited / 1e9
