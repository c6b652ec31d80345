"""Locks that processes of a machine share: one per byte of a file, freed by the kernel when the holder dies.

Open-file-description locks (``man 2 fcntl``) belong to the open file, so nothing is left behind by SIGKILL and the file
itself, which stays, is empty and stops nobody.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile

_FLOCK = struct.Struct("hhqqi4x")


class ByteLocks:
    """The locks of one name, for this user on this machine.

    Args:
        name: letters, digits, "-" and "_"; the same name is the same locks, in every process.
    """

    def __init__(self, name: str) -> None:
        path = os.path.join(tempfile.gettempdir(), f"framelane-{os.getuid()}-{name}.lock")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def acquire(self, place: int) -> None:
        """Wait for the lock of a place."""
        self._change(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, place)

    def try_acquire(self, place: int) -> bool:
        """Take the lock of a place if it is free."""
        try:
            self._change(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, place)
        except BlockingIOError:
            return False
        return True

    def release(self, place: int) -> None:
        """Give the lock of a place back."""
        self._change(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, place)

    def held_by_others(self, places: int) -> int:
        """How many of the first ``places`` locks other processes hold now."""
        return self._held(0, places)

    def close(self) -> None:
        """Release everything."""
        os.close(self._fd)

    def _held(self, start: int, end: int) -> int:
        """Locks of others in a range: the kernel names the one that was taken first, wherever it lies."""
        if start >= end:
            return 0
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
        found: tuple[int, ...] = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))
        kind, _, at, length, _ = found
        if kind == fcntl.F_UNLCK:
            return 0
        return length + self._held(start, at) + self._held(at + length, end)

    def _change(self, command: int, kind: int, place: int) -> None:
        fcntl.fcntl(self._fd, command, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
