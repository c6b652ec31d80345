"""What clients may ask of the gateway: every bound of its lanes in one frozen record."""

from __future__ import annotations

from typing import Literal

import msgspec

from framelane.server import protocol


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and defaults of lanes and doors.

    Attributes:
        pipeline: name of the pipeline this server runs; a client that asks for another one is refused.
        stateful: whether that pipeline uses ``lane.state`` (``Pipeline.stateful``).
        fairness: what a turn costs a lane: "frames", each the same, or "cost", its measured seconds.
        max_clients: clients served at once; None: as many as the measured capacity lets have ``client_fps`` each.
        client_fps: frames per second that a client is promised when it gets a place.
        waiting_room: clients that may wait for a place; the next ones are refused as `full`.
        grace_s: a client whose connection was lost may come back to its place within this time.
        token: a word that clients must present, or None; signed tokens are ``Passes``'s.
        allowed_origins: origins of pages that may connect; "*" allows all. A page of this very host always may.
        without_origin: whether programs may connect, which send no Origin.
        allowed_hosts: names under which this server may be asked; none means any.
        frames_per_s, bytes_per_s: what one client may send, with a second's worth at once; 0 is no limit.
        excess_burst, excess_per_s: frames beyond that which a client may send before it is cut.
        idle_s: a client with a place that sends nothing for so long loses it; 0 is no limit.
        in_work: frames that workers and slots may hold together; None: as many as keep them busy, by measuring.
        interval_ms: the shortest interval between frames that clients are asked to keep.
        queue_depth: frames that may wait in a lane with the policy "queue".
        parallel: frames of such a lane that may be in the workers, if the pipeline keeps no state.
        mailbox_bytes: bytes of waiting frames, summed over all lanes.
        outbox_messages, outbox_bytes: what may wait for one client that does not read.
        stall_s: a client that reads nothing for so long is cut.
        fault_burst, faults_per_s: bad messages that a client may send before it is cut.
        fatal_frames, fatal_s: frames that end a worker or two slots: a client with so many in this time is cut.
        fatal_pause_s: after the first of them its frames, and connections from its address, are not taken for so long.
        retry_after_ms: when to try again, as far as nothing better is known.
    """

    pipeline: str
    stateful: bool = True
    fairness: Literal["frames", "cost"] = "frames"
    max_clients: int | None = None
    client_fps: float = 10.0
    waiting_room: int = 1000
    grace_s: float = 10.0
    token: str | None = None
    allowed_origins: tuple[str, ...] = ()
    without_origin: bool = True
    allowed_hosts: tuple[str, ...] = ()
    frames_per_s: float = 0.0
    bytes_per_s: float = 0.0
    excess_burst: int = 100
    excess_per_s: float = 20.0
    idle_s: float = 0.0
    max_frame_bytes: int = protocol.MAX_FRAME_BYTES
    deadline_ms: int = protocol.DEADLINE_MS
    window: int = protocol.WINDOW
    in_work: int | None = None
    interval_ms: int = 33
    queue_depth: int = 8
    parallel: int = 2
    mailbox_bytes: int = 64 * 1024 * 1024
    outbox_messages: int = 16
    outbox_bytes: int = 1024 * 1024
    stall_s: float = 5.0
    fault_burst: int = 100
    faults_per_s: float = 20.0
    fatal_frames: int = 3
    fatal_s: float = 60.0
    fatal_pause_s: float = 10.0
    hello_timeout_s: float = protocol.HELLO_TIMEOUT_S
    retry_after_ms: int = 2000
