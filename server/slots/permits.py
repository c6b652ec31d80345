"""Permits: how many runs may go on at once on one device, over all replicas of a machine (``--gpu-permits N``).

The ceiling belongs to the card, not to the replica: three containers with two active slots each may share a card that
was validated for two concurrent runs. A permit is a lock on one byte of a shared file (``models/locks.py``), so a slot
that dies gives its permit back at once. Containers that share a card must share the folder for temporary files.

One more byte is the door to the permits. Whoever waits for a permit holds it, so that a busy slot which gives its
permit back and wants the next one stands behind those who wait already.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from framelane.models.locks import ByteLocks

_RETRY_S = 0.0005


class Permits:
    """The permits of one device.

    Args:
        device: its name; the same name on this machine is the same device.
        count: how many there are.
    """

    def __init__(self, device: str, count: int) -> None:
        self._locks = ByteLocks("permits-" + re.sub(r"[^A-Za-z0-9]+", "-", device))
        self._count = count

    def acquire(self, waiting: Callable[[], None]) -> int:
        """Wait for a permit; returns its number, for ``release``. Calls ``waiting`` now and then meanwhile."""
        door = self._count
        self._wait_for(range(door, door + 1), waiting)
        place = self._wait_for(range(self._count), waiting)
        self._locks.release(door)
        return place

    def release(self, place: int) -> None:
        """Give a permit back."""
        self._locks.release(place)

    def _wait_for(self, places: range, waiting: Callable[[], None]) -> int:
        while True:
            for place in places:
                if self._locks.try_acquire(place):
                    return place
            waiting()
            time.sleep(_RETRY_S)
