"""The built-in pipeline: up to ``max_faces`` faces of a frame, each with 468 landmarks.

    decode → letterbox 128² → BlazeFace → a square 1.5 × the face, eyes level → crop 192² → landmarks → back to pixels

The answer to a frame depends on that frame alone, unless ``tracking`` is on: then the places of the last frame's faces
travel in the lane's state, and while the landmarks found there are sure, the detector is skipped. That saves about
two fifths of the work; what it costs is that an answer then depends on the frames before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from framelane.models.blazeface import SIDE, find_faces
from framelane.models.images import Image, Size, Square, crop, fit, letterbox, uncrop
from framelane.models.pipeline import Frame, Lane, Model, Outputs, Pipeline, Result
from framelane.models.tracking import MAX_FACES, Place, Track, merged, recall, remember, same_face, steady

Floats = npt.NDArray[np.float32]

LANDMARK_SIDE = 192
MARGIN = 1.5  # the crop's side over that of the detector's box, as in MediaPipe's face mesh graph
_RIGHT_EYE, _LEFT_EYE = 33, 263  # the outer corners

# The detector's box from the bounds of the landmarks, so that a tracked crop looks like a detected one: its side and
# how far its centre lies below theirs, both over their longer side. Means over moving clips.
_BOX_SIDE, _BOX_DROP = 0.956, 0.042

DETECT_AT = 320
"""Pixels of the longer side that the detector needs of a reduced JPEG: its own picture has 128."""

CROP_AT = 72
"""Pixels that a face's crop keeps for each side in a reduced JPEG. The landmarks move by 0.6 % of the face's width in
the mean where it has 56 to 69, by 0.2 % where it has 112 to 165. At ``DETECT_AT`` the faces that the detector can see,
from an eighth of the frame's width on, just have it."""

_SURE = 7.0
"""Logit of presence from which a tracked face is believed without the detector. A face in place has 25 to 50, one half
beside the crop 5, a wall −10."""

Probability = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Face(NamedTuple):
    """A face found: where it was looked for, what the landmark model saw there, where to look in the next frame."""

    place: Place
    in_crop: Floats
    """[468, 3] in pixels of the crop."""
    ahead: Place
    tracked: bool = False
    """Found where it was in the frame before, without the detector."""

    def answer(self) -> Result:
        """The fields that a client gets, in pixels of the frame."""
        square, score = self.place
        side = square.size / MARGIN
        return {
            "score": score,
            "box": [square.x - side / 2, square.y - side / 2, side, side],
            "landmarks": uncrop(self.in_crop, square, LANDMARK_SIDE),
        }


