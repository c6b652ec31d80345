"""Anchors, threshold and suppression, on outputs made by hand."""

import math

import numpy as np
import pytest

from framelane.models.blazeface import find_faces


def nobody() -> tuple[np.ndarray, np.ndarray]:
    return np.full(896, -8, np.float32), np.zeros((896, 16), np.float32)


def put(scores: np.ndarray, boxes: np.ndarray, anchor: int, logit: float, size: float = 30, dx: float = 0) -> None:
    scores[anchor] = logit
    boxes[anchor] = [dx, 0, size, size, *np.linspace(-6, 5, 12)]


def test_nobody_is_found_below_the_threshold() -> None:
    scores, boxes = nobody()
    assert find_faces(scores, boxes, 0.0, 5) == []
    put(scores, boxes, 10, 0.99)
    assert find_faces(scores, boxes, 1.0, 5) == []
    assert len(find_faces(scores, boxes, 0.99, 5)) == 1


@pytest.mark.parametrize(
    ("anchor", "centre"),
    [
        (0, (4, 4)),
        (1, (4, 4)),
        (2, (12, 4)),
        (32, (4, 12)),
        (511, (124, 124)),
        (512, (8, 8)),
        (518, (24, 8)),
        (895, (120, 120)),
    ],
)
def test_anchors_lie_row_by_row_first_the_fine_grid(anchor: int, centre: tuple[float, float]) -> None:
    scores, boxes = nobody()
    put(scores, boxes, anchor, 2.0)
    ((row, probability),) = find_faces(scores, boxes, 0.0, 1)
    assert tuple(row[:2]) == pytest.approx(centre)
    assert row[2:4] == pytest.approx([30, 30])
    assert row[4:] == pytest.approx(np.linspace(-6, 5, 12) + np.tile(centre, 6))
    assert probability == pytest.approx(1 / (1 + math.exp(-2)))


def test_anchors_of_one_face_vote_by_their_probability() -> None:
    scores, boxes = nobody()
    put(scores, boxes, 100, 3.0)
    put(scores, boxes, 101, 0.0, dx=4)
    ((row, probability),) = find_faces(scores, boxes, 0.0, 5)
    sure, unsure = 1 / (1 + math.exp(-3)), 0.5
    alone = (100 // 2 % 16) * 8 + 4
    assert row[0] == pytest.approx(alone + 4 * unsure / (sure + unsure))
    assert probability == pytest.approx(sure)


def test_two_faces_come_the_surest_first_up_to_the_limit() -> None:
    scores, boxes = nobody()
    put(scores, boxes, 0, 1.0)
    put(scores, boxes, 510, 2.0)
    put(scores, boxes, 511, 1.5)
    found = find_faces(scores, boxes, 0.0, 5)
    assert [row[0] for row, _ in found] == pytest.approx([124, 4])
    assert len(find_faces(scores, boxes, 0.0, 1)) == 1


def test_box_without_size_ends_the_search() -> None:
    scores, boxes = nobody()
    for anchor in (0, 1, 500):
        put(scores, boxes, anchor, 1.0, size=-5)
    assert len(find_faces(scores, boxes, 0.0, 16)) == 2
