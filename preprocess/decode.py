"""Encoded bytes from a client → uint8 pixels, never more of them than the limits allow.

The header is read and checked first (``headers.py``). JPEG goes to libjpeg-turbo through simplejpeg in its strict
mode, where every warning of the decoder is an error: a damaged or truncated picture is refused, never completed with
grey or with whatever the memory held before. PNG and WebP go to OpenCV, which refuses them when they are damaged.

Pixels come out as displayed: the EXIF orientation is applied, grey becomes RGB, 16 bits become 8, and an alpha channel
is dropped (the colours under it are kept as they are stored). Colour profiles are not applied.

``cv2.setNumThreads(1)`` is the worker's business; importing this module sets nothing.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from framelane.models.errors import InvalidFrame
from framelane.preprocess.headers import Header, Limits, read_header

Image = npt.NDArray[np.uint8]


class ImageDecoder:
    """The decoder of the preprocess workers; stateless, so one serves every frame and thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()

    def size(self, data: memoryview) -> tuple[int, int, str]:
        """Width and height in pixels as displayed, and "jpeg", "png" or "webp"; from the header alone.

        Raises:
            InvalidFrame: see ``read_header``, or an image beyond the limits.
        """
        header = self._checked_header(data)
        return (*header.displayed, header.format)

    def decode(self, data: memoryview, at_least: tuple[int, int] | None = None) -> Image:
        """Decode to uint8, height × width × 3, RGB, upright, contiguous, owned by the caller.

        With ``at_least=(width, height)`` a JPEG is decoded at the smallest of 1/2, 1/4 and 1/8 that has at least as
        many pixels in both directions; sizes are rounded up, as libjpeg does. PNG and WebP come in full size.

        Raises:
            InvalidFrame: as for ``size``, or the image data are damaged or truncated.
        """
        header = self._checked_header(data)
        image = _decode_jpeg(data, header, at_least) if header.format == "jpeg" else _decode_other(data, header)
        return image if header.orientation == 1 else _upright(image, header.orientation)

    def _checked_header(self, data: memoryview) -> Header:
        limits = self.limits
        if len(data) > limits.max_bytes:
            raise InvalidFrame(f"image of {len(data)} bytes; the limit is {limits.max_bytes}")
        header = read_header(data)
        width, height = header.width, header.height
        if width * height > limits.max_pixels or width > limits.max_width or height > limits.max_height:
            raise InvalidFrame(_too_large(width, height, limits))
        return header


def _too_large(width: int, height: int, limits: Limits) -> str:
    if width * height > limits.max_pixels:
        pixels, limit = width * height / 1e6, limits.max_pixels / 1e6
        return f"image is {width} × {height} = {pixels:.1f} Mpx; the limit is {limit:.1f} Mpx"
    return f"image is {width} × {height} pixels; the limit is {limits.max_width} × {limits.max_height}"


def reduction(stored: tuple[int, int], at_least: tuple[int, int]) -> int:
    """The largest of 8, 4, 2 and 1 by which (width, height) can be divided without falling below ``at_least``.

    These are the sizes that libjpeg's inverse DCT has fast code for; 5/8 or 7/8 cost more than full size.
    """
    for factor in (8, 4, 2):
        if -(-stored[0] // factor) >= at_least[0] and -(-stored[1] // factor) >= at_least[1]:
            return factor
    return 1


def _decode_jpeg(data: memoryview, header: Header, at_least: tuple[int, int] | None) -> Image:
    width, height = header.width, header.height
    scaling: dict[str, int] = {}
    if at_least is not None:
        wide, high = at_least if header.orientation < 5 else (at_least[1], at_least[0])
        factor = reduction((width, height), (wide, high))
        if factor > 1:
            width, height = -(-width // factor), -(-height // factor)
            scaling = {"min_width": width, "min_height": height, "min_factor": factor}
    try:
        image: Image = simplejpeg.decode_jpeg(data, **scaling)
    except ValueError as error:
        raise InvalidFrame(f"JPEG: {error}") from None
    return _of_shape(image, width, height)


def _decode_other(data: memoryview, header: Header) -> Image:
    # OpenCV would apply the orientation of some formats and versions: it is applied in one place for all, here.
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise InvalidFrame(f"{header.format}: the image data are damaged or truncated")
    return _of_shape(image, header.width, header.height)


def _of_shape(image: Image, width: int, height: int) -> Image:
    """A decoder that saw another picture than the header's parser has been tricked."""
    if image.shape != (height, width, 3) or image.dtype != np.uint8:
        raise InvalidFrame(f"the header says {width} × {height} pixels, the image data {image.shape[1::-1]}")
    return image


def _upright(image: Image, orientation: int) -> Image:
    """Undo how the camera was held: TIFF 6.0, tag 274. Returns a new contiguous array."""
    turned: Any = cv2.transpose(image) if orientation >= 5 else image
    # What is left after the transposition is a mirroring: 1 horizontal, 0 vertical, -1 both.
    flip = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    upright: Image = turned if flip is None else cv2.flip(turned, flip)
    return upright