class FaceMesh(Pipeline):
    """``faces: [{score, box: [x, y, width, height], landmarks}]``, in pixels of the image sent, as displayed.

    ``score`` is the detector's probability (for a tracked face: when it last looked), ``box`` the face without hair
    and neck, ``landmarks`` float32 [468, 3]: x, y and z, in the same pixels; z grows away from the camera. With
    tracking each face also says whether it was ``tracked``: found without the detector.
    """

    detector = Model("blazeface_short")
    landmarks = Model("face_landmark", parallel=4)

    class Options(Pipeline.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """The settings.

        Attributes:
            max_faces: the most faces per frame.
            min_score: probability below which the detector's finds are ignored.
            min_presence: probability below which landmarks are thrown away.
            tracking: look where the faces of the lane's last frame were before looking everywhere.
            detect_every: with tracking, frames after which the detector looks again anyway: for new faces, and whether
                the tracked ones are where it sees them.
            scaled_decoding: decode JPEGs at 1/2, 1/4 or 1/8 where the faces are large enough for it (``CROP_AT``).
        """

        max_faces: Annotated[int, msgspec.Meta(ge=1, le=MAX_FACES)] = 1
        min_score: Probability = 0.5
        min_presence: Probability = 0.5
        tracking: bool = False
        detect_every: Annotated[int, msgspec.Meta(ge=1, le=255)] = 30
        scaled_decoding: bool = True

    options: FaceMesh.Options

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._min_score = _logit(self.options.min_score)
        self._min_presence = _logit(self.options.min_presence)

    async def run(self, frame: Frame, lane: Lane) -> Result:
        """See the class. Raises InvalidFrame for bytes that are no usable image."""
        view = View(frame, self.options.scaled_decoding)
        if not self.options.tracking:
            view.open()
            faces = await self._look(view)
        else:
            track = recall(lane.state, view.size)
            view.open(track.places if track else ())
            faces, age = await self._follow(view, track)
            lane.state = remember(Track(view.size, age, [face.ahead for face in faces]))
            return {"faces": [{**face.answer(), "tracked": face.tracked} for face in faces]}
        return {"faces": [face.answer() for face in faces]}

    async def _follow(self, view: View, track: Track | None) -> tuple[list[Face], int]:
        """The faces of a frame after ``track``, and how many frames ago the detector was asked then.

        Where the faces move too far from one frame to the next, as they do at a frame a second, looking at their old
        places would be in vain and cost as much as it saves: then it is left until two frames show them in one place.
        """
        every = self.options.detect_every
        if track is None:
            return await self._look(view), 0
        if track.age >= every:
            seen = await self._look(view, track.places)
            return seen, 0 if _stayed(track.places, seen) else every
        faces = await self._landmarks(view, track.places, max(_SURE, self._min_presence))
        faces = [face._replace(tracked=True) for face in faces if steady(face.place.square, face.ahead.square)]
        if not faces:
            return await self._look(view), every
        lost_some = len(faces) < len(track.places)
        return faces, every if lost_some else track.age + 1

    async def _look(self, view: View, tracked: Sequence[Place] = ()) -> list[Face]:
        """The faces that the detector sees anywhere, and those that were tracked until now."""
        scores, boxes = await self.detector(letterbox(view.image, self.detector.input()))
        rows = find_faces(scores, boxes, self._min_score, self.options.max_faces)
        places = [Place(_square(row, view), score) for row, score in rows]
        if tracked:
            places = merged(tracked, places, self.options.max_faces)
        view.sharpen(places)
        return await self._landmarks(view, places, self._min_presence)

    async def _landmarks(self, view: View, places: Sequence[Place], min_presence: float) -> list[Face]:
        """The faces at these places that are sure enough; several places go to the slots at once."""
        outputs: list[Outputs] = []
        for start in range(0, len(places), self.landmarks.parallel):
            some = places[start : start + self.landmarks.parallel]
            outputs += await self.landmarks.map([view.crop(place.square, self.landmarks.input()) for place in some])
        tracking = self.options.tracking
        faces = [
            Face(place, points, _ahead(place, points) if tracking else place)
            for place, (points, presence) in zip(places, outputs, strict=True)
            if presence[0] >= min_presence
        ]
        return faces if len(faces) < 2 else _distinct(faces)


class View:
    """A frame's decoded picture, in full size or reduced by a whole factor; squares stay in the frame's pixels."""

    def __init__(self, frame: Frame, reduce: bool) -> None:
        self._frame = frame
        self._reduce = reduce
        width, height, _ = frame.size
        self.size: Size = (width, height)
        self.factor = 1

    def open(self, places: Sequence[Place] = ()) -> None:
        """Decode: as large as these places need, or else the detector."""
        self._decode(_share(places) if places else DETECT_AT / max(self.size))

    def sharpen(self, places: Sequence[Place]) -> None:
        """Decode again, larger, if these places turn out too small in the reduced picture."""
        if self.factor > 1 and places and _share(places) * self.factor > 1:
            self._decode(_share(places))

    def crop(self, square: Square, out: Image) -> Image:
        """Fill ``out`` with a square of the frame."""
        return crop(self.image, square if self.factor == 1 else square.scaled(1 / self.factor), out)

    def _decode(self, share: float) -> None:
        """Decode with at least this share of the frame's width and height."""
        width, height = self.size
        reduced = self._reduce and share <= 0.5
        at_least = (math.ceil(width * share), math.ceil(height * share)) if reduced else None
        self.image: Image = self._frame.decode(at_least)
        self.factor = round(max(width, height) / max(self.image.shape))


def _share(places: Sequence[Place]) -> float:
    """How large the picture must be, over the frame's size, for the smallest of these places."""
    return CROP_AT / min(place.square.size for place in places)


def _square(row: Floats, view: View) -> Square:
    """The square for the landmarks of a face that the detector found (see ``blazeface``), in pixels of the frame."""
    high, wide = view.image.shape[:2]
    box = fit((wide, high), (SIDE, SIDE))
    across, down = view.factor / box.scale_x, view.factor / box.scale_y
    x, y, width, height, right_x, right_y, left_x, left_y = row[:8].tolist()
    eyes_x, eyes_y = (left_x - right_x) * across, (left_y - right_y) * down
    size = MARGIN * max(width * across, height * down)
    return _leveled((x - box.left) * across, (y - box.top) * down, size, eyes_x, eyes_y)


def _ahead(place: Place, points: Floats) -> Place:
    """Where to look in the next frame: around the landmarks [468, 3] found at ``place``, in pixels of its crop."""
    square = place.square
    across_down = np.ascontiguousarray(points[:, :2].T)  # NumPy reduces along the last axis at eight times the speed
    (low_x, low_y), (high_x, high_y) = across_down.min(axis=1).tolist(), across_down.max(axis=1).tolist()
    (right_x, right_y, _), (left_x, left_y, _) = points[_RIGHT_EYE].tolist(), points[_LEFT_EYE].tolist()
    longer = max(high_x - low_x, high_y - low_y)
    x, y = square.to_picture((low_x + high_x) / 2, (low_y + high_y) / 2 + _BOX_DROP * longer, LANDMARK_SIDE)
    size = MARGIN * _BOX_SIDE * longer * square.size / LANDMARK_SIDE
    eyes_x, eyes_y = left_x - right_x, left_y - right_y
    along, aside = eyes_x * square.dx - eyes_y * square.dy, eyes_x * square.dy + eyes_y * square.dx
    return Place(_leveled(x, y, size, along, aside), place.score)


def _leveled(x: float, y: float, size: float, eyes_x: float, eyes_y: float) -> Square:
    """A square around (x, y) whose upper edge runs along the line from the person's right eye to the left one."""
    distance = math.hypot(eyes_x, eyes_y)
    if not distance:
        return Square(x, y, size, 0.0)
    return Square(x, y, size * eyes_x / distance, size * eyes_y / distance)


def _stayed(places: Sequence[Place], faces: Sequence[Face]) -> bool:
    """Whether any of the faces would have been found at one of these places."""
    return any(steady(place.square, face.ahead.square) for place in places for face in faces)


def _distinct(faces: Sequence[Face]) -> list[Face]:
    """Without faces that an earlier one already is: two tracks may end on one person."""
    kept: list[Face] = []
    for face in faces:
        if not any(same_face(face.ahead.square, other.ahead.square) for other in kept):
            kept.append(face)
    return kept


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
