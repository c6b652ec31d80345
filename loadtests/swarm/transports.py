"""The lean transport: one websocket on the event loop that Locust's greenlets run on, without a greenlet of its own.

A callback of the loop reads, another one writes what the kernel did not take at once. That is what makes 800 users
cheap: a frame costs one turn of the metronome, one system call out and one in, and no switch between greenlets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import gevent
import msgspec
from gevent.hub import get_hub

from framelane.loadtests import rfc6455
from framelane.loadtests.overload.links import Broken, Link

from . import network
from .doors import DOORS, Door, Heard, Picture
from .metronome import Metronome
from .streams import Stream

_READ, _WRITE = 1, 2
_BUFFER = bytearray(1 << 18)
"""Read into and copied from within one callback, so that one serves all connections of a process."""
_DEAF_BUFFER = 4096


class LeanTransport:
    """See the module.

    Args:
        stream: whose messages these are.
        door: "ws" or "socketio".
        address: host and port.
        deaf: never read once the server has greeted.
    """

    def __init__(self, stream: Stream, door: str, address: tuple[str, int], *, deaf: bool = False) -> None:
        self._stream = stream
        self._door_name = door
        self._address = address
        self._deaf = deaf
        self._resume = ""
        self._door: Door = DOORS[door]()
        self._link: Link | None = None
        self._reader: Any = None
        self._writer: Any = None

    @property
    def is_open(self) -> bool:
        """See ``Transport``."""
        return self._link is not None

    @property
    def busy(self) -> bool:
        """See ``Transport``."""
        return self._link is None or bool(self._link.unsent)

    def open(self, resume: str) -> None:
        """See ``Transport``."""
        self._resume = resume
        self._door = DOORS[self._door_name]()
        link = Link(self._address, _DEAF_BUFFER if self._deaf else 0, self._door.path, self._door.subprotocol)
        self._link = link
        loop = get_hub().loop
        self._reader = loop.io(link.fileno, _READ)
        self._writer = loop.io(link.fileno, _WRITE)
        self._writer.start(self._connected)
        try:
            link.connect()
        except Broken as error:
            self._lost(str(error))

    def send(self, picture: Picture, seq: int) -> None:
        """See ``Transport``."""
        self._write(self._door.frame(picture, seq))

    def close(self) -> None:
        """See ``Transport``."""
        link, self._link = self._link, None
        if link is None:
            return
        for watcher in (self._reader, self._writer):
            watcher.stop()
            watcher.close()
        link.close()

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def _connected(self) -> None:
        link = self._link
        assert link is not None
        self._writer.stop()
        try:
            link.upgrade()
        except Broken as error:
            self._lost(str(error))
            return
        self._reader.start(self._readable)

    def _readable(self) -> None:
        link = self._link
        assert link is not None
        try:
            link.receive(_BUFFER)
            self._take(link)
        except (Broken, msgspec.MsgspecError, ValueError) as error:
            self._lost(str(error))

    def _take(self, link: Link) -> None:
        """Deal with the whole messages that have come. Raises Broken and what ``Door.hear`` raises."""
        upgraded = link.upgraded
        for message in link.messages():
            if not upgraded:
                upgraded = self._opened(link)
            if message.opcode == rfc6455.CLOSE:
                raise Broken(f"closed by the server: {_reason(message.payload)}")
            heard = self._door.hear(message)
            if isinstance(heard, Heard):
                self._stream.hear(heard, time.monotonic())
            elif heard is not None:
                self._write((heard.data,))
            if self._link is not link:
                return
        if link.upgraded and not upgraded:
            self._opened(link)
        if self._deaf and self._stream.is_live:
            self._reader.stop()

    def _opened(self, link: Link) -> bool:
        self._stream.opened(time.monotonic())
        greeting = self._door.greeting(self._resume)
        if greeting:
            self._write((greeting,))
        return True

    def _write(self, pieces: Any) -> None:
        link = self._link
        if link is None:
            return
        try:
            link.send(pieces)
        except Broken as error:
            gevent.get_hub().loop.run_callback(self._lost, str(error))  # its caller is in the middle of a decision
            return
        if link.unsent:
            self._writer.start(self._writable)

    def _writable(self) -> None:
        link = self._link
        assert link is not None
        try:
            done = link.flush()
        except Broken as error:
            self._lost(str(error))
            return
        if done:
            self._writer.stop()
            self._stream.writable(time.monotonic())

    def _lost(self, reason: str) -> None:
        if self._link is not None:
            self.close()
            self._stream.lost(time.monotonic(), reason)


class ShapedTransport(LeanTransport):
    """A lean transport over a phone's network: bytes leave and arrive when they would there (``network.py``).

    What is late on the way in is left in the kernel while the wire is busy, so that the server sees a slow reader.
    """

    def __init__(self, stream: Stream, door: str, address: tuple[str, int], link: str, metronome: Metronome) -> None:
        super().__init__(stream, door, address)
        kind = network.LINKS[link]
        draw = random.Random(stream.user.number)
        self._metronome = metronome
        self._kind = kind
        self._draw = draw
        self._out = self._in = network.Wire(kind, 0, draw.random, lambda: draw.gauss(0, 1))
        self._on_the_way = 0

    @property
    def busy(self) -> bool:
        """See ``Transport``."""
        return self._on_the_way > 0 or super().busy

    def open(self, resume: str) -> None:
        """See ``Transport``."""
        kind, draw = self._kind, self._draw
        self._out = network.Wire(kind, kind.up_kbps, draw.random, lambda: draw.gauss(0, 1))
        self._in = network.Wire(kind, kind.down_kbps, draw.random, lambda: draw.gauss(0, 1))
        self._on_the_way = 0
        super().open(resume)

    def _write(self, pieces: Any) -> None:
        link, data = self._link, b"".join(pieces)
        start = 0
        for at, count in self._out.transmit(time.monotonic(), len(data)):
            piece = data[start : start + count]
            start += count
            self._on_the_way += count
            self._metronome.at(at, self._leaving(link, piece))

    def _leaving(self, link: Link | None, piece: bytes) -> Callable[[float], None]:
        return lambda _when: self._leave(link, piece)

    def _leave(self, link: Link | None, piece: bytes) -> None:
        """A piece has come to the end of the wire: into the kernel with it."""
        if link is None or self._link is not link:
            return
        self._on_the_way -= len(piece)
        super()._write((piece,))
        if not self._on_the_way and not link.unsent:
            self._stream.writable(time.monotonic())

    def _readable(self) -> None:
        link = self._link
        assert link is not None
        buffer = bytearray(network.PIECE_BYTES)
        try:
            count = link.socket.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(str(error))
            return
        if not count:
            self._lost("the server closed the connection")
            return
        self._reader.stop()
        ((at, _count),) = self._in.transmit(time.monotonic(), count)
        data = bytes(buffer[:count])
        self._metronome.at(at, lambda _when: self._arrive(link, data))
        self._metronome.at(self._in.free_at, lambda _when: self._read_on(link))

    def _arrive(self, link: Link, data: bytes) -> None:
        if self._link is not link:
            return
        link.feed(data)
        try:
            self._take(link)
        except (Broken, msgspec.MsgspecError, ValueError) as error:
            self._lost(str(error))

    def _read_on(self, link: Link) -> None:
        if self._link is link:
            self._reader.start(self._readable)


def _reason(payload: bytes) -> str:
    """Code and reason of a close frame, for people."""
    code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
    return f"{code} {payload[2:].decode('utf-8', 'replace')}".strip()
