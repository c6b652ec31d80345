"""Whether the way to the other replicas works: decided by hearing one's own beats. No I/O, no clock.

A listener can die without an error: the connection is open, and nothing comes any more. So every beat that is sent has
to be heard, too, within ``SILENCE_S``; otherwise both connections are made anew.
"""

from __future__ import annotations

BEAT_S = 1.0
SILENCE_S = 3.0


class Pulse:
    """One replica's way to the others and back."""

    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._since = 0.0
        self.breaks = 0

    def connected(self, now: float) -> None:
        """Connections were made: the first beat is due to be heard."""
        self._since = now
        self._heard_at = None

    def heard(self, now: float) -> None:
        """One's own beat has come back."""
        self._heard_at = now

    def lost(self) -> None:
        """The connections are gone."""
        self.breaks += self._heard_at is not None
        self._heard_at = None

    def works(self, now: float) -> bool:
        """Whether a beat has come back lately."""
        return self._heard_at is not None and now - self._heard_at <= SILENCE_S

    def is_dead(self, now: float) -> bool:
        """Whether the connections, open as they may be, should be given up."""
        last = self._since if self._heard_at is None else self._heard_at
        return now - last > SILENCE_S
