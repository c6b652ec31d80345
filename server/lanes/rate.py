"""What one client may send: a rate of frames and one of bytes, each with a second's worth at once.

The generic cell rate algorithm (ITU-T I.371): instead of a bucket that is refilled, a moment that each frame moves on
by what it costs, and that may be a second ahead of now. One call per frame, and only where a limit is set.
"""

from __future__ import annotations

from .lane import Lane

_BURST_S = 1.0


class Rate:
    """Two limits on what a lane sends.

    Args:
        frames_per_s: frames, or 0.
        bytes_per_s: bytes of frames, or 0. A frame that is larger than a second's worth goes when nothing else did.
    """

    __slots__ = ("_per_byte", "_per_frame")

    def __init__(self, frames_per_s: float, bytes_per_s: float) -> None:
        self._per_frame = 1 / frames_per_s if frames_per_s else 0.0
        self._per_byte = 1 / bytes_per_s if bytes_per_s else 0.0

    def allows(self, lane: Lane, size: int, now: float) -> bool:
        """Whether a frame of this size may be taken now; only then it counts."""
        frames_at = lane.frames_at if lane.frames_at > now else now
        bytes_at = lane.bytes_at if lane.bytes_at > now else now
        frame_s, bytes_s = self._per_frame, size * self._per_byte
        # Not "does it end within the burst?": now + x - now may be more than x, and refuse the first of all.
        if frames_at - now > (_BURST_S - frame_s if frame_s < _BURST_S else 0.0):
            return False
        if bytes_at - now > (_BURST_S - bytes_s if bytes_s < _BURST_S else 0.0):
            return False
        lane.frames_at, lane.bytes_at = frames_at + frame_s, bytes_at + bytes_s
        return True
