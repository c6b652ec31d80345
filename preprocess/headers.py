"""What an image's header says, read with small, strict, bounded parsers before any decoder sees the bytes.

A decoder believes a header: 700 bytes of JPEG may claim 20,000 × 20,000 pixels and cost seconds and a gigabyte. So
the header is read first, in some microseconds and without allocating; whatever is refused here is refused by name.

    JPEG  baseline, extended and progressive Huffman, 8 bits, grey or three components; EXIF orientation
    PNG   every colour type and depth; eXIf orientation where it precedes the pixels
    WebP  lossy (VP8), lossless (VP8L) and extended (VP8X), not animated; EXIF in WebP is not applied

Animated PNG and WebP are refused: a frame is one picture, and which one was meant is not ours to guess.
"""

from __future__ import annotations

import struct

import msgspec

from framelane.models.errors import InvalidFrame

MAX_SEGMENTS = 512
"""Header segments or chunks that are looked at. Pictures have 6 to 60; beyond it the header is an attack."""

MAX_SCANS = 32
"""Scans of one JPEG. Progressive encoders write 6 to 16; each costs a pass over every coefficient."""

MAX_EXIF_ENTRIES = 128
"""Entries of EXIF's first directory that are searched for the orientation."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest image that is decoded: bytes as sent, pixels as stored. 16 Mpx are 48 MB once decoded."""

    max_bytes: int = 1 << 20
    max_width: int = 8192
    max_height: int = 8192
    max_pixels: int = 16_000_000


