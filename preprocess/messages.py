"""What Framelane's processes say to each other: one fixed struct of 64 bytes, and nothing else.

Pixels, tensors and results stay in shared memory (``memory.py``); a message only says where they are. Every message
is the same struct, so that one ``recv`` may carry many and a reader needs no framing. Which fields a kind uses:

    kind    from → to          fields
    FRAME   gateway → worker   request, cell, seq, flavour, length (frame bytes), state (bytes), t0 received,
                               t1 deadline, f0 seconds waited in the lane
    CANCEL  gateway → worker   request: its client has left
    CANCEL  worker → slot      request: if it still waits, answer EXPIRED instead of running it
    DONE    worker → gateway   request, cell, status (a Fate), length (packet bytes), state (bytes), f0 preprocess
                               seconds, f1 inference seconds, t0 when it was finished; model (a Blame): it ended slots;
                               and of a result t1 when the worker began, epoch and generation: microseconds of f1 that
                               models ran, and of f0 after the last of them
    RUN     worker → slot      request, cell, model, epoch, status (1: run it alone), t1 deadline
    RAN     slot → worker      request, cell, status (an Outcome), f0 run seconds, f1 seconds waited in the slot
    PEER    gateway → both     cell = peer's id, generation = its incarnation, length = its progress page; descriptors:
                               its socket (and to a slot: the worker's slab, and status = 1 if it does long jobs)
    ROUTES  gateway → both     epoch, request = bit mask of the slot ids that may be used, status = 1: they run on the
                               cores that the workers run on
    ROUTED  worker → gateway   epoch: nothing of an older epoch is in flight any more
    GONE    gateway → worker   cell = slot id, generation: that process has certainly ended; request = what was in work
    QUARANTINE gateway → worker  cell = slot id, generation: that process cannot be killed; keep away from its cells
    READY   both → gateway     length (bytes of its report, see children.py)
    PING    gateway → both     turn your loop: the progress page shows that you live
    STOP    gateway → both     finish what was started, then exit

``request`` is unique for the life of the sender; ``t0`` and ``t1`` are ``time.monotonic()`` seconds, one clock for all
processes of a machine. Python's ``socket`` needs no more than one call per direction for many messages.
"""

from __future__ import annotations

import array
import functools
import socket
import struct
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

_STRUCT = struct.Struct("<BBBBIQQIIIIddff")
SIZE = _STRUCT.size
_READ_BYTES = 64 * SIZE
_ANCILLARY = socket.CMSG_SPACE(8 * array.array("i").itemsize)


class Kind(IntEnum):
    """The first byte of a message."""

    FRAME = 1
    CANCEL = 2
    DONE = 3
    RUN = 4
    RAN = 5
    PEER = 6
    ROUTES = 7
    ROUTED = 8
    GONE = 9
    READY = 10
    STOP = 11
    PING = 12
    QUARANTINE = 13


class Fate(IntEnum):
    """How a frame ended in a worker."""

    OK = 0
    INVALID = 1
    FAILED = 2
    EXPIRED = 3
    LEFT = 4


class Outcome(IntEnum):
    """How a request ended in a slot."""

    OK = 0
    FAILED = 1
    MOVED = 2
    EXPIRED = 3


class Blame(IntEnum):
    """Whether a frame has ended its worker, or two slots.

    SUSPECTED: somebody else may have killed the worker, or the one slot that ended (an operator, the kernel short of
    memory).
    """

    NONE = 0
    CERTAIN = 1
    SUSPECTED = 2


class Message(NamedTuple):
    """One message; the table above says which fields a kind uses."""

    kind: int
    status: int
    flavour: int
    model: int
    cell: int
    request: int
    seq: int
    epoch: int
    generation: int
    length: int
    state: int
    t0: float
    t1: float
    f0: float
    f1: float


def pack(  # noqa: PLR0913
    kind: int,
    *,
    status: int = 0,
    flavour: int = 0,
    model: int = 0,
    cell: int = 0,
    request: int = 0,
    seq: int = 0,
    epoch: int = 0,
    generation: int = 0,
    length: int = 0,
    state: int = 0,
    t0: float = 0.0,
    t1: float = 0.0,
    f0: float = 0.0,
    f1: float = 0.0,
) -> bytes:
    """One message as its 64 bytes."""
    return _pack(kind, status, flavour, model, cell, request, seq, epoch, generation, length, state, t0, t1, f0, f1)


