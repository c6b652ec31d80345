"""What happened to every frame and every connection, as columns: written while the load runs, read when it is over.

Writing costs the generator five appends per frame; percentiles, shares and time series are worked out afterwards.
Times are seconds of ``time.monotonic``, which all processes of a machine share.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from enum import IntEnum, auto
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from framelane.server.protocol import Drop

OUTCOMES = ("unanswered", "result", *Drop, "error", "lost", "replaced", "waiting", "away")
"""What became of a frame, by its code. Lost: its connection ended first. The last three were never sent: a newer one
came while the client could not send, it waited for a place, or it had no connection."""

UNANSWERED, RESULT = 0, 1
CODES = {name: code for code, name in enumerate(OUTCOMES)}
NOT_SENT = frozenset(CODES[name] for name in ("replaced", "waiting", "away"))


class Happening(IntEnum):
    """What happened to a connection."""

    ATTEMPT = 0
    OPEN = auto()
    READY = auto()
    WAITING = auto()
    REFUSED = auto()
    DRAIN = auto()
    LOST = auto()
    SERVED = auto()
    """The first result after a `ready`."""


class Columns(NamedTuple):
    """Frames as arrays, one value each: times in seconds (answered: not-a-number without an answer), lag in seconds
    between the intended and the real moment, the client's number, and a code of ``OUTCOMES``."""

    intended: npt.NDArray[np.float64]
    answered: npt.NDArray[np.float64]
    lag: npt.NDArray[np.float32]
    client: npt.NDArray[np.uint32]
    outcome: npt.NDArray[np.uint8]

    def between(self, start: float, stop: float) -> Columns:
        """The frames that were meant to be sent in ``[start, stop)``."""
        inside = (self.intended >= start) & (self.intended < stop)
        return Columns._make(column[inside] for column in self)

    def below(self, client: int) -> Columns:
        """The frames of clients with smaller numbers."""
        return Columns._make(column[self.client < client] for column in self)

    @property
    def ages_ms(self) -> npt.NDArray[np.float64]:
        """Milliseconds from the intended moment to the answer."""
        return (self.answered - self.intended) * 1000


class Happenings(NamedTuple):
    """Events of connections as arrays: seconds, the client's number, a ``Happening``."""

    at: npt.NDArray[np.float64]
    client: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint8]

    def of(self, kind: Happening) -> Happenings:
        """Those of one kind."""
        return Happenings._make(column[self.kind == kind] for column in self)

    def between(self, start: float, stop: float) -> Happenings:
        """Those in ``[start, stop)``."""
        inside = (self.at >= start) & (self.at < stop)
        return Happenings._make(column[inside] for column in self)


class Totals(msgspec.Struct):
    """What one generator counted over its whole life, and used while its profile ran."""

    started: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0
    foreign: int = 0
    """Results of other clients: with broadcast, all but one of each."""
    wrong: int = 0
    """Answers to frames that were not outstanding."""
    errors: dict[str, int] = {}


class Records:
    """The writer's side."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._frames = (array("d"), array("d"), array("f"), array("I"), array("B"))
        self._events = (array("d"), array("I"), array("B"))

    def add(self, intended: float, lag: float, client: int) -> int:
        """A frame that is due; returns its number."""
        intended_at, answered_at, lags, clients, outcomes = self._frames
        number = len(intended_at)
        intended_at.append(intended)
        answered_at.append(math.nan)
        lags.append(lag)
        clients.append(client)
        outcomes.append(UNANSWERED)
        return number

    def intended(self, number: int) -> float:
        """When the frame was due."""
        return self._frames[0][number]

    def answer(self, number: int, now: float, outcome: int) -> None:
        """The frame has its answer."""
        self._frames[1][number] = now
        self._frames[4][number] = outcome

    def settle(self, number: int, outcome: int) -> None:
        """The frame has its outcome, without an answer."""
        self._frames[4][number] = outcome

    def happened(self, now: float, client: int, kind: Happening) -> None:
        """Something happened to a connection."""
        at, clients, kinds = self._events
        at.append(now)
        clients.append(client)
        kinds.append(kind)

    def save(self, path: Path) -> None:
        """Write all to a file."""
        columns: dict[str, Any] = {"totals": msgspec.to_builtins(self.totals)}
        columns["frames"] = [column.tobytes() for column in self._frames]
        columns["events"] = [column.tobytes() for column in self._events]
        path.write_bytes(msgspec.msgpack.encode(columns))


class Recorded(NamedTuple):
    """The reader's side: what one generator, or several together, recorded."""

    frames: Columns
    events: Happenings
    totals: Totals

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that ``Records.save`` wrote."""
        found = msgspec.msgpack.decode(path.read_bytes())
        frames = zip(found["frames"], (np.float64, np.float64, np.float32, np.uint32, np.uint8), strict=True)
        events = zip(found["events"], (np.float64, np.uint32, np.uint8), strict=True)
        return cls(
            Columns._make(np.frombuffer(data, kind) for data, kind in frames),
            Happenings._make(np.frombuffer(data, kind) for data, kind in events),
            msgspec.convert(found["totals"], Totals),
        )


def together(parts: Sequence[Recorded]) -> Recorded:
    """Several generators as one. Clients' numbers must not overlap (``Orders.first``)."""
    totals = Totals(started=min(part.totals.started for part in parts))
    for part in parts:
        for name in ("cpu", "received_bytes", "sent_bytes", "foreign", "wrong"):
            setattr(totals, name, getattr(totals, name) + getattr(part.totals, name))
        totals.seconds = max(totals.seconds, part.totals.seconds)
        for code, count in part.totals.errors.items():
            totals.errors[code] = totals.errors.get(code, 0) + count
    return Recorded(
        Columns._make(np.concatenate(columns) for columns in zip(*(part.frames for part in parts), strict=True)),
        Happenings._make(np.concatenate(columns) for columns in zip(*(part.events for part in parts), strict=True)),
        totals,
    )
