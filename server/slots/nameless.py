"""A file without a name, for what is too large to keep in memory: long jobs' clips and results.

The kernel removes it with the last process that has it open (``O_TMPFILE``), whatever ended it. A disk may make those
who use it wait, so every read and write happens on another thread; the file is closed when the last of them is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import IO


class FileClosed(Exception):
    """``close`` was called."""


class NamelessFile:
    """Bytes on disk, made with the first write."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    @property
    def fd(self) -> int:
        """Its descriptor, for another process; valid from the first write until ``close``."""
        if self._file is None or self._closed:
            raise FileClosed
        return self._file.fileno()

    async def write(self, data: bytes | bytearray, at: int) -> None:
        """Write all of it.

        Raises:
            OSError: there is no space, for example.
            FileClosed: it was closed before.
        """
        await asyncio.to_thread(self._write, data, at)

    async def read(self, size: int, at: int) -> bytes:
        """Bytes that were written; raises as ``write``."""
        return await asyncio.to_thread(self._read, size, at)

    def close(self) -> None:
        """Give the space back, as soon as nobody reads or writes any more; may be repeated."""
        with self._lock:
            self._closed = True
            self._close_if_unused()

    def _write(self, data: bytes | bytearray, at: int) -> None:
        with self._used() as fd, memoryview(data) as view:
            written = 0
            while written < len(view):
                written += os.pwrite(fd, view[written:], at + written)

    def _read(self, size: int, at: int) -> bytes:
        with self._used() as fd:
            return os.pread(fd, size, at)

    @contextlib.contextmanager
    def _used(self) -> Iterator[int]:
        """Its descriptor, which is not closed, and so is nobody else's, as long as this lasts."""
        with self._lock:
            if self._closed:
                raise FileClosed
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed below
            self._users += 1
        try:
            yield self._file.fileno()
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and not self._users and self._file is not None:
            self._file.close()
