"""What the users' cameras see: clips of a moving face, played in real time, in several sizes, qualities and motions.

A user at 0.75 fps gets pictures that are 1.33 s of motion apart, as a server would see them: the face has moved on as
far as a face does. Each user looks at a clip of its own choice, from a place of its own in the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from .doors import Picture

SIZES: Final = ("640x480",)
MIXED_SIZES: Final = ("640x480", "480x360", "320x240", "1280x720")
_VARIANTS: Final = ((60, 1.0), (70, 0.5), (75, 1.5), (80, 1.0), (80, 0.2), (85, 1.0))
"""Quality of the JPEG and how much the face moves; 34 KB in the mean at 640 × 480."""
_LOOP_S = 12.0
_LEAST_FPS, _MOST_FPS = 6.0, 30.0


class Album(msgspec.Struct, frozen=True):
    """Clips by size ("640x480"): of each several, of each its frames, meant for so many frames per second."""

    fps: float
    clips: dict[str, list[list[bytes]]]

    @classmethod
    def render(cls, sizes: Sequence[str], fps: float) -> Album:
        """Draw the clips, about half a second each; ``fps`` is the fastest user's."""
        from framelane.loadtests.clips import moving_face

        rate = min(max(_LEAST_FPS, fps), _MOST_FPS)
        frames = round(rate * (_LOOP_S if rate == _LEAST_FPS else _LOOP_S / 4))
        clips: dict[str, list[list[bytes]]] = {}
        for size in dict.fromkeys(sizes):
            width, height = size_of(size)
            drawn = [
                moving_face(width, height, frames=frames, fps=rate, seed=seed, quality=quality, motion=motion)
                for seed, (quality, motion) in enumerate(_VARIANTS)
            ]
            clips[size] = [list(clip.frames) for clip in drawn]
        return cls(rate, clips)

    @classmethod
    def load(cls, path: Path) -> Album:
        """Read a file that ``save`` wrote."""
        return msgspec.msgpack.decode(path.read_bytes(), type=cls)

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(msgspec.msgpack.encode(self))


def size_of(text: str) -> tuple[int, int]:
    """Width and height. Raises ValueError."""
    width, x, height = text.partition("x")
    if not x or not width.isdigit() or not height.isdigit() or not min(int(width), int(height)) >= 16:
        raise ValueError(f"{text!r}: a size is written as 640x480")
    return int(width), int(height)


class Gallery:
    """The pictures of an album as the doors want them; all users of a process share them."""

    def __init__(self, album: Album) -> None:
        self.fps = album.fps
        self.clips = {
            size: [[Picture.of(data) for data in frames] for frames in clips] for size, clips in album.clips.items()
        }

    def camera(self, number: int, size: str = "") -> ClipCamera:
        """The camera of a user; sizes go round unless one is given."""
        sizes = list(self.clips)
        chosen = size if size in self.clips else sizes[number % len(sizes)]
        return ClipCamera(self, chosen, number)


class ClipCamera:
    """One user's camera.

    Attributes:
        size: of what it sees; may be changed to another one of the gallery.
    """

    def __init__(self, gallery: Gallery, size: str, number: int) -> None:
        self._gallery = gallery
        self._number = number
        self.size = size

    def look(self, now: float) -> Picture:
        """The picture of this moment."""
        clips = self._gallery.clips[self.size]
        frames = clips[self._number % len(clips)]
        return frames[(int(now * self._gallery.fps) + 7 * self._number) % len(frames)]
