"""Where the results of a long job are kept: in memory while they are few, then in a file without a name.

The file is one that the kernel removes with the last process that has it open (``O_TMPFILE``), whatever ended it.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from typing import IO

from framelane.models.errors import FramelaneError

_IN_MEMORY = 1 << 20


class SpoolFull(FramelaneError):
    """The results of one job have grown beyond their bound, or the disk is full."""

    code = "results_too_large"


class Spool:
    """Results in the order they came; each is bytes.

    Args:
        limit: the most bytes of all results together.
        in_memory: beyond so many, further results go to the file.
    """

    def __init__(self, limit: int, in_memory: int = _IN_MEMORY) -> None:
        self._limit = limit
        self._in_memory = in_memory
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._ends = array("Q")
        self.closed = False

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """What has been kept so far."""
        return self._ends[-1] if self._ends else 0

    def append(self, data: bytes) -> None:
        """Keep one more.

        Raises:
            SpoolFull: it is not kept; the message says why.
        """
        end = self.size + len(data)
        if end > self._limit:
            raise SpoolFull(f"the results need more than {self._limit >> 20} MiB")
        if self._file is None and end <= self._in_memory:
            self._memory += data
        else:
            self._write(data)
        self._ends.append(end)

    def read(self, index: int) -> bytes:
        """The result of this index; after ``close`` there is none (IndexError)."""
        if self.closed:
            raise IndexError("the results are not kept any more")
        start, end = self._ends[index - 1] if index else 0, self._ends[index]
        kept = len(self._memory)
        if end <= kept:
            return bytes(self._memory[start:end])
        assert self._file is not None
        return os.pread(self._file.fileno(), end - start, start - kept)

    def close(self) -> None:
        """Give memory and file back; may be repeated."""
        self.closed = True
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
            written = os.pwrite(self._file.fileno(), data, self.size - len(self._memory))
        except OSError as error:
            raise SpoolFull(f"the results cannot be kept: {error.strerror}", code="no_space") from None
        if written != len(data):
            raise SpoolFull("the results cannot be kept: the disk is full", code="no_space")
