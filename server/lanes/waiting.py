"""The waiting room: who gets the next place, in the order in which they came.

A client is known by its ticket. If its connection is lost, its position is kept for a while, without a claim to a
place that becomes free meanwhile: whoever is next and present gets that. Entries that are gone leave a gap in the line
until it is closed up, so that every step is cheap however many wait; positions are told in sweeps of bounded length.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable

from .lane import Lane

_GAPS = 64


class Entry:
    """One who waits. `lane` is None while its connection is lost."""

    __slots__ = ("index", "lane", "since", "ticket", "told", "told_at", "until")

    def __init__(self, ticket: str, lane: Lane, index: int, since: float) -> None:
        self.ticket = ticket
        self.lane: Lane | None = lane
        self.index = index
        self.since = since
        self.until = 0.0
        self.told = 0
        self.told_at = 0.0


class WaitingRoom:
    """Who waits, first come first.

    Args:
        most: how many may wait, those included whose connection is lost.
        grace_s: how long a lost connection keeps its position.
    """

    def __init__(self, most: int, grace_s: float) -> None:
        self._most = most
        self._grace_s = grace_s
        self._line: list[Entry | None] = []
        self._first = 0  # nobody before this index
        self._entries: dict[str, Entry] = {}
        self._away: deque[tuple[float, Entry]] = deque()  # until when; some of them may have come back
        self._present = 0
        self._swept = 0
        self._swept_before = 0  # entries before `_swept`

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def present(self) -> int:
        """How many would take a place now."""
        return self._present

    @property
    def full(self) -> bool:
        """Whether nobody new should enter."""
        return len(self._entries) >= self._most

    def enter(self, lane: Lane, now: float, since: float | None = None) -> int:
        """Take a client in at the end, or back in where it was, by its lane's ticket. Returns its position.

        A client that has waited elsewhere `since` an earlier time goes before those who came later.
        """
        entry = self._entries.get(lane.ticket)
        if entry is None:
            entry = Entry(lane.ticket, lane, len(self._line), now if since is None else min(since, now))
            self._entries[lane.ticket] = entry
            self._present += 1
            self._line.append(entry)
            entry.told = len(self._entries) if since is None else self._move_up(entry)
        else:
            self._present += entry.lane is None
            entry.lane = lane
        entry.told_at = now
        return entry.told

    def leave(self, lane: Lane, now: float, *, lost: bool) -> None:
        """A client has gone. If its connection was only `lost`, its position is kept for a while."""
        entry = self._entries.get(lane.ticket)
        if entry is None or entry.lane is not lane:
            return
        entry.lane = None
        self._present -= 1
        if lost and self._grace_s > 0:
            entry.until = now + self._grace_s
            self._away.append((entry.until, entry))
        else:
            self._remove(entry)

    def knows(self, ticket: str) -> bool:
        """Whether this ticket has a position here."""
        return ticket in self._entries

    def take(self) -> Lane | None:
        """The next client that is present; it waits no more."""
        if not self._present:
            return None
        index = self._first
        while True:
            entry = self._line[index]
            if entry is not None and entry.lane is not None:
                break
            index += 1
        lane = entry.lane
        self._present -= 1
        self._remove(entry)
        return lane

    def expire(self, now: float) -> None:
        """Forget those who have not come back in time."""
        while self._away and self._away[0][0] <= now:
            until, entry = self._away.popleft()
            if entry.lane is None and entry.until == until and self._entries.get(entry.ticket) is entry:
                self._remove(entry)

    def news(
        self, now: float, most: int, every_s: float, ahead: Callable[[float, float], int] = lambda _since, _now: 0
    ) -> list[tuple[Lane, int]]:
        """Who should hear a new position: a sweep that goes on where the last one stopped.

        Args:
            now: the time.
            most: how many entries to look at.
            every_s: nobody is told more often.
            ahead: how many wait elsewhere who came before a time.
        """
        told = []
        for _ in range(min(most, len(self._line) - self._first)):
            if self._swept >= len(self._line):
                self._swept, self._swept_before = self._first, 0
            entry = self._line[self._swept]
            self._swept += 1
            if entry is None:
                continue
            self._swept_before += 1
            position = self._swept_before + ahead(entry.since, now)
            if position != entry.told and entry.lane is not None and now - entry.told_at >= every_s:
                entry.told, entry.told_at = position, now
                told.append((entry.lane, position))
        return told

    def since(self, lane: Lane) -> float | None:
        """Since when this client has waited; None if it does not."""
        entry = self._entries.get(lane.ticket)
        return None if entry is None else entry.since

    def oldest(self, most: int) -> list[float]:
        """Since when the first so many have waited who would take a place now."""
        present = (entry.since for entry in self._line[self._first :] if entry is not None and entry.lane is not None)
        return list(itertools.islice(present, most))

    def _move_up(self, entry: Entry) -> int:
        """Put the last one where its time belongs. Rare, and may cost as much as the line is long."""
        self._close_up()
        self._line.pop()
        index = bisect.bisect_right([other.since for other in self._line if other is not None], entry.since)
        self._line.insert(index, entry)
        self._swept_before += index < self._swept
        self._close_up()
        self._swept = self._swept_before
        return index + 1

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.ticket]
        self._line[entry.index] = None
        self._swept_before -= entry.index < self._swept
        while self._first < len(self._line) and self._line[self._first] is None:
            self._first += 1
        self._swept = max(self._swept, self._first)
        if len(self._line) > 2 * len(self._entries) + _GAPS:
            self._close_up()

    def _close_up(self) -> None:
        self._line = [entry for entry in self._line if entry is not None]
        for index, entry in enumerate(self._line):
            assert entry is not None
            entry.index = index
        self._first = 0
        self._swept = self._swept_before
