"""Sessions that a server recorded (``framelane serve --record``), played again by as many users as wanted.

What is replayed is when frames were sent, how many bytes each had, and how long a client stayed. There were no
pictures in the record: a frame is a picture of the moving face that is a little smaller, filled up to the same size
with bytes behind its end, which decoders skip. A user plays one session after another, each drawn at random, so that
N users are N clients at all times, as like the recorded ones as chance allows.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from .album import Gallery
from .doors import Picture

LADDER = ("160x120", "320x240", "640x480", "1280x720")
"""Sizes of the pictures to choose from: 3 to 200 KB."""
LEAVES_AFTER_S = 0.4
"""From the end of a session until its connection is closed, for the last answers."""
_REST_S = (0.5, 3.0)


class Session(msgspec.Struct, frozen=True):
    """One recorded session: milliseconds from its beginning and bytes of each frame, and its length in seconds."""

    seconds: float
    at_ms: tuple[int, ...]
    bytes: tuple[int, ...]
    door: str = "ws"
    v: int = 1

    def __post_init__(self) -> None:
        if self.v != 1 or len(self.at_ms) != len(self.bytes) or list(self.at_ms) != sorted(self.at_ms):
            raise ValueError("not a session of version 1")


class ReplayError(Exception):
    """The file holds no sessions that could be replayed."""


def read_sessions(path: Path) -> list[Session]:
    """All sessions of a file.

    Raises:
        ReplayError: naming the line that cannot be read, or a file without sessions.
        OSError: no such file.
    """
    sessions = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            sessions.append(msgspec.json.decode(line, type=Session))
        except msgspec.MsgspecError as error:
            raise ReplayError(f"{path}, line {number}: {error}") from None
    if not sessions:
        raise ReplayError(f"{path} holds no session: clients are recorded when they leave")
    return sessions


class Programme:
    """What one user plays: sessions drawn at random, with a short rest between two.

    Args:
        sessions: to draw from.
        uniform: random numbers from 0 to 1.
        begin: when the first one starts.
    """

    def __init__(self, sessions: Sequence[Session], uniform: Callable[[], float], begin: float) -> None:
        self._sessions = sessions
        self._uniform = uniform
        self.start = begin
        self.session = self._draw()

    @property
    def stop(self) -> float:
        """When the current session ends."""
        return self.start + self.session.seconds

    def frames(self) -> list[tuple[float, int]]:
        """Moments and bytes of the current session's frames."""
        return [(self.start + at / 1000, size) for at, size in zip(self.session.at_ms, self.session.bytes, strict=True)]

    def next(self) -> None:
        """Go on to the next session."""
        shortest, longest = _REST_S
        self.start = self.stop + shortest + (longest - shortest) * self._uniform()
        self.session = self._draw()

    def _draw(self) -> Session:
        return self._sessions[int(self._uniform() * len(self._sessions))]


class SizedCamera:
    """A camera whose pictures have a given number of bytes.

    Attributes:
        wanted: bytes of the next picture.
    """

    def __init__(self, gallery: Gallery, number: int) -> None:
        self.wanted = 0
        self._number = number
        self._fps = gallery.fps
        clips = [clip for clips in gallery.clips.values() for clip in clips]
        self._clips = sorted(clips, key=_largest)
        self._largest = [_largest(clip) for clip in self._clips]

    def look(self, now: float) -> Picture:
        """The picture of this moment, from the largest clip that fits; the smallest one if none does."""
        clip = self._clips[max(0, bisect.bisect_right(self._largest, self.wanted) - 1)]
        picture = clip[(int(now * self._fps) + 7 * self._number) % len(clip)]
        missing = self.wanted - len(picture.data)
        return Picture.of(picture.data + bytes(missing)) if missing > 0 else picture


def _largest(clip: Sequence[Picture]) -> int:
    return max(len(picture.data) for picture in clip)
