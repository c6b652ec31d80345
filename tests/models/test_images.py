"""Where pixels go and where points come back to."""

import math

import cv2
import numpy as np
import pytest

from framelane.models.images import Letterbox, Square, crop, fit, letterbox, uncrop


def ramp(width: int, height: int) -> np.ndarray:
    """uint8 RGB whose red is x / 2 and green y / 2, at the centre of each pixel."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack((x / 2, y / 2, np.full(x.shape, 100)), axis=2).astype(np.uint8)


@pytest.mark.parametrize(
    ("size", "target", "place"),
    [
        ((640, 480), (128, 128), (0, 16, 128, 96)),
        ((480, 640), (128, 128), (16, 0, 96, 128)),
        ((128, 128), (128, 128), (0, 0, 128, 128)),
        ((64, 32), (128, 128), (0, 32, 128, 64)),
        ((8000, 1), (128, 128), (0, 63, 128, 1)),
        ((640, 480), (256, 128), (42, 0, 171, 128)),
    ],
)
def test_picture_fits_in_the_middle(size: tuple[int, int], target: tuple[int, int], place: tuple[int, ...]) -> None:
    assert fit(size, target)[:4] == place


def test_points_of_a_letterbox_go_back() -> None:
    box = fit((641, 479), (128, 128))
    assert isinstance(box, Letterbox)
    assert box.to_picture(box.left, box.top) == (0, 0)
    assert box.to_picture(box.left + box.width, box.top + box.height) == pytest.approx((641, 479))


def test_letterbox_fills_the_given_array_and_only_it() -> None:
    cell = np.full((3, 128, 128, 3), 77, np.uint8)
    out = cell[1]
    assert letterbox(ramp(400, 200), out) is out
    assert (cell[[0, 2]] == 77).all()
    assert (out[:32] == 0).all()
    assert (out[96:] == 0).all()
    assert (out[32:96, :, 2] == 100).all()
    assert out[64, 64, 0] == pytest.approx(100, abs=1)


def test_bars_are_renewed_for_every_picture() -> None:
    out = np.full((128, 128, 3), 9, np.uint8)
    letterbox(ramp(100, 200), out, fill=114)
    assert (out[:, :32] == 114).all()
    assert (out[:, 96:] == 114).all()
    letterbox(ramp(200, 100), out)
    assert (out[:32] == 0).all()
    assert (out[96:] == 0).all()


def test_upright_crop_of_the_same_size_is_a_copy() -> None:
    image = ramp(300, 200)
    out = np.empty((64, 64, 3), np.uint8)
    assert crop(image, Square(100, 80, 64, 0), out) is out
    assert np.array_equal(out, image[48:112, 68:132])


@pytest.mark.parametrize("degrees", [0, 10, 90, 180, -45])
@pytest.mark.parametrize("size", [40, 96, 250])
def test_crop_shows_what_its_square_covers(degrees: float, size: float) -> None:
    image = ramp(400, 400)
    angle = math.radians(degrees)
    square = Square(200.3, 190.7, size * math.cos(angle), size * math.sin(angle))
    out = np.empty((96, 96, 3), np.uint8)
    crop(image, square, out)
    for row, column in ((20, 20), (48, 48), (30, 70)):
        x, y = square.to_picture(column + 0.5, row + 0.5, 96)
        assert out[row, column, :2] == pytest.approx(((x - 0.5) / 2, (y - 0.5) / 2), abs=1.5)


def test_turned_crop_puts_the_eyes_level() -> None:
    image = np.zeros((200, 200, 3), np.uint8)
    cv2.circle(image, (80, 80), 3, (255, 0, 0), -1)
    cv2.circle(image, (120, 120), 3, (0, 255, 0), -1)
    out = np.empty((100, 100, 3), np.uint8)
    crop(image, Square(100.5, 100.5, 100, 100), out)
    red, green = (np.argwhere(out[:, :, channel] > 200).mean(axis=0) for channel in (0, 1))
    assert red[0] == pytest.approx(green[0], abs=0.5) == pytest.approx(49.5, abs=0.5)
    assert green[1] - red[1] == pytest.approx(math.hypot(40, 40) * 100 / math.hypot(100, 100), abs=0.5)


@pytest.mark.parametrize("centre", [(-20, 100), (100, 199), (250, 250), (-500, 90), (1e6, -1e6)])
def test_crop_is_black_outside_the_picture(centre: tuple[float, float]) -> None:
    image = np.full((200, 200, 3), 200, np.uint8)
    out = np.full((64, 64, 3), 5, np.uint8)
    square = Square(*centre, 80, 30)
    crop(image, square, out)
    for row in range(0, 64, 9):
        for column in range(0, 64, 9):
            x, y = square.to_picture(column + 0.5, row + 0.5, 64)
            if -1 < x < 201 and -1 < y < 201:
                continue  # the edge itself is blended
            assert not out[row, column].any()
    assert crop(image, Square(100, 100, 50, 20), out).min() == 200


def test_crop_equals_a_direct_warp() -> None:
    image = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    square = Square(150, 100, 140, -35)
    x, y = square.to_picture(0.5, 0.5, 192)
    step_x, step_y = square.dx / 192, square.dy / 192
    matrix = np.array(((step_x, -step_y, x - 0.5), (step_y, step_x, y - 0.5)))
    direct = cv2.warpAffine(image, matrix, (192, 192), flags=cv2.WARP_INVERSE_MAP | cv2.INTER_LINEAR)
    found = crop(image, square, np.empty((192, 192, 3), np.uint8))
    assert np.abs(found.astype(int) - direct).max() <= 1


def test_points_of_a_crop_go_back_and_depth_is_scaled_alike() -> None:
    square = Square(50, 60, 30, 40)
    points = np.array(((0, 0, 10), (192, 0, -192), (96, 96, 0)), np.float32)
    found = uncrop(points, square, 192)
    assert found.dtype == np.float32
    for (x, y, z), (across, down, depth) in zip(found, points, strict=True):
        assert (x, y) == pytest.approx(square.to_picture(across, down, 192), abs=1e-4)
        assert z == pytest.approx(depth * 50 / 192, abs=1e-4)
    assert square.to_picture(192, 96, 192) == (65, 80)


def test_scaled_square_is_the_same_place() -> None:
    half = Square(50, 60, 30, 40).scaled(0.5)
    assert half == Square(25, 30, 15, 20)
    assert half.size == 25
