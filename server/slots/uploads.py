"""What a client has sent for a long job: a file without a name, which vanishes with the last one who has it open."""

from __future__ import annotations

from framelane.models.errors import FramelaneError

from .nameless import NamelessFile

_AT_ONCE = 1 << 20


class UploadFailed(FramelaneError):
    """A clip that cannot be kept: too large (``too_large``), or there is no space for it (``no_space``)."""

    code = "too_large"


class Upload:
    """One clip. Jobs hold it; it is closed when the last one releases it.

    Args:
        limit: the most bytes it may have.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._file = NamelessFile()
        self._waiting = bytearray()
        self._written = 0
        self._holders = 1
        self.size = 0

    @property
    def fd(self) -> int:
        """The descriptor, for the process that reads it."""
        return self._file.fd

    async def append(self, data: bytes) -> None:
        """Take the next piece.

        Raises:
            UploadFailed: it has grown too large, or the disk is full.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise UploadFailed(f"the clip is larger than {self._limit} bytes (audit_bytes)")
        self._waiting += data
        if len(self._waiting) >= _AT_ONCE:
            await self.flush()

    async def flush(self) -> None:
        """Write what waits; raises as ``append``."""
        data, self._waiting = self._waiting, bytearray()
        if data:
            try:
                await self._file.write(data, self._written)
            except OSError as error:
                raise UploadFailed(f"the clip cannot be kept: {error.strerror}", code="no_space") from None
            self._written += len(data)

    def hold(self) -> None:
        """One more job uses it."""
        self._holders += 1

    def release(self) -> None:
        """One user fewer; whoever made it is one, too."""
        self._holders -= 1
        if not self._holders:
            self._file.close()
