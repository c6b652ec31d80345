"""Pixels as displayed, within the limits, and never those of a damaged picture."""

import contextlib
import time
import tracemalloc
from collections.abc import Callable

import cv2
import numpy as np
import pictures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framelane.models.errors import InvalidFrame
from framelane.preprocess.decode import ImageDecoder, Limits, reduction

DECODER = ImageDecoder()


def decode(data: bytes, at_least: tuple[int, int] | None = None) -> np.ndarray:
    image = DECODER.decode(memoryview(data), at_least)
    assert image.flags.c_contiguous
    assert image.dtype == np.uint8
    return image


def difference(one: np.ndarray, other: np.ndarray) -> float:
    assert one.shape == other.shape
    return float(np.abs(one.astype(int) - other).mean())


@pytest.mark.parametrize(
    "data",
    [
        pictures.jpeg(),
        pictures.by_opencv(".jpg", pictures.gradient(), 1, 95, 2, 1),
        pictures.by_opencv(".png", pictures.gradient()),
        pictures.by_opencv(".png", pictures.gradient().astype(np.uint16) * 257),
        pictures.by_opencv(".png", np.dstack((pictures.gradient(), np.full((32, 48), 7, np.uint8)))),
        pictures.by_opencv(".webp", pictures.gradient(), 64, 101),
        pictures.by_opencv(".webp", pictures.gradient(), 64, 95),
    ],
    ids=["jpeg", "progressive", "png", "png 16", "png alpha", "webp lossless", "webp lossy"],
)
def test_every_format_becomes_rgb_bytes(data: bytes) -> None:
    assert difference(decode(data), pictures.gradient()) < 4


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp"])
def test_grey_becomes_rgb(extension: str) -> None:
    grey = pictures.gradient()[:, :, 0]
    image = decode(pictures.by_opencv(extension, grey))
    assert difference(image, np.dstack([grey] * 3)) < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_upright_for_every_orientation(orientation: int) -> None:
    data = pictures.with_exif(pictures.jpeg(), pictures.tiff(orientation))
    shown = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]  # OpenCV applies it by itself
    assert difference(decode(data), shown) < 2
    width, height, name = DECODER.size(memoryview(data))
    assert (height, width, 3) == shown.shape
    assert name == "jpeg"


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_png_orientation_is_applied_once(orientation: int) -> None:
    plain, turned = pictures.png(), pictures.png(pictures.chunk(b"eXIf", pictures.tiff(orientation)))
    assert np.array_equal(decode(turned), np.rot90(decode(plain), {1: 0, 3: 2, 6: 3}[orientation]))


def test_reduced_picture_is_never_below_what_suffices() -> None:
    data = pictures.jpeg(641, 479)
    for at_least, size in {
        (320, 240): (321, 240),
        (321, 240): (321, 240),
        (322, 240): (641, 479),
        (100, 100): (161, 120),
        (1, 1): (81, 60),
        (5000, 5000): (641, 479),
    }.items():
        assert decode(data, at_least).shape[1::-1] == size