class Header(msgspec.Struct, frozen=True, gc=False):
    """Width and height in pixels as *stored*, the format's name, and the EXIF orientation (1 to 8)."""

    width: int
    height: int
    format: str
    orientation: int = 1

    @property
    def displayed(self) -> tuple[int, int]:
        """Width and height as displayed: orientations 5 to 8 exchange them."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def read_header(data: memoryview) -> Header:
    """Recognise the format by its first bytes and read its header.

    Raises:
        InvalidFrame: no JPEG, PNG or WebP; a header that is damaged, truncated or contradicts itself; a kind of
            image that is not decoded; no pixels.
    """
    start = bytes(data[:12])
    try:
        if start[:2] == b"\xff\xd8":
            return _read_jpeg(data)
        if start[:8] == b"\x89PNG\r\n\x1a\n":
            return _read_png(data)
        if start[:4] == b"RIFF" and start[8:] == b"WEBP":
            return _read_webp(data)
    except (IndexError, struct.error):
        raise InvalidFrame(f"the image ends inside its header, after {len(data)} bytes") from None
    raise InvalidFrame(_not_an_image(start))


def _not_an_image(start: bytes) -> str:
    if not start:
        return "the frame is empty"
    for prefix, name in ((b"GIF8", "GIF"), (b"BM", "BMP"), (b"II*\0", "TIFF"), (b"MM\0*", "TIFF")):
        if start.startswith(prefix):
            return f"{name} images are not supported: send JPEG, PNG or WebP"
    if start[4:8] == b"ftyp":
        return "AVIF, HEIF and video are not supported: send JPEG, PNG or WebP"
    return f"the frame is no JPEG, PNG or WebP image: it starts with {start[:8].hex(' ')}"


def _with_pixels(header: Header) -> Header:
    if header.width < 1 or header.height < 1:
        raise InvalidFrame(f"the image has no pixels: {header.width} × {header.height}")
    return header


# --- JPEG: ITU-T T.81, annex B ---------------------------------------------------------------------------------

_SEGMENT = struct.Struct(">BBH")  # 0xFF, marker, length that includes itself
_FRAME = struct.Struct(">BHHB")  # precision, height, width, components

_DECODED_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
_REFUSED_FRAMES = {
    0xC3: "lossless",
    0xC5: "hierarchical",
    0xC6: "hierarchical",
    0xC7: "hierarchical",
    0xC8: "reserved",
    0xC9: "arithmetic-coded",
    0xCA: "arithmetic-coded",
    0xCB: "arithmetic-coded",
    0xCD: "arithmetic-coded",
    0xCE: "arithmetic-coded",
    0xCF: "arithmetic-coded",
}
_PROGRESSIVE, _SOS, _APP1 = 0xC2, 0xDA, 0xE1
# Tables, applications' data and comments; DNL (0xDC) and the hierarchical markers are not among them.
_SKIPPED = frozenset((0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))


def _read_jpeg(data: memoryview) -> Header:
    end, position, orientation = len(data), 2, 1
    frame: tuple[int, int, int, int] | None = None
    for _ in range(MAX_SEGMENTS):
        fill, marker, length = _SEGMENT.unpack_from(data, position)
        if fill != 0xFF:
            raise InvalidFrame(f"JPEG: a marker was expected at byte {position}, found 0x{fill:02x}")
        if marker == 0xFF:
            position += 1
            continue
        segment, position = position + 4, position + 2 + length
        if length < 2 or position > end:
            raise InvalidFrame(f"JPEG: segment 0x{marker:02x} of {length} bytes does not fit in {end} bytes")
        if marker in _DECODED_FRAMES:
            if frame:
                raise InvalidFrame("JPEG: two frame headers in one image")
            frame = marker, *_jpeg_frame(data, segment, length)
        elif marker == _SOS:
            return _jpeg_header(frame, data, segment, orientation)
        elif marker == _APP1 and orientation == 1:
            orientation = _app1_orientation(data[segment:position])
        elif marker not in _SKIPPED:
            kind = _REFUSED_FRAMES.get(marker)
            raise InvalidFrame(f"{kind} JPEG is not supported" if kind else f"JPEG: unexpected marker 0x{marker:02x}")
    raise InvalidFrame(f"JPEG: more than {MAX_SEGMENTS} segments before the image data")


def _jpeg_header(frame: tuple[int, int, int, int] | None, data: memoryview, scan: int, orientation: int) -> Header:
    """What was found when the first scan starts at byte ``scan``."""
    if frame is None:
        raise InvalidFrame("JPEG: image data without a frame header")
    marker, width, height, components = frame
    if marker == _PROGRESSIVE or data[scan] != components:
        _check_scans(data, scan)
    return _with_pixels(Header(width, height, "jpeg", orientation))


def _jpeg_frame(data: memoryview, segment: int, length: int) -> tuple[int, int, int]:
    """Width, height and number of components from a frame header that is decoded."""
    precision, height, width, components = _FRAME.unpack_from(data, segment)
    if precision != 8:
        raise InvalidFrame(f"JPEG with {precision} bits per sample is not supported: 8 are")
    if components == 4:
        raise InvalidFrame("CMYK JPEG is not supported: send RGB or grey")
    if components not in (1, 3) or length != 8 + 3 * components:
        raise InvalidFrame(f"JPEG: a frame header of {length} bytes with {components} components")
    return width, height, components


def _check_scans(data: memoryview, first: int) -> None:
    """Only images of several scans are searched: behind a scan of all components a sequential image has ended.

    Inside image data 0xFF is always followed by 0x00 or a marker, so the count has no false positives there.
    """
    scans = 1 + bytes(data[first:]).count(b"\xff\xda")
    if scans > MAX_SCANS:
        raise InvalidFrame(f"JPEG: {scans} scans; the limit is {MAX_SCANS}")


# --- EXIF: a TIFF directory, tag 0x0112 ------------------------------------------------------------------------

_ENTRY = {order: struct.Struct(order + "HHIHH") for order in "<>"}  # tag, type, count, value, padding of the value
_ORIENTATION, _SHORT = 0x0112, 3


def _app1_orientation(segment: memoryview) -> int:
    """JPEG's APP1 also carries XMP; the orientation is in the one that says Exif."""
    return _exif_orientation(segment[6:]) if bytes(segment[:6]) == b"Exif\0\0" else 1


