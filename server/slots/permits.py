"""Permits: how many runs may go on at once on one device, over all replicas of a machine (``--gpu-permits N``).

The ceiling belongs to the card, not to the replica: three containers with two active slots each may share a card that
was validated for two concurrent runs. A permit is a lock on one byte of a shared file (``models/locks.py``), so a slot
that dies gives its permit back at once. Containers that share a card must share the folder for temporary files.
"""

from __future__ import annotations

import re

from framelane.models.locks import ByteLocks


class Permits:
    """The permits of one device.

    Args:
        device: its name; the same name on this machine is the same device.
        count: how many there are.
    """

    def __init__(self, device: str, count: int) -> None:
        self._locks = ByteLocks("permits-" + re.sub(r"[^A-Za-z0-9]+", "-", device))
        self._count = count
        self._turn = 0
        self._held = -1

    def __enter__(self) -> None:
        """Wait for a permit: any that is free, else the next one in turn."""
        for place in range(self._count):
            if self._locks.try_acquire(place):
                self._held = place
                return
        self._turn = (self._turn + 1) % self._count
        self._locks.acquire(self._turn)
        self._held = self._turn

    def __exit__(self, *_exception: object) -> None:
        self._locks.release(self._held)
