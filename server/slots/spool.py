"""Where the results of a long job are kept: in memory while they are few, then in a file without a name."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import pairwise

from framelane.models.errors import FramelaneError

from .nameless import FileClosed, NamelessFile

_IN_MEMORY = 1 << 20


class SpoolFull(FramelaneError):
    """The results of one job have grown beyond their bound, or the disk is full."""

    code = "results_too_large"


class Spool:
    """Results in the order they came; each is bytes. One may be appended at a time.

    Args:
        limit: the most bytes of all results together.
        in_memory: beyond so many, further results go to the file.
    """

    def __init__(self, limit: int, in_memory: int = _IN_MEMORY) -> None:
        self._limit = limit
        self._in_memory = in_memory
        self._memory = bytearray()
        self._file = NamelessFile()
        self._ends = array("Q")
        self.closed = False

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """What has been kept so far."""
        return self._ends[-1] if self._ends else 0

    async def append(self, data: bytes) -> None:
        """Keep one more.

        Raises:
            SpoolFull: it is not kept; the message says why.
        """
        start, end = self.size, self.size + len(data)
        if end > self._limit:
            raise SpoolFull(f"the results need more than {self._limit >> 20} MiB")
        if start == len(self._memory) and end <= self._in_memory:
            self._memory += data
        else:
            try:
                await self._file.write(data, start - len(self._memory))
            except OSError as error:
                raise SpoolFull(f"the results cannot be kept: {error.strerror}", code="no_space") from None
        self._ends.append(end)

    async def read(self, first: int, most: int) -> list[bytes]:
        """Results from this index on: one at least, and further ones as long as they have no more bytes together.

        Raises:
            IndexError: there is none, or not any more.
        """
        start, end = self._ends[first - 1] if first else 0, self._ends[first]
        last = max(first, bisect_right(self._ends, start + most) - 1)
        end, kept = self._ends[last], len(self._memory)
        data = bytes(self._memory[start:end])
        if self.closed:
            raise IndexError("the results are not kept any more")
        if end > kept:
            try:
                data += await self._file.read(end - max(start, kept), max(start, kept) - kept)
            except FileClosed:
                raise IndexError("the results are not kept any more") from None
        bounds = [start, *self._ends[first : last + 1]]
        return [data[one - start : other - start] for one, other in pairwise(bounds)]

    def close(self) -> None:
        """Give memory and file back; may be repeated."""
        self.closed = True
        self._memory = bytearray()
        self._file.close()
