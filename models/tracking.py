"""What a lane remembers of its last frame: where its faces were, as bytes for the lane's state.

The bytes are our own, from an earlier result of the same lane, yet read with care: a state that does not fit the
frame (another size, another version, nonsense) is no state, and the detector finds the faces anew.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from framelane.models.images import Size, Square

MAX_FACES = 16
_HEAD = struct.Struct("<2sBBHH")  # mark and version, age, number of places, width, height
_PLACE = struct.Struct("<5f")
_MARK = b"F1"
_SAME_FACE = 0.4  # intersection over union from which two squares hold one face
_MIN_SIZE = 8.0  # pixels; no smaller face is tracked

# How far the face may lie from the middle of the square it was looked for in. Measured: landmarks err by up to 2 % of
# the face's width at these bounds, by 5 % at a third of the square's size, and soon lie beside the face.
_MAX_SHIFT = 0.2  # of the square's size
_MAX_GROWTH = 1.12
_MAX_TURN = math.tan(math.radians(15))


class Place(NamedTuple):
    """A square with a face in it, in pixels of the frame, and the probability that the detector gave it."""

    square: Square
    score: float


class Track(NamedTuple):
    """Size of the frame in pixels, frames since the detector last looked, and the place of each face."""

    size: Size
    age: int
    places: Sequence[Place]


def remember(track: Track) -> bytes:
    """The bytes for ``lane.state``, 8 + 20 per face; none without faces."""
    places = track.places[:MAX_FACES]
    if not places:
        return b""
    head = _HEAD.pack(_MARK, min(track.age, 255), len(places), *track.size)
    return head + b"".join([_PLACE.pack(*square, score) for square, score in places])


def recall(state: bytes, size: Size) -> Track | None:
    """The track for a frame of this size, or None where the state holds none that can be true."""
    if len(state) < _HEAD.size:
        return None
    mark, age, count, width, height = _HEAD.unpack_from(state)
    expected = _HEAD.size + _PLACE.size * count
    if mark != _MARK or (width, height) != size or not 0 < count <= MAX_FACES or len(state) != expected:
        return None
    places = [Place(Square(x, y, dx, dy), score) for x, y, dx, dy, score in _PLACE.iter_unpack(state[_HEAD.size :])]
    return Track(size, age, places) if all(_plausible(place, size) for place in places) else None


def _plausible(place: Place, size: Size) -> bool:
    """A centre in the picture and a face of a size that it can show; also false for infinite and NaN."""
    square, score = place
    in_picture = 0 <= square.x <= size[0] and 0 <= square.y <= size[1]
    return in_picture and _MIN_SIZE <= square.size <= 2 * math.hypot(*size) and 0 <= score <= 1


def steady(before: Square, after: Square) -> bool:
    """Whether landmarks that were looked for in ``before`` can be trusted, now that they say ``after``."""
    size = before.size
    growth = after.size / size
    along = before.dx * after.dx + before.dy * after.dy
    aside = before.dx * after.dy - before.dy * after.dx
    return (
        math.hypot(after.x - before.x, after.y - before.y) <= _MAX_SHIFT * size
        and 1 / _MAX_GROWTH <= growth <= _MAX_GROWTH
        and abs(aside) <= _MAX_TURN * along
    )


def same_face(one: Square, other: Square) -> bool:
    """Whether two squares, however turned, hold the same face; judged by upright squares of their sizes."""
    reach = (one.size + other.size) / 2
    smaller = min(one.size, other.size)
    across = min(reach - abs(one.x - other.x), smaller)
    down = min(reach - abs(one.y - other.y), smaller)
    if across <= 0 or down <= 0:
        return False
    shared = across * down
    return shared >= _SAME_FACE * (one.size**2 + other.size**2 - shared)


def merged(tracked: Sequence[Place], detected: Sequence[Place], limit: int) -> list[Place]:
    """Tracked places that the detector confirms, then its new ones, then tracked ones that it does not see.

    A confirmed face keeps its tracked square, so that looking again does not make the landmarks jump, unless it has
    moved on; it gets its new score. An unconfirmed one (a profile, or what never was a face) gives way to faces that
    are seen.
    """
    confirmed: list[Place] = []
    unseen: list[Place] = []
    for place in tracked:
        seen = next((other for other in detected if same_face(place.square, other.square)), None)
        if seen:
            confirmed.append(Place(place.square, seen.score) if steady(place.square, seen.square) else seen)
        else:
            unseen.append(place)
    new = [place for place in detected if not any(same_face(place.square, other.square) for other in confirmed)]
    return [*confirmed, *new, *unseen][:limit]
