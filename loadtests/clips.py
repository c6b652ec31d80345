"""Real JPEG frames of one moving face: what bench, swarm and tests send.

The face is the astronaut's of ``framelane.models`` (a NASA picture in the public domain), panned, zoomed and rolled in
front of a still background like a person before a camera. A clip is a loop without a seam, the same for the same
arguments, and kept in memory. Each frame comes with the pose that it was drawn with.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

Image = npt.NDArray[np.uint8]

FACE_CENTRE = (225.0, 129.0)  # of the picture, in its pixels
FACE_WIDTH = 92.0
FACE_ROLL = math.atan2(4.6, 60.1)  # of the line between the eyes, in radians, clockwise


class Pose(NamedTuple):
    """Where the face is in a frame: its centre and its width in pixels, its roll in radians, clockwise."""

    x: float
    y: float
    width: float
    roll: float


class Clip(NamedTuple):
    """JPEG frames, the pose of each, and the rate at which they are meant to be sent; ``frames[i % len(frames)]``."""

    frames: tuple[bytes, ...]
    poses: tuple[Pose, ...]
    fps: float


@functools.lru_cache(maxsize=32)
def moving_face(
    width: int = 640,
    height: int = 480,
    *,
    frames: int = 90,
    fps: float = 30.0,
    seed: int = 0,
    quality: int = 80,
    motion: float = 1.0,
) -> Clip:
    """A clip of a face that is 120 to 220 pixels wide at 640 × 480, and in proportion at other sizes.

    Args:
        width: of each frame in pixels.
        height: of each frame in pixels.
        frames: number of frames of the loop.
        fps: frames per second; how far the face gets from one frame to the next follows from it.
        seed: chooses the path and the background.
        quality: of the JPEGs; 80 with halved chroma is close to what a browser's canvas sends.
        motion: 0 for a face that holds still, 1 for a person who talks and moves, 2 for a restless one.
    """
    random = np.random.default_rng(seed)
    path = _path(random, width, height, frames / fps, motion)
    poses = tuple(path(index / frames) for index in range(frames))
    background = _background(random, width, height)
    person, mask = _person()
    drawn = (_draw(person, mask, background, pose) for pose in poses)
    return Clip(tuple(encode(image, quality) for image in drawn), poses, fps)


def encode(image: Image, quality: int = 80) -> bytes:
    """uint8 RGB pixels as a JPEG with halved chroma in both directions, as browsers make them."""
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, colorsubsampling="420")
    return data


def picture() -> Image:
    """The astronaut, uint8 RGB, 512 × 512."""
    data = importlib.resources.files("framelane.models").joinpath("samples/astronaut.jpg").read_bytes()
    image: Image = simplejpeg.decode_jpeg(data)
    return image


def _path(
    random: np.random.Generator, width: int, height: int, seconds: float, motion: float
) -> Callable[[float], Pose]:
    """The pose at each part (0 … 1) of the loop: sums of slow waves that all return to their start."""
    unit = min(width / 640, height / 480)
    rounds = max(round(seconds / 3), 1)

    def wave(amplitude: float) -> Callable[[float], float]:
        phases = random.uniform(0, 2 * math.pi, 3)
        waves = list(zip((rounds, 2 * rounds, 5 * rounds), (0.6, 0.28, 0.12), phases, strict=True))

        def value(part: float) -> float:
            return motion * amplitude * sum(share * math.sin(2 * math.pi * n * part + at) for n, share, at in waves)

        return value

    x, y, zoom, roll = wave(90), wave(40), wave(0.3), wave(0.2)

    def pose(part: float) -> Pose:
        # The widths lie evenly around the geometric mean of 120 and 220.
        face = 162.5 * unit * math.exp(max(-0.303, min(0.303, zoom(part))))
        return Pose(width / 2 + unit * x(part), height / 2 + unit * y(part), face, roll(part))

    return pose


def _background(random: np.random.Generator, width: int, height: int) -> npt.NDArray[np.float32]:
    """A room out of focus, with the grain that every camera has; float32 RGB, 0 … 255."""
    shapes = random.uniform(70, 190, (6, 8, 1)) + random.uniform(-15, 15, (6, 8, 3))
    room: Any = cv2.resize(shapes.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    grainy: npt.NDArray[np.float32] = np.clip(room + random.normal(0, 4, room.shape), 0, 255).astype(np.float32)
    return grainy


def _person() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The picture as float32, and how opaque each pixel is: an oval around head and shoulders with a soft edge."""
    image = picture().astype(np.float32)
    y, x = np.indices(image.shape[:2], np.float32)
    head = np.hypot((x - FACE_CENTRE[0]) / 150, (y - FACE_CENTRE[1]) / 140)
    body = np.hypot((x - FACE_CENTRE[0]) / 230, (y - 480) / 280)
    mask = np.clip(4 * (1 - np.minimum(head, body)), 0, 1)
    # The picture ends above the hair: without this its edge would show.
    return image, np.minimum(mask, np.clip(y / 20, 0, 1))[:, :, None]


def _draw(person: Any, mask: Any, background: npt.NDArray[np.float32], pose: Pose) -> Image:
    """One frame: the person, moved to the pose, in front of the background."""
    zoom, turn = pose.width / FACE_WIDTH, pose.roll - FACE_ROLL
    across, down = zoom * math.cos(turn), zoom * math.sin(turn)
    centre_x, centre_y = FACE_CENTRE
    move = np.array(
        (
            (across, -down, pose.x - across * centre_x + down * centre_y),
            (down, across, pose.y - down * centre_x - across * centre_y),
        )
    )
    size = background.shape[1::-1]
    opaque = cv2.warpAffine(mask, move, size)[:, :, None]
    frame = background + (cv2.warpAffine(person, move, size, flags=cv2.INTER_CUBIC) - background) * opaque
    return np.clip(frame, 0, 255).astype(np.uint8)
