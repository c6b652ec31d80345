"""Pictures whose answers tell whose they are: each has a grey of its own, which ``Sharpness`` answers as brightness."""

from __future__ import annotations

from typing import Any

import numpy as np
import simplejpeg

_FIRST, _STEP = 20, 15


def grey(number: int) -> int:
    """The grey of client *number*."""
    return _FIRST + _STEP * (number % 15)


def told_apart(count: int, width: int = 320, height: int = 240) -> list[bytes]:
    """One JPEG per client, in its own grey."""
    return [plain(grey(number), width, height) for number in range(count)]


def plain(value: int, width: int, height: int) -> bytes:
    """A JPEG of one grey."""
    data: bytes = simplejpeg.encode_jpeg(np.full((height, width, 3), value, np.uint8), quality=90)
    return data


def is_right(client: int, fields: dict[str, Any]) -> bool:
    """Whether an answer of ``Sharpness`` belongs to the picture of this client."""
    return bool(abs(fields["brightness"] - grey(client)) < _STEP / 3)
