"""Headers are read strictly, quickly, and without trusting a word of them."""

import contextlib
import struct
import time

import pictures
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framelane.models.errors import InvalidFrame
from framelane.preprocess.headers import MAX_SCANS, MAX_SEGMENTS, Header, read_header


def read(data: bytes) -> Header:
    return read_header(memoryview(data))


def test_dimensions_of_every_format_come_from_the_header() -> None:
    image = pictures.gradient(50, 21)
    assert read(pictures.jpeg(50, 21)) == Header(50, 21, "jpeg")
    assert read(pictures.by_opencv(".png", image)) == Header(50, 21, "png")
    lossy, lossless = (pictures.by_opencv(".webp", image, 64, quality) for quality in (80, 101))
    assert (lossy[12:16], lossless[12:16]) == (b"VP8 ", b"VP8L")
    assert read(lossy) == read(lossless) == Header(50, 21, "webp")
    assert read(pictures.webp(pictures.webp_canvas(50, 21), (b"VP8 ", lossy[20:]))) == Header(50, 21, "webp")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", "<>")
def test_exif_orientation_exchanges_width_and_height_from_five_on(orientation: int, order: str) -> None:
    body = pictures.tiff(orientation, order)
    expected = (32, 48) if orientation >= 5 else (48, 32)
    for data in (pictures.with_exif(pictures.jpeg(), body), pictures.png(pictures.chunk(b"eXIf", body))):
        header = read(data)
        assert (header.orientation, header.displayed) == (orientation, expected)
        assert (header.width, header.height) == (48, 32)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"II*\0",
        pictures.tiff(0),
        pictures.tiff(9),
        pictures.tiff(6, kind=4),
        pictures.tiff(6)[:-10],
        b"II*\0\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\xff\xff",
        b"XX*\0" + pictures.tiff(6)[4:],
    ],
)
def test_damaged_exif_leaves_the_picture_upright(body: bytes) -> None:
    assert read(pictures.with_exif(pictures.jpeg(), body)).orientation == 1


def test_xmp_and_comments_are_skipped() -> None:
    data = pictures.with_segment(pictures.jpeg(), 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")
    assert read(pictures.with_segment(data, 0xFE, b"a comment")).displayed == (48, 32)


def test_fill_bytes_before_a_marker_are_allowed() -> None:
    data = pictures.jpeg()
    assert read(data[:2] + b"\xff\xff" + data[2:]).displayed == (48, 32)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\xff", "no JPEG, PNG or WebP"),
        (b"GIF89a" + bytes(20), "GIF"),
        (b"BM" + bytes(20), "BMP"),
        (b"hello, world", "68 65 6c 6c 6f"),
        (bytes(4) + b"ftypavif", "AVIF"),
        (b"\xff\xd8", "ends inside its header"),
        (b"\xff\xd8\xff", "ends inside its header"),
        (b"\xff\xd8\xff\xd9\0\0", "does not fit|unexpected marker 0xd9"),
        (b"\x89PNG\r\n\x1a\n", "ends inside its header"),
        (b"RIFF\x04\0\0\0WEBP", "ends inside its header"),
        (b"RIFF\xff\xff\xff\xffWEBP", "truncated"),
        (pictures.webp((b"JUNK", b"1234")), "no picture, but a chunk b'JUNK'"),
        (pictures.webp((b"VP8 ", bytes(12))), "key frame"),
        (pictures.webp((b"VP8L", bytes(12))), "signature"),
        (pictures.png_header(9, 9, depth=3) + bytes(20), "3 bits"),
        (pictures.png_header(9, 9, colour=7) + bytes(20), "colour type 7"),
        (pictures.png_header(9, 0) + pictures.chunk(b"IDAT", b""), "no pixels: 9 × 0"),
        (pictures.png_header(9, 9) + b"\x7f\xff\xff\xffIDAT", "does not fit"),
    ],
)
def test_what_is_no_usable_image_is_named(data: bytes, says: str) -> None:
    with pytest.raises(InvalidFrame, match=says):
        read(data)


def test_zero_width_or_height_has_no_pixels() -> None:
    for width, height in ((0, 16), (16, 0)):
        with pytest.raises(InvalidFrame, match=f"no pixels: {width} × {height}"):
            read(pictures.jpeg_claiming(width, height))


