"""Pictures into a model's input and points back out: letterbox, rotated square crop, and their inverses.

Pictures are uint8, height × width × 3; sizes are (width, height). Coordinates are continuous, as on a browser's
canvas: pixel 0 reaches from 0.0 to 1.0, its centre is 0.5. ``letterbox`` and ``crop`` write into the array they are
given, usually the model's own input cell.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Size = tuple[int, int]


class Letterbox(NamedTuple):
    """Where a picture lies in a target of another shape: ``target = picture × scale + offset``, each axis for itself.

    The scales of the two axes differ only by the rounding of ``width`` and ``height`` to whole pixels.
    """

    left: int
    top: int
    width: int
    height: int
    scale_x: float
    scale_y: float

    def to_picture(self, x: float, y: float) -> tuple[float, float]:
        """A point of the target in pixels of the picture."""
        return (x - self.left) / self.scale_x, (y - self.top) / self.scale_y


@functools.lru_cache(maxsize=256)
def fit(size: Size, target: Size) -> Letterbox:
    """The largest place for a picture of ``size`` in the middle of ``target``, both (width, height) in pixels."""
    scale = min(target[0] / size[0], target[1] / size[1])
    width = min(max(round(size[0] * scale), 1), target[0])
    height = min(max(round(size[1] * scale), 1), target[1])
    left, top = (target[0] - width) // 2, (target[1] - height) // 2
    return Letterbox(left, top, width, height, width / size[0], height / size[1])


def letterbox(image: Image, out: Image, fill: int = 0) -> Image:
    """Scale ``image`` to fit into ``out`` without distortion, the rest filled with ``fill``; returns ``out``.

    ``fit(size of image, size of out)`` gives the way back. Interpolation is bilinear also where it shrinks: averaging
    areas costs ten times as much, and the landmarks of a moving face jitter by the same (0.5 % of its width).
    """
    high, wide = out.shape[:2]
    box = fit((image.shape[1], image.shape[0]), (wide, high))
    right, bottom = box.left + box.width, box.top + box.height
    if box.width < wide:
        out[:, : box.left] = fill
        out[:, right:] = fill
    if box.height < high:
        out[: box.top] = fill
        out[bottom:] = fill
    inside = out[box.top : bottom, box.left : right]
    cv2.resize(image, (box.width, box.height), dst=inside, interpolation=cv2.INTER_LINEAR)
    return out


class Square(NamedTuple):
    """A square in a picture, turned by any angle: its centre, and the vector along its upper edge, in pixels.

    ``dx = size, dy = 0`` is upright; with ``dy > 0`` it is turned clockwise, as seen on a screen.
    """

    x: float
    y: float
    dx: float
    dy: float

    @property
    def size(self) -> float:
        """The length of a side in pixels."""
        return math.hypot(self.dx, self.dy)

    def scaled(self, factor: float) -> Square:
        """The same square in a picture that is ``factor`` times as large."""
        return Square(self.x * factor, self.y * factor, self.dx * factor, self.dy * factor)

    def to_picture(self, x: float, y: float, side: int) -> tuple[float, float]:
        """A point of the crop of ``side`` × ``side`` pixels in pixels of the picture."""
        across, down = x / side - 0.5, y / side - 0.5
        return self.x + across * self.dx - down * self.dy, self.y + across * self.dy + down * self.dx


def crop(image: Image, square: Square, out: Image) -> Image:
    """Fill the square array ``out`` with that part of ``image``, bilinear, black outside; returns ``out``."""
    side = out.shape[0]
    high, wide = image.shape[:2]
    reach = (abs(square.dx) + abs(square.dy)) / 2 + 1
    left, right = max(int(square.x - reach), 0), min(int(square.x + reach) + 1, wide)
    top, bottom = max(int(square.y - reach), 0), min(int(square.y + reach) + 1, high)
    if left >= right or top >= bottom:
        out[:] = 0
        return out
    # OpenCV turns pictures of four channels at twice the speed of those of three: there and back is still faster.
    part = cv2.cvtColor(image[top:bottom, left:right], cv2.COLOR_RGB2RGBA)
    x, y = square.to_picture(0.5, 0.5, side)
    step_x, step_y = square.dx / side, square.dy / side
    # OpenCV counts from the centre of the first pixel, which is (0.5, 0.5) here.
    to_part = np.array(((step_x, -step_y, x - 0.5 - left), (step_y, step_x, y - 0.5 - top)))
    turned = cv2.warpAffine(part, to_part, (side, side), flags=cv2.WARP_INVERSE_MAP | cv2.INTER_LINEAR)
    cv2.cvtColor(turned, cv2.COLOR_RGBA2RGB, dst=out)
    return out


def uncrop(points: npt.NDArray[np.float32], square: Square, side: int) -> npt.NDArray[np.float32]:
    """Points (x, y, z) of a crop of ``side`` × ``side`` pixels, float32 [n, 3], in pixels of the picture.

    z is scaled like x and y and otherwise left alone. Returns a new array.
    """
    step_x, step_y, step = square.dx / side, square.dy / side, square.size / side
    turn = np.array(((step_x, step_y, 0), (-step_y, step_x, 0), (0, 0, step)), np.float32)
    result: Any = points @ turn
    result += np.array((*square.to_picture(0, 0, side), 0), np.float32)
    return result  # type: ignore[no-any-return]
