"""A process that takes a clip apart: a ZIP of pictures, an MJPEG stream, or a video. One for each pass over one.

``python -m framelane.preprocess.clips`` is started by ``clip_reader.py``, at the lowest priority. It gets the clip as
an open file without a name and is asked for one frame at a time, by its number and in rising order; it writes each into
a shared cell, as the bytes that a client would have sent. So nothing of a clip is unpacked before it is wanted, and no
bomb in it can fill anything but this process, which has a memory limit.

    FRAME  gateway → here   request = number of the frame
    DONE   here → gateway   request, status OK: length = bytes of the frame, state = bytes of its name;
                            INVALID: length = bytes of the reason; LEFT: the clip has no such frame

Videos are decoded, and each frame is encoded again as a JPEG of high quality (95, without chroma subsampling).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import resource
import select
import sys
import zipfile
import zlib
from array import array
from typing import IO, Any, Protocol

import msgspec

from framelane.models.errors import FramelaneError, InvalidFrame

from .children import born
from .logs import set_up_logs
from .memory import FrameCells, Memory
from .messages import Channel, Fate, Kind, PeerGone, pack

_NAME_BYTES = 255
_REASON_BYTES = 1000
_JPEG = b"\xff\xd8\xff"
_LOOK_FOR_JPEG = 64 * 1024
# In entropy-coded data a marker is 0xFF with anything but 0 (stuffing), a restart marker, or another 0xFF behind it.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_QUALITIES = (95, 85, 70)
_VIDEO_OPTIONS = "protocol_whitelist;file|format_whitelist;mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi|threads;1"


class BadClip(FramelaneError):
    """A clip that cannot be taken apart; the message says why."""

    code = "bad_clip"


class ClipConfig(msgspec.Struct, frozen=True):
    """What ``clip_reader.py`` tells the process at its birth. ``clip`` and ``cell`` are descriptors."""

    clip: int
    cell: int
    frame_bytes: int
    max_frames: int
    max_total_bytes: int
    max_pixels: int
    memory_limit: int
    log_level: str = "INFO"


class Frames(Protocol):
    """A clip that has been opened."""

    format: str

    @property
    def total(self) -> int | None:
        """How many frames it has, as far as that is known."""

    def frame(self, number: int) -> tuple[bytes, str] | None:
        """The bytes and the name of a frame, or None behind the last one; numbers must rise.

        Raises:
            InvalidFrame: this frame cannot be had; the next one perhaps can.
        """


class ZipFrames:
    """The pictures of a ZIP, in the order of its directory. Names are told, and never used as paths.

    Raises:
        BadClip: it is damaged, or holds more pictures or more bytes than one job may have.
    """

    format = "zip"

    def __init__(self, file: IO[bytes], config: ClipConfig) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise BadClip(f"the ZIP cannot be read: {error}") from None
        self._entries = [entry for entry in self._zip.infolist() if not _is_clutter(entry)]
        self._limit = config.frame_bytes
        if self.total > config.max_frames:
            raise BadClip(f"the ZIP has {self.total} files; the limit is {config.max_frames}")
        unpacked = sum(entry.file_size for entry in self._entries)
        if unpacked > config.max_total_bytes:
            raise BadClip(f"the ZIP holds {unpacked} bytes; the limit is {config.max_total_bytes}")

    @property
    def total(self) -> int:
        """See ``Frames``."""
        return len(self._entries)

    def frame(self, number: int) -> tuple[bytes, str] | None:
        """See ``Frames``."""
        if number >= len(self._entries):
            return None
        entry = self._entries[number]
        if entry.file_size > self._limit:
            raise InvalidFrame(f"the picture has {entry.file_size} bytes; the limit is {self._limit}")
        try:
            with self._zip.open(entry) as opened:
                data = opened.read(self._limit + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, KeyError) as error:
            raise InvalidFrame(f"the picture cannot be unpacked: {error}") from None
        if len(data) > self._limit:
            raise InvalidFrame(f"the picture has more than {self._limit} bytes")
        return data, entry.filename


class JpegFrames:
    """JPEGs one after another, with or without anything in between (multipart headers, for example).

    Raises:
        BadClip: there are more than one job may have.
    """

    format = "mjpeg"

    def __init__(self, file: IO[bytes], config: ClipConfig) -> None:
        self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._limit = config.frame_bytes
        self._starts, self._ends = array("Q"), array("Q")
        at = 0
        while (start := self._data.find(_JPEG, at)) >= 0:
            if len(self._starts) == config.max_frames:
                raise BadClip(f"the clip has more than {config.max_frames} pictures")
            at = end_of_jpeg(self._data, start)
            self._starts.append(start)
            self._ends.append(at)

    @property
    def total(self) -> int:
        """See ``Frames``."""
        return len(self._starts)

    def frame(self, number: int) -> tuple[bytes, str] | None:
        """See ``Frames``."""
        if number >= len(self._starts):
            return None
        start, end = self._starts[number], self._ends[number]
        if end - start > self._limit:
            raise InvalidFrame(f"the picture has {end - start} bytes; the limit is {self._limit}")
        return self._data[start:end], ""


class VideoFrames:
    """An MP4, WebM, Matroska or AVI video.

    Raises:
        BadClip: it cannot be opened, or its pictures are too large.
    """

    format = "video"

    def __init__(self, config: ClipConfig) -> None:
        os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = _VIDEO_OPTIONS
        import cv2
        import simplejpeg

        cv2.setNumThreads(1)
        self._encode = simplejpeg.encode_jpeg
        self._video = cv2.VideoCapture(f"/proc/self/fd/{config.clip}", cv2.CAP_FFMPEG)
        if not self._video.isOpened():
            raise BadClip("the video cannot be opened")
        width, height, count = (
            int(self._video.get(which))
            for which in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_COUNT)
        )
        if width * height > config.max_pixels:
            raise BadClip(f"the video has {width} × {height} pixels; the limit is {config.max_pixels} pixels")
        if count > config.max_frames:
            raise BadClip(f"the video has {count} frames; the limit is {config.max_frames}")
        self._limit = config.frame_bytes
        self._max_frames = config.max_frames
        self._next = 0
        self._count = count

    @property
    def total(self) -> int | None:
        """See ``Frames``; as the video's header says."""
        return self._count if self._count > 0 else None

    def frame(self, number: int) -> tuple[bytes, str] | None:
        """See ``Frames``."""
        while self._next < number:
            if not self._video.grab():
                return None
            self._next += 1
        good, image = self._video.read()
        self._next += 1
        if not good:
            return None
        if number >= self._max_frames:
            raise BadClip(f"the video has more than {self._max_frames} frames")
        for quality in _QUALITIES:
            data: bytes = self._encode(image, quality=quality, colorspace="BGR", colorsubsampling="444")
            if len(data) <= self._limit:
                return data, ""
        raise InvalidFrame(f"the frame needs more than {self._limit} bytes as a JPEG")


