"""Records when clients sent and how much, so that a load test can replay it: no pictures, no addresses, no names.

    {"v":1,"door":"ws","start_ms":1200,"seconds":63.2,"at_ms":[0,1333,…],"bytes":[34211,33980,…]}

One JSON line per session, written when it ends, by a thread, so that a slow disk costs the event loop nothing. It is
off unless ``--record`` names a file, and then costs one Python call per frame. Everything is bounded: sessions at once,
frames of a session, lines that wait for the disk, the file. What does not fit is counted, and said at the end.
``framelane swarm --replay`` reads it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from array import array
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from framelane.preprocess.packets import Flavour
from framelane.server.config import ConfigError
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane, Writer
from framelane.server.protocol import Hello

log = logging.getLogger(__name__)

MOST_SESSIONS = 1000
MOST_FRAMES = 10_000
MOST_LINES = 1000
MOST_BYTES = 256 * 2**20
_DOORS = {Flavour.WEBSOCKET: "ws", Flavour.SOCKETIO: "socketio", Flavour.SOCKETIO_MSGPACK: "socketio-msgpack"}
_JOIN_S = 2.0


class Recorder:
    """The file, and the thread that writes it.

    Args:
        path: appended to; only its owner may read it.

    Attributes:
        missed: sessions that did not fit the bounds.
    """

    def __init__(self, path: Path) -> None:
        self.missed = 0
        self._path = path
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the file, and begin to write.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")
        except OSError as error:
            raise ConfigError(f"record = {str(self._path)!r}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._write, args=(file,), name="recorder", daemon=True)
        self._thread.start()

    def add(self, line: dict[str, Any]) -> None:
        """Write a line some time soon."""
        if self._lines.qsize() >= MOST_LINES:
            self.missed += 1
        else:
            self._lines.put(line)

    def stop(self) -> None:
        """Write what waits, and close the file."""
        self._lines.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        if self.missed:
            log.warning("%d sessions were not recorded: too many at once, or %s is full", self.missed, self._path)

    def _write(self, file: BinaryIO) -> None:
        with file:
            size = file.tell()
            while (line := self._lines.get()) is not None:
                data = msgspec.json.encode(line) + b"\n"
                if size + len(data) > MOST_BYTES:
                    self.missed += 1
                    continue
                size += len(data)
                try:
                    file.write(data)
                    file.flush()
                except OSError as error:
                    self.missed += 1
                    log.warning("a session could not be recorded: %s", error)


class _Notes(NamedTuple):
    """Of one session: when it began, and for each frame milliseconds since then and its bytes, in turn."""

    began: float
    frames: array[int]


class RecordedExchange(Exchange):
    """An exchange that writes down what comes in.

    Args:
        recorder: where to.
        rest: as ``Exchange``.
    """

    __slots__ = ("_began", "_notes", "_recorder")

    def __init__(self, recorder: Recorder, *rest: Any, **more: Any) -> None:
        super().__init__(*rest, **more)
        self._recorder = recorder
        self._notes: dict[Lane, _Notes] = {}
        self._began = self._clock()

    def admit(self, hello: Hello, flavour: int, writer: Writer, *, may_wait: bool = True, address: str = "") -> Lane:
        """As ``Exchange.admit``. A lane that lives for one frame (/v1/infer) is no session."""
        lane = super().admit(hello, flavour, writer, may_wait=may_wait, address=address)
        if not lane.ticket:
            return lane
        if len(self._notes) < MOST_SESSIONS:
            self._notes[lane] = _Notes(self._clock(), array("I"))
        else:
            self._recorder.missed += 1
        return lane

    def frame(self, lane: Lane, seq: int, data: bytes | memoryview) -> bool:
        """As ``Exchange.frame``."""
        notes = self._notes.get(lane)
        if notes is not None and len(notes.frames) < 2 * MOST_FRAMES:
            notes.frames.extend((int(1000 * (self._clock() - notes.began)), len(data)))
        return super().frame(lane, seq, data)

    def disconnect(self, lane: Lane, *, lost: bool = False) -> None:
        """As ``Exchange.disconnect``."""
        notes = self._notes.pop(lane, None)
        if notes is not None and notes.frames:
            self._recorder.add(
                {
                    "v": 1,
                    "door": _DOORS.get(Flavour(lane.flavour), "?"),
                    "start_ms": int(1000 * (notes.began - self._began)),
                    "seconds": round(self._clock() - notes.began, 3),
                    "at_ms": notes.frames[::2].tolist(),
                    "bytes": notes.frames[1::2].tolist(),
                }
            )
        super().disconnect(lane, lost=lost)
