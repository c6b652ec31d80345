"""A lane: everything that the gateway knows of one client. A client that reconnects gets another one.

The record is changed by the parts that its fields are grouped by, and by nobody else.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable
from typing import Protocol

from framelane.preprocess.pool import Done, Job


class Writer(Protocol):
    """The transport of one connection, as ``delivery`` sees it (``doors/writer.py``)."""

    def write(self, packet: bytes) -> bool:
        """Hand a finished packet to the transport.

        Returns False if it could not be taken whole at once. The writer then goes on with it by itself and calls
        ``Delivery.written`` when it has been taken; until then it must not be given another.
        """

    def close(self, code: int, reason: str) -> None:
        """Close the connection and say why; it is cut if its client does not take part in that."""

    def abort(self) -> None:
        """Cut the connection now, without waiting for a client that does not read."""


class Lane:
    """One client's private path through the server."""

    __slots__ = (
        "active_at",
        "address",
        "admitted",
        "blocked_since",
        "bytes_at",
        "campaign",
        "cost_s",
        "cut",
        "depth",
        "early",
        "expires_at",
        "fatal_at",
        "fault_tokens",
        "faults_at",
        "flavour",
        "frames",
        "frames_at",
        "frames_seen",
        "id",
        "in_work",
        "jobs",
        "last_seq",
        "left",
        "on_room",
        "outbox",
        "outbox_bytes",
        "paced_at",
        "paced_ms",
        "parallel",
        "paused_until",
        "place",
        "queues",
        "requests",
        "reserved_fps",
        "resumes",
        "seq_seen",
        "served",
        "since",
        "started",
        "state",
        "ticket",
        "token",
        "too_fast",
        "too_fast_at",
        "turn",
        "writer",
    )

    def __init__(
        self, flavour: int, writer: Writer, *, depth: int = 1, queues: bool = False, parallel: int = 1
    ) -> None:
        self.id = secrets.token_urlsafe(12)
        self.flavour = flavour
        self.writer = writer
        # exchange
        self.left = False
        self.last_seq = -1
        self.frames = 0
        self.state = b""
        self.requests: set[int] = set()
        self.on_room: Callable[[], None] | None = None
        # rate
        self.frames_at = self.bytes_at = 0.0
        # order
        self.started: deque[int] = deque()
        self.early: dict[int, Done] = {}
        # conduct
        self.fault_tokens = 0.0
        self.faults_at = 0.0
        self.fatal_at: deque[float] = deque()
        self.paused_until = 0.0
        self.address = ""
        # endings
        self.too_fast = self.too_fast_at = 0.0
        self.seq_seen = -2
        self.active_at = 0.0
        # passes
        self.token = ""
        self.campaign = ""
        self.expires_at = math.inf
        # reception
        self.admitted = True
        self.ticket = ""
        self.resumes = False
        self.since: float | None = None
        self.reserved_fps = 0.0
        self.frames_seen = 0
        self.paced_ms = 0
        self.paced_at = 0.0
        # mailboxes
        self.jobs: deque[Job] = deque()
        self.depth = depth
        self.queues = queues
        self.parallel = parallel
        self.in_work = 0
        self.place = 0
        self.turn = 0.0
        self.served = 0
        self.cost_s = 0.0
        # delivery
        self.outbox: deque[tuple[bytes, float | None]] = deque()
        self.outbox_bytes = 0
        self.blocked_since: float | None = None
        self.cut = False
