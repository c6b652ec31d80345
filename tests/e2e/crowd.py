"""Many clients that come and go, each frame signed; what they count is held against the server's books."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.clients import FLAVOURS, Answer, Client, all_of
from e2e.frames import MOST_CONNECTIONS, MOST_FRAMES, is_answer_to, signed
from e2e.servers import PATIENCE_S, Books


@dataclass
class Crowd:
    """Seeded, so that a run can be repeated as far as a network lets it.

    Attributes:
        strangers: answers that belong to somebody else's frame, as text. There must be none.
        sent, results, dropped, unanswered: sums over all connections that have ended.
        connections: how many there were.
    """

    port: int
    seed: int
    flavours: tuple[str, ...] = FLAVOURS
    pause_s: float = 0.03
    strangers: list[str] = field(default_factory=list)
    sent: int = 0
    results: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    connections: int = 0
    cut_off: int = 0

    def __post_init__(self) -> None:
        self._numbers = itertools.cycle(range(MOST_CONNECTIONS))

    async def run(self, clients: int, seconds: float, enough: Callable[[], bool] = lambda: True) -> None:
        """So many clients at once, for so long, and on a slow machine longer, until it is enough."""
        until = time.monotonic() + seconds

        def over() -> bool:
            now = time.monotonic()
            return now > until + PATIENCE_S or (now > until and enough())

        await all_of(*(self._client(number, over) for number in range(clients)))

    async def _client(self, number: int, over: Callable[[], bool]) -> None:
        dice = random.Random(self.seed * 1000 + number)
        flavour = self.flavours[number % len(self.flavours)]
        await asyncio.sleep(dice.random() * 0.5)
        while not over():
            await self._connection(dice, flavour, over)

    async def _connection(self, dice: random.Random, flavour: str, over: Callable[[], bool]) -> None:
        number = next(self._numbers)
        self.connections += 1
        client = Client(self.port, flavour)
        await client.open()
        await client.ready()
        checks: set[asyncio.Task[None]] = set()
        for seq in range(min(dice.randint(1, 30), MOST_FRAMES)):
            data = signed(number, seq, dice.randbytes(dice.choice((0, 40, 3000, 20_000))))
            future = await client.send_frame(seq, data)
            checks.add(asyncio.create_task(self._check(future, number, seq, data)))
            if dice.random() < 0.7:
                await asyncio.wait([future], timeout=10)
            await asyncio.sleep(dice.random() * self.pause_s)
            if client.closed.is_set() or over():
                break
        await self._leave(client, dice.random())
        await asyncio.wait(checks)
        self._count(client, number)

    async def _leave(self, client: Client, chance: float) -> None:
        """Some wait for what they have sent, some say goodbye in the middle of it, some are just gone."""
        if chance < 0.3:
            await client.all_answered()
        if chance < 0.6:
            await client.close()
        else:
            await client.abort()

    async def _check(self, future: asyncio.Future[Answer], connection: int, seq: int, data: bytes) -> None:
        try:
            answer = await future
        except asyncio.CancelledError:
            return
        if answer.name == "result" and not is_answer_to(answer.fields, connection, seq, data):
            self.strangers.append(f"connection {connection}, frame {seq} got {answer.fields}")

    def _count(self, client: Client, number: int) -> None:
        self.strangers += [f"connection {number} got {stray}" for stray in client.strays]
        assert not client.complaints, client.complaints
        self.sent += client.sent
        self.results += client.results
        self.dropped += client.dropped
        self.unanswered += client.unanswered
        self.cut_off += client.unanswered > 0

    def assert_books(self, books: Books) -> None:
        """Both sides add up, and agree on all but what was under way when a connection ended."""
        assert self.sent == self.results + self.dropped.total() + self.unanswered
        assert books.received == books.ended
        assert books.inside == 0
        assert not books.refused
        assert books.shed == 0
        lost_at_the_door = self.sent - books.received
        unread = books.delivered - self.results + (books.dropped - self.dropped).total()
        assert lost_at_the_door >= 0
        assert books.delivered >= self.results
        assert books.dropped >= self.dropped
        assert lost_at_the_door + books.left + unread == self.unanswered
