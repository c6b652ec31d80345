"""The books of invariant 1: every message that a client sent has exactly one fate.

    received = delivered + dropped (by reason) + refused (by code) + left + slow_reader + inside

``inside`` are the frames that wait, are in the workers, or are being written. The counters are plain integers that
their one owner increments in place, since that happens for every frame; ``/metrics`` reads them when it is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

AGE_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0)


class Accounts:
    """Counters since the start. Keys of the tables are the words of the wire protocol.

    Attributes:
        received: messages after `ready`: frames, and whatever else a client sends.
        delivered: results that the transport has accepted.
        dropped: frames without a result, by ``protocol.Drop``; each was announced with `dropped`.
        refused: messages that were no frame, by ``protocol.Fault``; each was answered with `error`.
        left: frames whose client went before its answer.
        slow_reader: results shed since their client does not read.
        notices_shed: `dropped`, `error` and acks that such a client missed; the fates are in the books all the same.
        connected: connections that became a lane.
        turned_away: connections that did not, by ``protocol.Refusal``.
        cut: connections that the server ended, by reason.
        ages: results by seconds since their frame was received, in the buckets of ``AGE_BUCKETS_S`` and one above.
    """

    __slots__ = (
        "age_s",
        "ages",
        "connected",
        "cut",
        "delivered",
        "dropped",
        "inference_s",
        "left",
        "notices_shed",
        "preprocess_s",
        "queue_s",
        "received",
        "refused",
        "slow_reader",
        "turned_away",
    )

    def __init__(self) -> None:
        self.received = 0
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.left = 0
        self.slow_reader = 0
        self.notices_shed = 0
        self.connected = 0
        self.turned_away: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self.ages = [0] * (len(AGE_BUCKETS_S) + 1)
        self.age_s = 0.0
        self.queue_s = 0.0
        self.preprocess_s = 0.0
        self.inference_s = 0.0

    def answered(self, age_s: float, preprocess_s: float, inference_s: float) -> None:
        """Enter the times of a result that came within its deadline."""
        self.ages[bisect_left(AGE_BUCKETS_S, age_s)] += 1
        self.age_s += age_s
        self.preprocess_s += preprocess_s
        self.inference_s += inference_s

    @property
    def inside(self) -> int:
        """Frames that have no fate yet."""
        ended = self.delivered + self.dropped.total() + self.refused.total() + self.left + self.slow_reader
        return self.received - ended