def _exif_orientation(tiff: memoryview) -> int:
    """The orientation, 1 where it is missing or damaged: a picture is shown upright then, not refused."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))
    if order is None or len(tiff) < 8:
        return 1
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, directory)
    count = min(count, MAX_EXIF_ENTRIES, (len(tiff) - directory - 2) // 12)
    entries = tiff[directory + 2 : directory + 2 + 12 * count]
    for tag, kind, number, value, _ in _ENTRY[order].iter_unpack(entries):
        if tag == _ORIENTATION:
            return value if kind == _SHORT and number == 1 and 1 <= value <= 8 else 1
    return 1


# --- PNG: W3C, third edition -----------------------------------------------------------------------------------

_CHUNK = struct.Struct(">I4s")
_IHDR = struct.Struct(">IIBBBBB")  # width, height, depth, colour type, compression, filter, interlace
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


def _read_png(data: memoryview) -> Header:
    if _CHUNK.unpack_from(data, 8) != (13, b"IHDR"):
        raise InvalidFrame("PNG: the first chunk is not a header of 13 bytes")
    width, height, depth, colour, compression, filtering, interlace = _IHDR.unpack_from(data, 16)
    if depth not in _PNG_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise InvalidFrame(f"PNG: no such kind: colour type {colour}, {depth} bits, interlace {interlace}")
    return _with_pixels(Header(width, height, "png", _png_orientation(data, 33)))


def _png_orientation(data: memoryview, position: int) -> int:
    """Walk the chunks from ``position`` to the pixels; the orientation of an eXIf chunk among them."""
    orientation = 1
    for _ in range(MAX_SEGMENTS):
        length, name = _CHUNK.unpack_from(data, position)
        if position + 12 + length > len(data):
            raise InvalidFrame(f"PNG: chunk {name!r} of {length} bytes does not fit in {len(data)} bytes")
        if name == b"IDAT":
            return orientation
        if name == b"acTL":
            raise InvalidFrame("animated PNG is not supported: send one picture per frame")
        if name == b"eXIf":
            orientation = _exif_orientation(data[position + 8 : position + 8 + length])
        position += 12 + length
    raise InvalidFrame(f"PNG: more than {MAX_SEGMENTS} chunks before the pixels")


# --- WebP: RFC 9649 --------------------------------------------------------------------------------------------

_RIFF_CHUNK = struct.Struct("<4sI")
_ANIMATION = 0x02


def _read_webp(data: memoryview) -> Header:
    (riff_length,) = struct.unpack_from("<I", data, 4)
    if riff_length + 8 > len(data):
        raise InvalidFrame(f"WebP of {riff_length + 8} bytes is truncated after {len(data)}")
    name, length = _RIFF_CHUNK.unpack_from(data, 12)
    if name != b"VP8X":
        return _webp_picture(data, 12)
    if data[20] & _ANIMATION:
        raise InvalidFrame("animated WebP is not supported: send one picture per frame")
    canvas = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    header = _webp_picture(data, _webp_find_picture(data, 20 + length + (length & 1)))
    if (header.width, header.height) != canvas:
        raise InvalidFrame(
            f"WebP: a canvas of {canvas[0]} × {canvas[1]} holds a picture of {header.width} × {header.height}"
        )
    return header


def _webp_find_picture(data: memoryview, position: int) -> int:
    """Skip ICC profile, alpha and other chunks; where the picture's chunk starts."""
    for _ in range(MAX_SEGMENTS):
        name, length = _RIFF_CHUNK.unpack_from(data, position)
        if name in (b"VP8 ", b"VP8L"):
            return position
        position += 8 + length + (length & 1)
    raise InvalidFrame(f"WebP: more than {MAX_SEGMENTS} chunks before the picture")


def _webp_picture(data: memoryview, position: int) -> Header:
    name, length = _RIFF_CHUNK.unpack_from(data, position)
    if position + 8 + length > len(data):
        raise InvalidFrame(f"WebP: chunk {name!r} of {length} bytes does not fit in {len(data)} bytes")
    body = bytes(data[position + 8 : position + 18])
    if name == b"VP8 ":
        if body[3:6] != b"\x9d\x01\x2a" or body[0] & 1:
            raise InvalidFrame("WebP: the lossy picture does not start with a key frame")
        width, height = struct.unpack_from("<HH", body, 6)
        return _with_pixels(Header(width & 0x3FFF, height & 0x3FFF, "webp"))
    if name == b"VP8L":
        signature, bits = struct.unpack_from("<BI", body)
        if signature != 0x2F:
            raise InvalidFrame("WebP: the lossless picture has no signature")
        return Header(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), "webp")
    raise InvalidFrame(f"WebP: no picture, but a chunk {name!r}")
