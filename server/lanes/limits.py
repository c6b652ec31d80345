"""What clients may ask of the gateway: every bound of its lanes in one frozen record."""

from __future__ import annotations

import msgspec

from framelane.server import protocol


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and defaults of lanes and doors.

    Attributes:
        pipeline: name of the pipeline this server runs; a client that asks for another one is refused.
        stateful: whether that pipeline uses ``lane.state`` (``Pipeline.stateful``).
        max_clients: connections at once; the next ones are refused as `full`.
        token: what clients must present, or None if anyone may come in.
        allowed_origins: origins of pages that may connect; "*" allows all. A page of this very host always may.
        interval_ms: the interval between frames that `ready` suggests.
        queue_depth: frames that may wait in a lane with the policy "queue".
        mailbox_bytes: bytes of waiting frames, summed over all lanes.
        outbox_messages, outbox_bytes: what may wait for one client that does not read.
        stall_s: a client that reads nothing for so long is cut.
        fault_burst, faults_per_s: bad messages that a client may send before it is cut.
    """

    pipeline: str
    stateful: bool = True
    max_clients: int = 1000
    token: str | None = None
    allowed_origins: tuple[str, ...] = ()
    max_frame_bytes: int = protocol.MAX_FRAME_BYTES
    deadline_ms: int = protocol.DEADLINE_MS
    window: int = protocol.WINDOW
    interval_ms: int = 33
    queue_depth: int = 8
    mailbox_bytes: int = 64 * 1024 * 1024
    outbox_messages: int = 16
    outbox_bytes: int = 1024 * 1024
    stall_s: float = 5.0
    fault_burst: int = 100
    faults_per_s: float = 20.0
    hello_timeout_s: float = protocol.HELLO_TIMEOUT_S
    retry_after_ms: int = 2000