def end_of_jpeg(data: Any, start: int) -> int:
    """Where the JPEG that begins at ``start`` ends; where the data end, if it is cut off.

    Headers are skipped by their lengths, since they may hold another JPEG, a thumbnail.
    """
    size, at = len(data), start + 2
    while at + 4 <= size:
        if data[at] != 0xFF:
            return at  # damaged: the decoder will say so
        marker = data[at + 1]
        if marker == 0xD9:
            return at + 2
        if marker == 0xFF:
            at += 1
            continue
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA:
            found = _MARKER.search(data, at)
            if found is None:
                return size
            at = found.start()
    return at + 2 if data[at : at + 2] == b"\xff\xd9" else size


def open_clip(file: IO[bytes], config: ClipConfig) -> Frames:
    """Look at the first bytes and open the clip.

    Raises:
        BadClip: it is none of the three kinds, or cannot be read.
    """
    head = os.pread(file.fileno(), _LOOK_FOR_JPEG, 0)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return ZipFrames(file, config)
    if head[4:8] == b"ftyp" or head[:4] == b"\x1aE\xdf\xa3" or (head[:4] == b"RIFF" and head[8:12] == b"AVI "):
        return VideoFrames(config)
    if _JPEG in head:
        return JpegFrames(file, config)
    raise BadClip("the clip is neither a ZIP of pictures, nor JPEGs in a row (MJPEG), nor an MP4, WebM or AVI video")


def _is_clutter(entry: zipfile.ZipInfo) -> bool:
    return entry.is_dir() or entry.filename.startswith("__MACOSX/")


def serve(channel: Channel, cells: FrameCells, frames: Frames) -> None:
    """Answer until the gateway closes the channel.

    Raises:
        PeerGone: it did.
    """
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    while True:
        waiting.poll()
        for message in channel.receive():
            if message.kind == Kind.FRAME:
                channel.send(answer(cells, frames, message.request))


def answer(cells: FrameCells, frames: Frames, number: int) -> bytes:
    """Put the frame into the cell; the DONE that says so."""
    try:
        found = frames.frame(number)
    except FramelaneError as problem:
        reason = problem.message.encode(errors="replace")[:_REASON_BYTES]
        fate = Fate.INVALID if isinstance(problem, InvalidFrame) else Fate.FAILED
    except MemoryError:
        reason, fate = b"the frame needs too much memory", Fate.FAILED
    else:
        if found is None:
            return pack(Kind.DONE, request=number, status=Fate.LEFT)
        data, name = found[0], found[1].encode(errors="replace")[:_NAME_BYTES]
        cells.frame(0, len(data))[:] = data
        cells.state(0, len(name))[:] = name
        return pack(Kind.DONE, request=number, status=Fate.OK, length=len(data), state=len(name))
    cells.frame(0, len(reason))[:] = reason
    return pack(Kind.DONE, request=number, status=fate, length=len(reason))


def main(argv: list[str] | None = None) -> None:
    """Entry point of the process."""
    birth = born(sys.argv if argv is None else argv)
    with birth.failures():
        config = msgspec.convert(birth.config, ClipConfig)
        set_up_logs(config.log_level)
        resource.setrlimit(resource.RLIMIT_DATA, (config.memory_limit, config.memory_limit))
        cells = FrameCells(Memory.attach(config.cell), config.frame_bytes, 0)
        file = os.fdopen(config.clip, "rb")
        try:
            frames = open_clip(file, config)
        except MemoryError:
            raise BadClip("the clip needs too much memory to be opened") from None
        birth.ready({"format": frames.format, "frames": frames.total})
    with contextlib.suppress(PeerGone):  # nobody wants more
        serve(birth.channel, cells, frames)


if __name__ == "__main__":
    main()
