"""Clients of a fleet, as an application would have them: the SDK's, which reconnect by themselves.

Each sends pictures, an interval apart, and notes when it was without service: from the moment in which its connection
was lost, or the server asked it to go elsewhere, until its next result. As soon as it may send again it does, and again
when that picture got no result, so that its own interval makes that time no longer; then it keeps to its old turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from framelane.server.sdk.client import Answer, Client, Result
from framelane.server.sdk.session import Situation
from framelane.server.sdk.states import State

_ENTER_S = 60.0
_AT_ONCE = 32
_ANSWERS_S = 5.0
_GOLDEN = 0.618034  # its multiples lie evenly in an interval, whichever clients a replica has got one after the other


class Outage(NamedTuple):
    """A time without service, in seconds of ``time.monotonic``; ``hint_s`` is the wait that the server asked for."""

    client: int
    began: float
    ended: float
    reason: str
    hint_s: float

    @property
    def beyond_hint_s(self) -> float:
        """Seconds more than the server had asked for."""
        return self.ended - self.began - self.hint_s


class Answered(NamedTuple):
    """What became of one frame: "result", a reason of ``protocol.Drop``, or "lost"."""

    client: int
    at: float
    outcome: str
    round_trip_ms: float


class _One:
    """One client, and its notes."""

    def __init__(self, number: int, url: str, crowd: Crowd) -> None:
        self.client = Client(url, paced=False, on_answer=self._answered, on_situation=self._changed)
        self.since: float | None = None
        self.live = asyncio.Event()
        self.hurry = asyncio.Event()
        self._number = number
        self._crowd = crowd
        self._reason = ""
        self._hint_s = 0.0

    def _answered(self, answer: Answer) -> None:
        now = time.monotonic()
        if isinstance(answer, Result):
            self._crowd.answers.append(Answered(self._number, now, "result", answer.round_trip_ms))
            if self.since is not None and self.client.situation.state is State.LIVE:
                self.end(now)
        else:
            self._crowd.answers.append(Answered(self._number, now, answer.code, 0.0))
            if self.since is not None:
                self.hurry.set()

    def _changed(self, situation: Situation) -> None:
        if situation.state is State.LIVE:
            self.live.set()
        if situation.state not in (State.DRAINING, State.BACKOFF, State.CLOSED) or self._crowd.leaving:
            return
        self.live.clear()
        self.hurry.set()
        if self.since is None:
            self.since, self._reason, self._hint_s = time.monotonic(), situation.reason or "draining", 0.0
        if situation.reason == "draining" and not self._hint_s:
            self._hint_s = (situation.retry_in_ms or 0.0) / 1000

    def end(self, now: float) -> None:
        """Service is back, or will not come."""
        if self.since is not None:
            self._crowd.outages.append(Outage(self._number, self.since, now, self._reason, self._hint_s))
            self.since = None


class Crowd:
    """So many clients at so many frames per second each.

    Args:
        url: of the fleet.
        pictures: client *n* sends ``pictures[n % len(pictures)]``.
        clients, fps: how many, and how often each.

    Attributes:
        answers, outages: in the order in which they were known.
        leaving: whether the clients themselves are about to go.
    """

    def __init__(self, url: str, pictures: Sequence[bytes], clients: int, fps: float) -> None:
        self.answers: list[Answered] = []
        self.outages: list[Outage] = []
        self.leaving = False
        self._url = url
        self._pictures = pictures
        self._count = clients
        self._interval = 1 / fps
        self._ones: list[_One] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._ones = [_One(number, self._url, self) for number in range(self._count)]
        async with asyncio.timeout(_ENTER_S):
            for start in range(0, self._count, _AT_ONCE):
                some = self._ones[start : start + _AT_ONCE]
                for one in some:
                    one.client.connect()
                await asyncio.gather(*[one.client.ready() for one in some])
        self._tasks = [asyncio.create_task(self._send(number, one)) for number, one in enumerate(self._ones)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Send nothing more, wait for the answers that are due, and leave; outages that go on end now."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()
        until = time.monotonic() + _ANSWERS_S
        while any(_owed(one.client) for one in self._ones) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self.leaving = True
        for one in self._ones:
            one.end(time.monotonic())
            one.client.close()
        await asyncio.gather(*[one.client.wait_closed() for one in self._ones])

    # -- what came out -----------------------------------------------------------------------------------------------

    def lanes(self) -> dict[int, str]:
        """The lane that each client has now."""
        found = {number: one.client.terms for number, one in enumerate(self._ones)}
        return {number: terms.lane for number, terms in found.items() if terms is not None}

    def outcomes(self, start: float, end: float, *, without: frozenset[int] = frozenset()) -> Counter[str]:
        """Frames whose fate was known then, by what it was; but for these clients."""
        return Counter(found.outcome for found in self._between(start, end) if found.client not in without)

    def out(self, start: float, end: float) -> list[Outage]:
        """Outages that began then."""
        return [outage for outage in self.outages if start <= outage.began < end]

    def percentile(self, share: float, start: float, end: float, *, without: frozenset[int] = frozenset()) -> float:
        """Milliseconds of the round trips whose result came then."""
        found = sorted(
            each.round_trip_ms
            for each in self._between(start, end)
            if each.outcome == "result" and each.client not in without
        )
        return found[min(len(found) - 1, int(share * len(found)))] if found else float("nan")

    def _between(self, start: float, end: float) -> list[Answered]:
        return [found for found in self.answers if start <= found.at < end]

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, number: int, one: _One) -> None:
        picture = self._pictures[number % len(self._pictures)]
        first = time.monotonic() + self._interval * (number * _GOLDEN % 1)
        await asyncio.sleep(first - time.monotonic())
        while True:
            await one.live.wait()
            one.hurry.clear()
            one.client.send(picture)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(one.hurry.wait(), until_turn(time.monotonic() - first, self._interval))


def until_turn(since_first: float, interval: float) -> float:
    """Seconds to a client's next turn, which is half an interval away at least.

    Turns stay where they were: clients that come back together do not go on sending together.
    """
    return interval * math.ceil(since_first / interval + 0.5) - since_first


def _owed(client: Client) -> int:
    """Frames that have no answer yet."""
    counts = client.counts
    return counts.sent - counts.results - counts.dropped.total() - counts.errors - counts.lost
