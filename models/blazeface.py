"""Faces from the outputs of BlazeFace, short range: anchors, threshold and weighted non-maximum suppression.

A face is a row of 16 numbers in pixels of the model's 128 × 128 picture: centre x and y, width, height, and six points
(x, y): right eye, left eye, nose tip, mouth, right ear, left ear, "right" being the person's own. Anchors and
thresholds are those of MediaPipe's ``face_detection_short_range`` graph.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SIDE = 128
_GRIDS = ((16, 2), (8, 6))  # cells per side, anchors per cell
_SAME_FACE = 0.3  # intersection over union from which two boxes are one face


def _anchors() -> Floats:
    """[896, 16]: the cell's centre in every x and y of a row, zero for width and height."""
    centres = []
    for cells, per_cell in _GRIDS:
        y, x = (np.indices((cells, cells)).reshape(2, -1) + 0.5) * (SIDE / cells)
        centres.append(np.repeat(np.column_stack((x, y)), per_cell, axis=0))
    rows = np.tile(np.concatenate(centres), 8).astype(np.float32)
    rows[:, 2:4] = 0
    return rows


_ANCHORS = _anchors()


def find_faces(scores: Floats, boxes: Floats, min_logit: float, limit: int) -> list[tuple[Floats, float]]:
    """At most ``limit`` faces, the surest first: a row of 16 (see above), and the probability of its best anchor.

    Args:
        scores: [896] logits.
        boxes: [896, 16] as the model gives them, relative to the anchors.
        min_logit: anchors below it are not looked at; comparing logits saves a sigmoid over all of them.
    """
    candidates = np.flatnonzero(scores >= min_logit)
    if not candidates.size:
        return []
    rows = boxes[candidates] + _ANCHORS[candidates]
    weights = 1 / (1 + np.exp(-scores[candidates]))
    faces: list[tuple[Floats, float]] = []
    while True:
        best = weights.argmax()
        same = _overlap(rows, rows[best]) >= _SAME_FACE
        voting = weights[same]
        # All anchors of a face vote for its place: steadier from frame to frame than the best one alone.
        faces.append((voting @ rows[same] / voting.sum(), float(weights[best])))
        if len(faces) == limit or same.all():
            return faces
        weights, rows = weights[~same], rows[~same]


def _overlap(rows: Floats, best: Floats) -> Floats:
    """Intersection over union of each row's box with the best one's, no box being smaller than a pixel."""
    half = np.maximum(rows[:, 2:4], 1) / 2
    best_half = np.maximum(best[2:4], 1) / 2
    low = np.maximum(rows[:, :2] - half, best[:2] - best_half)
    high = np.minimum(rows[:, :2] + half, best[:2] + best_half)
    sides = np.maximum(high - low, 0)
    shared = sides[:, 0] * sides[:, 1]
    overlap: Floats = shared / (4 * (half[:, 0] * half[:, 1] + best_half[0] * best_half[1]) - shared)
    return overlap
