"""What a phone's network does to bytes, in a client: latency, jitter, loss and bandwidth. No clock and no I/O here.

A ``Wire`` is one direction of one connection. Above TCP nothing is lost or out of order: a lost packet is sent again
after a retransmission timeout, and everything behind it waits. So loss shows as a stall, which is what users of a lossy
Wi-Fi see. Each connection has wires of its own; a cell that many users share is not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

PACKET_BYTES = 1448
"""What a TCP segment holds on an Ethernet-like path."""
PIECE_BYTES = 6 * PACKET_BYTES
"""Bytes are handed over in pieces of at most this: a phone's frame arrives in several reads of the server, too."""
LEAST_RTO_S = 0.2
"""Linux' ``TCP_RTO_MIN``."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of network.

    Attributes:
        latency_ms: one way; jitter_ms: the standard deviation of what a piece takes longer.
        loss: probability of a packet to be lost.
        up_kbps, down_kbps: kilobits per second; 0: no limit.
    """

    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    up_kbps: float = 0.0
    down_kbps: float = 0.0


LINKS: Final = {
    "good": Link(),
    # Chrome's presets of its network panel: "Slow 3G" is 2,000 ms of delay there, per request; as round trip 400 ms.
    "slow-3g": Link(latency_ms=200, jitter_ms=40, loss=0.001, up_kbps=400, down_kbps=400),
    "4g": Link(latency_ms=35, jitter_ms=12, loss=0.0005, up_kbps=5000, down_kbps=12000),
    "lossy-wifi": Link(latency_ms=5, jitter_ms=15, loss=0.02, up_kbps=10000, down_kbps=20000),
}


class Wire:
    """One direction of one connection.

    Args:
        link: the kind of network.
        kbps: of this direction; 0: no limit.
        uniform, normal: random numbers: from 0 to 1, and standard normal ones.
    """

    def __init__(self, link: Link, kbps: float, uniform: Callable[[], float], normal: Callable[[], float]) -> None:
        self._link = link
        self._seconds_per_byte = 8 / (1000 * kbps) if kbps else 0.0
        self._uniform = uniform
        self._normal = normal
        self._free_at = -math.inf
        self._arrived_at = -math.inf

    @property
    def free_at(self) -> float:
        """When everything handed over so far has left the sender; before that it cannot send more."""
        return self._free_at

    def transmit(self, now: float, size: int) -> list[tuple[float, int]]:
        """When ``size`` bytes handed over now arrive: moments and bytes, in order, not before anything earlier."""
        pieces = []
        at = max(now, self._free_at)
        for start in range(0, size, PIECE_BYTES):
            count = min(PIECE_BYTES, size - start)
            at += count * self._seconds_per_byte
            self._arrived_at = max(self._arrived_at, at + self._delay(math.ceil(count / PACKET_BYTES)))
            pieces.append((self._arrived_at, count))
        self._free_at = at
        return pieces

    def _delay(self, packets: int) -> float:
        link = self._link
        latency = (link.latency_ms + abs(self._normal()) * link.jitter_ms) / 1000
        if link.loss and self._uniform() < 1 - (1 - link.loss) ** packets:
            latency += max(LEAST_RTO_S, 2 * link.latency_ms / 1000)
        return latency
