"""A lane: everything that the gateway knows of one client. A client that reconnects gets another one.

The record is changed by the parts that its fields are grouped by, and by nobody else.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import Protocol

from framelane.preprocess.pool import Job


class Writer(Protocol):
    """The transport of one connection, as ``delivery`` sees it (``doors/writer.py``)."""

    def write(self, packet: bytes) -> bool:
        """Hand a finished packet to the transport.

        Returns False if it could not be taken whole at once. The writer then goes on with it by itself and calls
        ``Delivery.written`` when it has been taken; until then it must not be given another.
        """

    def abort(self) -> None:
        """Cut the connection now, without waiting for a client that does not read."""


class Lane:
    """One client's private path through the server."""

    __slots__ = (
        "admitted",
        "blocked_since",
        "cut",
        "depth",
        "fault_tokens",
        "faults_at",
        "flavour",
        "id",
        "in_work",
        "jobs",
        "last_seq",
        "left",
        "outbox",
        "outbox_bytes",
        "parallel",
        "queued",
        "queues",
        "requests",
        "state",
        "writer",
    )

    def __init__(self, flavour: int, writer: Writer, *, depth: int = 1, queues: bool = False) -> None:
        self.id = secrets.token_urlsafe(12)
        self.flavour = flavour
        self.writer = writer
        # exchange
        self.admitted = True
        self.left = False
        self.last_seq = -1
        self.state = b""
        self.requests: set[int] = set()
        self.fault_tokens = 0.0
        self.faults_at = 0.0
        # mailboxes
        self.jobs: deque[Job] = deque()
        self.depth = depth
        self.queues = queues
        self.parallel = 1
        self.in_work = 0
        self.queued = False
        # delivery
        self.outbox: deque[tuple[bytes, float | None]] = deque()
        self.outbox_bytes = 0
        self.blocked_since: float | None = None
        self.cut = False
