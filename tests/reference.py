"""The face mesh written straight down with NumPy and ONNX Runtime: what the product's answers are held to.

No code of Framelane is used, only the two ONNX files. It is slow, and looks for one face. Run it by hand on a picture:

    python tests/reference.py models/samples/astronaut.jpg
"""

from __future__ import annotations

import functools
import math
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "models" / "weights"
PICTURE = ROOT / "models" / "samples" / "astronaut.jpg"


class Reference(NamedTuple):
    """The surest face: probability, box (x, y, width, height), landmarks [468, 3], all in pixels of the picture."""

    score: float
    box: tuple[float, float, float, float]
    landmarks: np.ndarray


def load(path: Path = PICTURE) -> np.ndarray:
    """A picture as uint8 RGB."""
    return decode(path.read_bytes())


def decode(data: bytes) -> np.ndarray:
    """An encoded picture as uint8 RGB."""
    image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return image[:, :, ::-1]


@functools.cache
def session(name: str) -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(WEIGHTS / name / "model.onnx", options, providers=["CPUExecutionProvider"])


def sample(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Bilinear values at continuous coordinates (a pixel's centre is at .5), black outside; uint8."""
    high, wide = image.shape[:2]
    x, y = x - 0.5, y - 0.5
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    total = np.zeros((*x.shape, 3))
    for row, down in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, across in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < high) & (column >= 0) & (column < wide)
            value = image[row.clip(0, high - 1), column.clip(0, wide - 1)]
            total += (down * across * inside)[:, :, None] * value
    return np.rint(total).astype(np.uint8)


def anchors() -> np.ndarray:
    """[896, 2]: cells of 8 pixels with two anchors each, then of 16 pixels with six."""
    rows = []
    for cells, per_cell in ((16, 2), (8, 6)):
        for y in range(cells):
            for x in range(cells):
                rows += [((x + 0.5) * 128 / cells, (y + 0.5) * 128 / cells)] * per_cell
    return np.array(rows)


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two rows: centre x, y, width, height."""
    across = min(one[0] + one[2] / 2, other[0] + other[2] / 2) - max(one[0] - one[2] / 2, other[0] - other[2] / 2)
    down = min(one[1] + one[3] / 2, other[1] + other[3] / 2) - max(one[1] - one[3] / 2, other[1] - other[3] / 2)
    shared = max(across, 0) * max(down, 0)
    return shared / (one[2] * one[3] + other[2] * other[3] - shared)


def detect(image: np.ndarray) -> tuple[float, np.ndarray] | None:
    """The surest face: its probability and 16 numbers in pixels of the picture (see models/blazeface)."""
    high, wide = image.shape[:2]
    scale = 128 / max(wide, high)
    width, height = round(wide * scale), round(high * scale)
    left, top = (128 - width) // 2, (128 - height) // 2
    y, x = np.mgrid[0:height, 0:width] + 0.5
    picture = np.zeros((128, 128, 3), np.uint8)
    picture[top : top + height, left : left + width] = sample(image, x * wide / width, y * high / height)
    scores, boxes = session("blazeface_short").run(None, {"image": picture[None]})
    probability = 1 / (1 + np.exp(-scores[0].astype(float)))
    rows = boxes[0].astype(float)
    rows[:, 0:2] += anchors()
    for point in range(4, 16, 2):
        rows[:, point : point + 2] += anchors()
    best = int(probability.argmax())
    if probability[best] < 0.5:
        return None
    votes = [i for i in np.flatnonzero(probability >= 0.5) if overlap(rows[i], rows[best]) >= 0.3]
    face = np.average(rows[votes], axis=0, weights=probability[votes])
    face[[0, *range(4, 16, 2)]] -= left
    face[[1, *range(5, 16, 2)]] -= top
    return float(probability[best]), face * np.tile((wide / width, high / height), 8)


def face_mesh(image: np.ndarray) -> Reference | None:
    """The surest face of a uint8 RGB picture, or None."""
    found = detect(image)
    if found is None:
        return None
    score, face = found
    x, y, width, height = face[:4]
    size = 1.5 * max(width, height)
    angle = math.atan2(face[7] - face[5], face[6] - face[4])
    turn = np.array(((math.cos(angle), -math.sin(angle)), (math.sin(angle), math.cos(angle))))
    down, across = (np.mgrid[0:192, 0:192] + 0.5) / 192 - 0.5
    at = np.einsum("ij,jyx->iyx", turn * size, np.stack((across, down))) + np.array((x, y))[:, None, None]
    points, presence = session("face_landmark").run(None, {"image": sample(image, at[0], at[1])[None]})
    if presence[0, 0] < 0:
        return None
    points = points[0].astype(float)
    landmarks = np.empty((468, 3))
    landmarks[:, :2] = (points[:, :2] / 192 - 0.5) * size @ turn.T + (x, y)
    landmarks[:, 2] = points[:, 2] * size / 192
    side = max(width, height)
    return Reference(score, (x - side / 2, y - side / 2, side, side), landmarks)


if __name__ == "__main__":
    reference = face_mesh(load(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE))
    assert reference, "no face"
    print(f"score {reference.score:.3f}, box", *(f"{value:.1f}" for value in reference.box))
    for name, index in {"nose tip": 1, "right eye": 33, "left eye": 263}.items():
        print(f"{name:10}", *(f"{value:.1f}" for value in reference.landmarks[index]))
