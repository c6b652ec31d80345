"""Small encoded pictures for the decoder's tests, good ones and hostile ones."""

from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np
import simplejpeg


def gradient(width: int = 48, height: int = 32) -> np.ndarray:
    """uint8 RGB with a different colour in every corner, smooth enough to survive JPEG."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1)
    return np.stack((red, green, 255 - red), axis=2).astype(np.uint8)


def jpeg(width: int = 48, height: int = 32, **options: object) -> bytes:
    return simplejpeg.encode_jpeg(gradient(width, height), quality=95, **options)


def by_opencv(extension: str, image: np.ndarray, *parameters: int) -> bytes:
    """Encode RGB, grey or RGBA with OpenCV, which wants BGR."""
    if image.ndim == 3:
        image = image[:, :, [2, 1, 0, *range(3, image.shape[2])]]
    done, data = cv2.imencode(extension, np.ascontiguousarray(image), list(parameters))
    assert done
    return data.tobytes()


def jpeg_claiming(width: int, height: int, data: bytes | None = None) -> bytes:
    """A small JPEG whose frame header says other dimensions."""
    data = jpeg(16, 16) if data is None else data
    start = next(data.index(marker) for marker in (b"\xff\xc0", b"\xff\xc2") if marker in data)
    return data[: start + 5] + struct.pack(">HH", height, width) + data[start + 9 :]


def with_segment(data: bytes, marker: int, body: bytes) -> bytes:
    """A JPEG with one more segment behind its first marker."""
    return data[:2] + struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body + data[2:]


def tiff(orientation: int, order: str = "<", kind: int = 3) -> bytes:
    """An EXIF directory with two entries, of which the orientation is the second."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "I", 8)
    other = struct.pack(order + "HHII", 0x0100, 4, 1, 99)
    entry = struct.pack(order + "HHIHH", 0x0112, kind, 1, orientation, 0)
    return head + struct.pack(order + "H", 2) + other + entry + struct.pack(order + "I", 0)


def with_exif(data: bytes, body: bytes) -> bytes:
    return with_segment(data, 0xE1, b"Exif\0\0" + body)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_header(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))


def png(*chunks: bytes, width: int = 48, height: int = 32) -> bytes:
    """A PNG of ``gradient`` with these chunks before its pixels."""
    rows = b"".join(b"\0" + row.tobytes() for row in gradient(width, height))
    return b"".join((png_header(width, height), *chunks, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")))


def webp(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def webp_canvas(width: int, height: int, flags: int = 0) -> tuple[bytes, bytes]:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"VP8X", bytes((flags, 0, 0, 0)) + size
