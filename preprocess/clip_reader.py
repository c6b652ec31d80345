"""The gateway's side of a clip: asks a process of its own (``clips.py``) for its frames, one at a time."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

from framelane.models.errors import FramelaneError

from .children import Child, watch
from .memory import FrameCells, Memory
from .messages import Fate, Kind, Message, PeerGone, PeerStuck, pack

_MODULE = "framelane.preprocess.clips"
_TOLD = 2000


class ClipFailed(FramelaneError):
    """A clip that cannot be read, or not any further; the message says why."""

    code = "bad_clip"


class ClipLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one clip; ``memory_limit`` is the reading process's, in bytes, ``patience_s`` a frame's."""

    frame_bytes: int
    max_pixels: int
    max_frames: int = 100_000
    max_total_bytes: int = 4 << 30
    memory_limit: int = 1 << 30
    patience_s: float = 60.0
    log_level: str = "INFO"


class ClipFrame(NamedTuple):
    """One frame: its bytes and its name, or why it cannot be had."""

    data: bytes
    name: str = ""
    error: str = ""


class ClipReader:
    """One pass over a clip.

    Args:
        fd: the clip, an open file.
        limits: see ``ClipLimits``.
        pages, page: progress page of the process.
    """

    def __init__(self, fd: int, limits: ClipLimits, pages: Memory, page: int) -> None:
        self._fd = fd
        self._limits = limits
        self._pages = pages
        self._page = page
        self._child: Child | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._ended = asyncio.Event()

    async def open(self) -> dict[str, Any]:
        """Start the process; ``{"format": "zip" | "mjpeg" | "video", "frames": count or None}``.

        Raises:
            ClipFailed: the clip cannot be opened.
        """
        limits = self._limits
        self._memory = Memory.create("clip", FrameCells.size(1, limits.frame_bytes, 0))
        self._cells = FrameCells(self._memory, limits.frame_bytes, 0)
        config = {
            "clip": self._fd,
            "cell": self._memory.fd,
            "frame_bytes": limits.frame_bytes,
            "max_frames": limits.max_frames,
            "max_total_bytes": limits.max_total_bytes,
            "max_pixels": limits.max_pixels,
            "memory_limit": limits.memory_limit,
            "log_level": limits.log_level,
        }
        descriptors = (self._fd, self._memory.fd)
        self._child = Child(_MODULE, "clip", config, self._pages, self._page, descriptors, idle=True)
        watch(self._child, self._hear, self._died)
        return dict(await self._wait())

    async def frame(self, number: int) -> ClipFrame | None:
        """The frame of this number, or None behind the last one. Numbers must rise; one call at a time.

        Raises:
            ClipFailed: the clip cannot be read any further.
        """
        if self._child is None or self._ended.is_set():
            raise ClipFailed("the process that read the clip has ended")
        try:
            self._child.channel.send(pack(Kind.FRAME, request=number))
        except (PeerGone, PeerStuck):
            raise ClipFailed("the process that read the clip has ended") from None
        found: ClipFrame | None = await self._wait()
        return found

    async def close(self) -> None:
        """End the process; may be repeated."""
        if self._child is not None:
            self._child.kill()
            await self._ended.wait()

    async def _wait(self) -> Any:
        self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._limits.patience_s):
                return await self._answer
        except TimeoutError:
            raise ClipFailed(f"reading the clip took longer than {self._limits.patience_s:g} s") from None
        finally:
            self._answer = None

    def _hear(self, message: Message) -> None:
        if self._answer is None or self._answer.done() or self._child is None:
            return  # nobody waits any more
        if message.kind == Kind.READY:
            self._answer.set_result(self._child.report())
        elif message.kind == Kind.DONE:
            self._take(message, self._answer)

    def _take(self, message: Message, answer: asyncio.Future[Any]) -> None:
        data = bytes(self._cells.frame(0, message.length))
        if message.status == Fate.OK:
            name = bytes(self._cells.state(0, message.state)).decode(errors="replace")
            answer.set_result(ClipFrame(data, name))
        elif message.status == Fate.LEFT:
            answer.set_result(None)
        elif message.status == Fate.INVALID:
            answer.set_result(ClipFrame(b"", "", data.decode(errors="replace")))
        else:
            answer.set_exception(ClipFailed(data.decode(errors="replace")))

    def _died(self, status: int) -> None:
        assert self._child is not None
        reason = self._child.report().get("error") or f"the process that read the clip ended with status {status}"
        self._child.close()
        self._memory.close()
        self._ended.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ClipFailed(str(reason)[:_TOLD]))