# The four kinds below are sent for every frame: positional packing takes a quarter of the time that `pack` takes.


def pack_frame(  # noqa: PLR0913, PLR0917 - one argument per field of the struct
    request: int,
    cell: int,
    seq: int,
    flavour: int,
    length: int,
    state: int,
    received: float,
    deadline: float,
    f0: float,
) -> bytes:
    """A FRAME."""
    return _pack(Kind.FRAME, 0, flavour, 0, cell, request, seq, 0, 0, length, state, received, deadline, f0, 0.0)


def pack_done(  # noqa: PLR0913, PLR0917 - one argument per field of the struct
    request: int,
    cell: int,
    fate: int,
    length: int,
    state: int,
    preprocess: float,
    inference: float,
    blame: int,
    finished: float,
    began: float = 0.0,
    ran_us: int = 0,
    post_us: int = 0,
) -> bytes:
    """A DONE."""
    return _pack(
        Kind.DONE,
        fate,
        0,
        blame,
        cell,
        request,
        0,
        ran_us,
        post_us,
        length,
        state,
        finished,
        began,
        preprocess,
        inference,
    )


def pack_run(request: int, cell: int, model: int, epoch: int, alone: bool, deadline: float) -> bytes:
    """A RUN."""
    return _pack(Kind.RUN, alone, 0, model, cell, request, 0, epoch, 0, 0, 0, 0.0, deadline, 0.0, 0.0)


def pack_ran(request: int, cell: int, outcome: int, batch: int, seconds: float, waited: float) -> bytes:
    """A RAN."""
    return _pack(Kind.RAN, outcome, 0, 0, cell, request, 0, 0, 0, batch, 0, 0.0, 0.0, seconds, waited)


def unpack(data: bytes) -> list[Message]:
    """The messages in ``data``, whose length is a multiple of 64 bytes."""
    return list(map(_as_message, _STRUCT.iter_unpack(data)))


_pack = _STRUCT.pack
_as_message = functools.partial(tuple.__new__, Message)  # Message._make without its Python frame


class PeerGone(Exception):
    """The process at the other end has closed its socket or ended."""


class PeerStuck(Exception):
    """The process at the other end does not read: its socket is full, which credits make impossible for a live one."""


class Channel:
    """One end of a socketpair between two processes: whole messages in, whole messages out, never blocking.

    Descriptors that came along wait in ``descriptors``, in the order of the messages that announce them.
    """

    __slots__ = ("_rest", "descriptors", "sock")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.descriptors: deque[int] = deque()
        self._rest = b""

    def fileno(self) -> int:
        """The socket's descriptor, for epoll and event loops."""
        return self.sock.fileno()

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one or more packed messages.

        Raises:
            PeerGone: the other process has ended.
            PeerStuck: it has not read its messages for so long that the socket is full.
        """
        try:
            if descriptors:
                sent = socket.send_fds(self.sock, [message], list(descriptors))
            else:
                sent = self.sock.send(message)
        except BlockingIOError:
            raise PeerStuck from None
        except OSError:
            raise PeerGone from None
        if sent != len(message):
            raise PeerStuck

    def receive(self) -> list[Message]:
        """All messages of one read; an empty list when there is nothing to read now.

        Raises:
            PeerGone: end of file, after everything that the other process wrote has been returned.
        """
        try:
            data, ancillary, _flags, _address = self.sock.recvmsg(_READ_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return []
        except OSError:
            raise PeerGone from None
        if ancillary:
            self._keep(ancillary)
        if not data:
            raise PeerGone
        if self._rest or len(data) % SIZE:
            data = self._rest + data
            whole = len(data) - len(data) % SIZE
            data, self._rest = data[:whole], data[whole:]
        return unpack(data)

    def close(self) -> None:
        """Close the socket and any descriptors that nobody took."""
        self.sock.close()
        while self.descriptors:
            socket.close(self.descriptors.popleft())

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self.descriptors.extend(received)


def channel_pair() -> tuple[Channel, socket.socket]:
    """A connected pair: our end as a channel, and the plain socket to hand to another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs
