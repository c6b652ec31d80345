"""A steady load: clients of /ws that send a frame at fixed times, and know what became of each of theirs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from framelane.server.protocol import SUBPROTOCOL, WEBSOCKET_PATH

RESULT = "result"
UNANSWERED = "unanswered"
SUPERSEDED = "superseded"
"""A newer frame took its place, which is a client's own doing where all are waiting: not lost by a fault."""
_WINDOW = 2
_QUIET_S = 3.0
_ENTER_S = 60.0
_SILENCE_S = 0.2
_AGAIN_S = 0.1


class Fate(NamedTuple):
    """One frame: when it was sent, when its fate was known, and what that was. Seconds of ``time.monotonic``."""

    client: int
    sent: float
    known: float
    outcome: str


class Load:
    """So many clients at so many frames per second each.

    Args:
        port: of the server, on this machine.
        pictures: client *n* sends ``pictures[n % len(pictures)]``.
        clients, fps: how many, and how often each.
        right: whether a result is the answer to the picture of this client.
        address: where they call from.
        returns: whether they come back, at once, when their connection has ended or is refused.

    Attributes:
        fates: of all frames, in the order in which they were known.
        wrong: results that were somebody else's.
        lost_connections: connections that ended before ``stop``.
    """

    def __init__(
        self,
        port: int,
        pictures: Sequence[bytes],
        clients: int = 16,
        fps: float = 8.0,
        right: Callable[[int, dict[str, Any]], bool] = lambda _client, _fields: True,
        address: str = "127.0.0.1",
        returns: bool = False,
    ) -> None:
        self.fates: list[Fate] = []
        self.wrong = 0
        self.lost_connections = 0
        self._port = port
        self._pictures = pictures
        self._count = clients
        self._interval = 1 / fps
        self._right = right
        self._address = address
        self._returns = returns
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(_ENTER_S):
            sockets = [await self._enter() for _ in range(self._count)]
        self._tasks = [asyncio.create_task(self._client(number, ws)) for number, ws in enumerate(sockets)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Send nothing more, wait for the answers that are due, and leave."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    # -- what came out -----------------------------------------------------------------------------------------------

    def between(self, start: float, end: float) -> list[Fate]:
        """Fates of the frames that were sent then."""
        return [fate for fate in self.fates if start <= fate.sent < end]

    def goodput(self, start: float, end: float) -> float:
        """Results per second that came then."""
        return sum(fate.outcome == RESULT and start <= fate.known < end for fate in self.fates) / (end - start)

    def lost(self, start: float, end: float, but: Sequence[str] = ()) -> Counter[str]:
        """Frames sent then that got no result, by reason; ``but`` are reasons that do not count."""
        return Counter(fate.outcome for fate in self.between(start, end) if fate.outcome not in (RESULT, *but))

    def percentile(self, share: float, start: float, end: float) -> float:
        """Milliseconds from sending to the result, of the frames sent then."""
        found = sorted(fate.known - fate.sent for fate in self.between(start, end) if fate.outcome == RESULT)
        return found[min(len(found) - 1, int(share * len(found)))] * 1000 if found else float("nan")

    def recovered(self, fault: float, end: float) -> float:
        """Seconds from a fault until results came as before: the end of the last silence; 0 without any."""
        times = [
            fault,
            *sorted(fate.known for fate in self.fates if fate.outcome == RESULT and fault < fate.known < end),
        ]
        silences = [after for before, after in itertools.pairwise(times) if after - before > _SILENCE_S]
        return max(silences, default=fault) - fault

    # -- one client --------------------------------------------------------------------------------------------------

    async def _enter(self) -> ClientConnection:
        ws = await connect(
            f"ws://127.0.0.1:{self._port}{WEBSOCKET_PATH}",
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            compression=None,
            max_size=None,
            ping_interval=None,
            local_addr=(self._address, 0),
        )
        await ws.send(msgspec.msgpack.encode(["hello", {}]))
        while msgspec.msgpack.decode(await ws.recv(decode=False))[0] != "ready":
            pass
        return ws

    async def _client(self, number: int, ws: ClientConnection) -> None:
        await self._converse(number, ws)
        while self._returns and not self._stopping:
            await asyncio.sleep(_AGAIN_S)
            with contextlib.suppress(ConnectionClosed):
                await self._converse(number, await self._enter())

    async def _converse(self, number: int, ws: ClientConnection) -> None:
        waiting: dict[int, float] = {}
        reading = asyncio.create_task(self._read(number, ws, waiting))
        picture = self._pictures[number % len(self._pictures)]
        due, seq = time.monotonic() + self._interval * number / self._count, 0
        while not self._stopping and not reading.done():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + self._interval, time.monotonic() - self._interval)
            if len(waiting) < _WINDOW:
                waiting[seq] = time.monotonic()
                with contextlib.suppress(ConnectionClosed):
                    await ws.send(msgspec.msgpack.encode(["frame", seq, picture]))
                seq += 1
        until = time.monotonic() + _QUIET_S
        while waiting and not reading.done() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self.lost_connections += reading.done()
        await ws.close()
        await reading
        now = time.monotonic()
        self.fates += [Fate(number, sent, now, UNANSWERED) for sent in waiting.values()]

    async def _read(self, number: int, ws: ClientConnection, waiting: dict[int, float]) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                name, fields, *_ = msgspec.msgpack.decode(await ws.recv(decode=False))
                if name not in (RESULT, "dropped") or fields["seq"] not in waiting:
                    continue
                outcome = RESULT if name == RESULT else str(fields["reason"])
                if name == RESULT and not self._right(number, fields):
                    self.wrong += 1
                self.fates.append(Fate(number, waiting.pop(fields["seq"]), time.monotonic(), outcome))