def test_reduced_picture_shows_the_same() -> None:
    for width, height, factor in ((640, 480, 2), (641, 479, 4), (643, 481, 8)):
        small = pictures.gradient(-(-width // factor), -(-height // factor))
        assert difference(decode(pictures.jpeg(width, height), (width // factor, height // factor)), small) < 4


def test_what_suffices_is_meant_as_displayed() -> None:
    data = pictures.with_exif(pictures.jpeg(640, 160), pictures.tiff(6))
    assert decode(data, (80, 320)).shape == (320, 80, 3)
    assert decode(data, (81, 320)).shape == (640, 160, 3)


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 3000), st.integers(1, 3000))
def test_reduction_is_the_largest_that_suffices(width: int, height: int, wide: int, high: int) -> None:
    factor = reduction((width, height), (wide, high))
    if factor > 1:
        assert -(-width // factor) >= wide
        assert -(-height // factor) >= high
    if factor < 8:
        assert -(-width // (2 * factor)) < wide or -(-height // (2 * factor)) < high


@pytest.mark.parametrize("keep", [1, 3, 20, 300, 0.3, 0.5, 0.9, -1, -2, -20])
@pytest.mark.parametrize(
    "make",
    [
        lambda image: pictures.by_opencv(".jpg", image),
        lambda image: pictures.by_opencv(".jpg", image, 2, 1),
        lambda image: pictures.by_opencv(".png", image),
        lambda image: pictures.by_opencv(".webp", image, 64, 80),
        lambda image: pictures.by_opencv(".webp", image, 64, 101),
    ],
    ids=["jpeg", "progressive", "png", "webp lossy", "webp lossless"],
)
def test_truncated_picture_is_refused(make: Callable[[np.ndarray], bytes], keep: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = make(noise)
    assert decode(data).shape == (64, 64, 3)
    end = int(keep * len(data)) if isinstance(keep, float) else keep
    for at_least in (None, (8, 8)):
        with pytest.raises(InvalidFrame):
            decode(data[:end], at_least)


def test_flipped_bit_in_png_is_refused() -> None:
    data = bytearray(pictures.png())
    data[len(data) // 2] ^= 1
    with pytest.raises(InvalidFrame, match="png: the image data are damaged"):
        decode(bytes(data))


def test_damage_that_libjpeg_only_warns_of_is_refused() -> None:
    data = bytearray(pictures.jpeg(64, 64))
    data[-40:-2] = bytes(38)
    with pytest.raises(InvalidFrame, match="JPEG: "):
        decode(bytes(data))


def test_unknown_subsampling_is_refused() -> None:
    data = pictures.jpeg()
    sampling = data.index(b"\xff\xc0") + 11
    with pytest.raises(InvalidFrame, match="JPEG: "):
        decode(data[:sampling] + b"\x13" + data[sampling + 1 :])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pictures.jpeg_claiming(20_000, 20_000), "image is 20000 × 20000 = 400.0 Mpx; the limit is 16.0 Mpx"),
        (pictures.jpeg_claiming(50_000, 50_000), "image is 50000 × 50000 = 2500.0 Mpx; the limit is 16.0 Mpx"),
        (pictures.jpeg_claiming(9_000, 10), "image is 9000 × 10 pixels; the limit is 8192 × 8192"),
        (pictures.jpeg_claiming(10, 9_000), "image is 10 × 9000 pixels; the limit is 8192 × 8192"),
        (
            pictures.png_header(50_000, 50_000) + pictures.chunk(b"IDAT", b""),
            "image is 50000 × 50000 = 2500.0 Mpx; the limit is 16.0 Mpx",
        ),
        (
            pictures.png_header(2**31 - 1, 2**31 - 1) + pictures.chunk(b"IDAT", b""),
            "image is 2147483647 × 2147483647",
        ),
        (bytes((1 << 20) + 1), "image of 1048577 bytes; the limit is 1048576"),
    ],
)
def test_image_beyond_the_limits_is_refused_at_once(data: bytes, says: str) -> None:
    view = memoryview(data)
    taken = []
    tracemalloc.start()
    try:
        for _ in range(5):
            for refuse in (DECODER.size, DECODER.decode):
                start = time.perf_counter()
                with pytest.raises(InvalidFrame) as refused:
                    refuse(view)
                taken.append(time.perf_counter() - start)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert says in refused.value.message
    assert min(taken) < 0.001
    assert peak < 200_000


def test_limits_can_be_set() -> None:
    small = ImageDecoder(Limits(max_pixels=1_000, max_width=40, max_bytes=2_000))
    with pytest.raises(InvalidFrame, match="48 × 32 = "):
        small.size(memoryview(pictures.jpeg()))
    with pytest.raises(InvalidFrame, match="48 × 2 pixels; the limit is 40 × 8192"):
        small.size(memoryview(pictures.jpeg(48, 2)))


def test_header_of_a_jpeg_costs_microseconds() -> None:
    data = memoryview(pictures.jpeg(640, 480))
    taken = []
    for _ in range(200):
        start = time.perf_counter()
        DECODER.size(data)
        taken.append(time.perf_counter() - start)
    assert sorted(taken)[20] < 20e-6


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_a_picture_of_the_stated_size_or_an_invalid_frame(data: st.DataObject) -> None:
    kinds = (pictures.jpeg(16, 16), pictures.png(width=16, height=16))
    picture = bytearray(data.draw(st.sampled_from(kinds)))
    for _ in range(data.draw(st.integers(1, 3))):
        picture[data.draw(st.integers(0, len(picture) - 1))] = data.draw(st.integers(0, 255))
    small = ImageDecoder(Limits(max_pixels=4_000_000))
    with contextlib.suppress(InvalidFrame):
        width, height, _ = small.size(memoryview(picture))
        assert small.decode(memoryview(picture)).shape == (height, width, 3)
