"""The books of invariant 1: every message that a client sent has exactly one fate.

    received = delivered + dropped (by reason) + refused (by code) + left + slow_reader + inside

``inside`` are the frames that wait, are in the workers, or are being written. The counters are plain integers that
their one owner increments in place, since that happens for every frame; ``/metrics`` reads them when it is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from framelane.preprocess.stages import EDGES_S

_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)  # the preferred numbers R10 of ISO 3
AGE_BUCKETS_S = (*(round(step * 10.0**power, 8) for power in range(-3, 1) for step in _STEPS), 10.0)


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
        queues: frames by seconds in their mailbox, in the buckets of ``stages.EDGES_S`` and one above.
        handovers: results by seconds since their worker finished them, likewise.
        bytes_in, bytes_out: of frames, and of packets that transports have accepted.
        told: packets that were no results: `ready`, `dropped`, `pace` …
    """

    __slots__ = (
        "age_s",
        "ages",
        "bytes_in",
        "bytes_out",
        "connected",
        "cut",
        "delivered",
        "dropped",
        "handover_s",
        "handovers",
        "left",
        "notices_shed",
        "queue_s",
        "queues",
        "received",
        "refused",
        "slow_reader",
        "told",
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
        self.queues = [0] * (len(EDGES_S) + 1)
        self.queue_s = 0.0
        self.handovers = [0] * (len(EDGES_S) + 1)
        self.handover_s = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.told = 0

    def answered(self, age_s: float, handover_s: float) -> None:
        """Enter the times of a result that came within its deadline."""
        self.ages[bisect_left(AGE_BUCKETS_S, age_s)] += 1
        self.age_s += age_s
        self.handovers[bisect_left(EDGES_S, handover_s)] += 1
        self.handover_s += handover_s

    @property
    def inside(self) -> int:
        """Frames that have no fate yet."""
        ended = self.delivered + self.dropped.total() + self.refused.total() + self.left + self.slow_reader
        return self.received - ended
