"""Pictures that tell who sent them, and pictures that nobody should send."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import simplejpeg
from pictures import by_opencv, chunk, gradient, jpeg_claiming, png_header

MOST_CONNECTIONS, MOST_FRAMES = 6000, 2600  # so that their product is a picture that is not too large


def signed(connection: int, seq: int, padding: bytes = b"") -> bytes:
    """A PNG whose width and height tell the numbers of its connection and of its frame; its pixels are missing."""
    assert 0 <= connection < MOST_CONNECTIONS
    assert 0 <= seq < MOST_FRAMES
    header = png_header(connection + 1, seq + 1)
    return header + chunk(b"teXt", padding) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def is_answer_to(fields: Mapping[str, Any], connection: int, seq: int, data: bytes) -> bool:
    """Whether ``pipelines.Mirror`` saw this very frame."""
    seen = fields["width"], fields["height"], fields["checksum"], fields["seq"]
    return seen == (connection + 1, seq + 1, zlib.crc32(data), seq)


@functools.cache
def astronaut_at(x: int, y: int, picture: bytes) -> bytes:
    """A grey JPEG of 704 × 704 pixels with the sample picture, 512 × 512, at x, y."""
    canvas = np.full((704, 704, 3), 128, np.uint8)
    canvas[y : y + 512, x : x + 512] = simplejpeg.decode_jpeg(picture)
    return simplejpeg.encode_jpeg(canvas, quality=90)


def png_bomb() -> bytes:
    """A PNG of 110 kB that would take 300 MB."""
    width = height = 10_000
    rows = zlib.compress(bytes((width * 3 + 1) * 64), 9)
    return png_header(width, height) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def png_that_bursts() -> bytes:
    """A small PNG with far more pixel data than its header has pixels."""
    return png_header(16, 16) + chunk(b"IDAT", zlib.compress(bytes(50_000_000), 9)) + chunk(b"IEND", b"")


def gif() -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"\x2c" + bytes(9) + b"\x02\x02\x44\x01\x00\x3b"


def webp_truncated() -> bytes:
    return by_opencv(".webp", gradient(64, 48))[:-20]


def noisy_jpeg(size: int) -> bytes:
    """A JPEG of at least so many bytes, cut there: its header is good."""
    side = 2048
    noise = np.random.default_rng(1).integers(0, 255, (side, side, 3), np.uint8)
    done, data = cv2.imencode(".jpg", noise, [cv2.IMWRITE_JPEG_QUALITY, 95])
    assert done
    assert len(data) >= size
    return data.tobytes()[:size]


def bad_pictures(good: bytes) -> dict[str, tuple[bytes, str]]:
    """Each by its name: the bytes, and a word that the answer's message must have. ``good`` is a JPEG."""
    return {
        "empty": (b"", "empty"),
        "one byte": (b"\xff", "no JPEG, PNG or WebP"),
        "start of a JPEG": (good[:3], "header"),
        "truncated in its header": (good[:200], "200 bytes"),
        "truncated JPEG": (good[: len(good) // 2], "JPEG"),
        "truncated WebP": (webp_truncated(), "truncated"),
        "JPEG claiming 20,000 x 20,000": (jpeg_claiming(20_000, 20_000), "20000 × 20000"),
        "PNG claiming 50,000 x 50,000": (png_header(50_000, 50_000) + chunk(b"IDAT", b""), "50000 × 50000"),
        "PNG bomb": (png_bomb(), "10000 × 10000"),
        "PNG without pixels": (signed(63, 63), "png"),
        "GIF": (gif(), "GIF"),
        "text": (b"a camera frame, honestly", "no JPEG, PNG or WebP"),
        "zeros": (bytes(40_000), "no JPEG, PNG or WebP"),
        "one byte over the limit": (noisy_jpeg(2**20 + 1), "limit is 1048576"),
    }


def blank_jpeg(like: bytes) -> bytes:
    """A grey picture of the same size as another one."""
    height, width = simplejpeg.decode_jpeg(like).shape[:2]
    return simplejpeg.encode_jpeg(np.full((height, width, 3), 128, np.uint8), quality=95)