def test_kinds_of_jpeg_that_are_not_decoded_are_named() -> None:
    data = pictures.jpeg()
    start = data.index(b"\xff\xc0")
    kinds = {0xC3: "lossless", 0xC5: "hierarchical", 0xC9: "arithmetic-coded", 0xCA: "arithmetic-coded"}
    for marker, kind in kinds.items():
        with pytest.raises(InvalidFrame, match=f"{kind} JPEG"):
            read(data[: start + 1] + bytes((marker,)) + data[start + 2 :])
    with pytest.raises(InvalidFrame, match="12 bits"):
        read(data[: start + 4] + b"\x0c" + data[start + 5 :])
    with pytest.raises(InvalidFrame, match="CMYK"):
        read(data[: start + 9] + b"\x04" + data[start + 10 :])
    with pytest.raises(InvalidFrame, match="2 components"):
        read(data[: start + 9] + b"\x02" + data[start + 10 :])


def test_a_second_frame_header_is_refused() -> None:
    data = pictures.jpeg()
    start = data.index(b"\xff\xc0")
    frame = data[start : start + 19]
    with pytest.raises(InvalidFrame, match="two frame headers"):
        read(data[:start] + frame + data[start:])


def test_image_data_without_a_frame_header_are_refused() -> None:
    with pytest.raises(InvalidFrame, match="without a frame header"):
        read(b"\xff\xd8\xff\xda\0\x0c" + bytes(10))


def test_garbage_between_segments_is_refused() -> None:
    data = pictures.jpeg()
    with pytest.raises(InvalidFrame, match="marker was expected at byte 2, found 0x00"):
        read(data[:2] + b"\0" + data[2:])


def test_scans_of_a_progressive_jpeg_are_bounded() -> None:
    data = pictures.by_opencv(".jpg", pictures.gradient(), 2, 1)
    assert read(data).displayed == (48, 32)
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(InvalidFrame, match=f"scans; the limit is {MAX_SCANS}"):
        read(data[:-2] + scan * MAX_SCANS + b"\xff\xd9")


def test_scans_are_not_counted_behind_a_sequential_image() -> None:
    assert read(pictures.jpeg() + b"\xff\xda" * 1000).displayed == (48, 32)


def test_animations_are_refused() -> None:
    with pytest.raises(InvalidFrame, match="animated PNG"):
        read(pictures.png(pictures.chunk(b"acTL", struct.pack(">II", 2, 0))))
    with pytest.raises(InvalidFrame, match="animated WebP"):
        read(pictures.webp(pictures.webp_canvas(48, 32, flags=2)))


def test_webp_canvas_must_be_the_pictures_size() -> None:
    lossy = pictures.by_opencv(".webp", pictures.gradient(), 64, 80)
    with pytest.raises(InvalidFrame, match="canvas of 9 × 9 holds a picture of 48 × 32"):
        read(pictures.webp(pictures.webp_canvas(9, 9), (b"VP8 ", lossy[20:])))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff" * (1 << 20),
        b"\xff\xd8" + b"\xff\xe0\0\x02" * (1 << 18),
        pictures.png_header(9, 9) + pictures.chunk(b"tEXt", b"") * 80_000,
        pictures.webp(pictures.webp_canvas(9, 9), *[(b"JUNK", b"")] * 100_000),
        pictures.with_exif(pictures.jpeg(), b"II*\0\x08\0\0\0\xff\xff" + bytes(60_000)),
    ],
    ids=["fill bytes", "empty segments", "PNG chunks", "WebP chunks", "EXIF entries"],
)
def test_a_megabyte_of_headers_is_given_up_quickly(data: bytes) -> None:
    view = memoryview(data)
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        with contextlib.suppress(InvalidFrame):
            read_header(view)
        best = min(best, time.perf_counter() - start)
    assert best < 0.001


def test_too_many_segments_are_named() -> None:
    with pytest.raises(InvalidFrame, match=f"more than {MAX_SEGMENTS} segments"):
        read(b"\xff\xd8" + b"\xff\xe0\0\x02" * (MAX_SEGMENTS + 1))


@given(st.sampled_from((b"\xff\xd8\xff", pictures.png_header(9, 9), b"RIFF\x20\0\0\0WEBPVP8X")), st.binary(max_size=80))
def test_any_bytes_are_a_header_or_an_invalid_frame(start: bytes, rest: bytes) -> None:
    try:
        header = read(start + rest)
    except InvalidFrame:
        return
    assert header.width > 0
    assert header.height > 0


@given(st.data())
def test_a_damaged_jpeg_header_is_a_header_or_an_invalid_frame(data: st.DataObject) -> None:
    picture = bytearray(pictures.with_exif(pictures.jpeg(16, 16), pictures.tiff(6)))
    for _ in range(data.draw(st.integers(1, 4))):
        picture[data.draw(st.integers(2, len(picture) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidFrame):
        assert 1 <= read(bytes(picture)).orientation <= 8
