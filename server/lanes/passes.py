"""Who may come in at all: nobody is asked, everybody needs one word, or each needs a signed token of its own.

A signed token is worth one connection. Its id (`jti`) is *spent* by the lane that it opens, and bound to the ticket
which that lane's client, and nobody else, is given (``Waiting.ticket``). From then on until the token expires:

    who shows it               with                       is
    a new connection           that ticket (`resume`)     the same client, back after its connection was lost: let in
    a new connection           no ticket, or another      a replay: refused
    the live connection        `renew`                    the same client: nothing changes
    a request over HTTP        –                          a lane of its own has no ticket: refused after the first

So a token that was read from a log, a proxy or somebody's screen opens nothing, since the ticket went over the
connection only; and a client whose network changes comes back with the token it has. A client that loses its connection
before it was given its ticket needs another token. What is kept are digests, until their tokens expire, five minutes at
most, and only of tokens that were found good: nobody but the issuer can fill this memory, and when it is full new
tokens are refused, none forgotten.

Replicas that share a Redis tell each other of spent tokens (``Abroad.spent``, ``elsewhere``), so the table holds for
all of them. A message takes milliseconds: a token that is shown to two replicas within them opens a lane at both. And
what was spent while Redis was away, or before a replica started, is not told again: for what is left of its minutes
such a token is a new one there. Without Redis each replica knows its own tokens only.

A token's end is its connection's end. Until then the client may `renew` with another token of the same campaign.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from heapq import heappop, heappush

from framelane.server.errors import Refused
from framelane.server.protocol import Refusal

from .abroad import Abroad, digest
from .lane import Lane
from .tokens import MAX_LIFE_S, Pass, Tokens

MOST_SPENT = 200_000
"""Tokens remembered; 60 MiB at most. So many connections in five minutes are 660 a second."""
_RETRY_MS = 5_000


class Passes:
    """Checks what clients show, and remembers what was shown.

    Args:
        word: what everybody must show, or None.
        tokens: what verifies signed tokens, or None; with both, either is enough.
        wall: Unix time.

    Attributes:
        abroad: other replicas, which are told.
        tokens: see above.
    """

    def __init__(self, word: str | None, tokens: Tokens | None, wall: Callable[[], float]) -> None:
        self._word = word
        self._wall = wall
        self._spent: dict[bytes, bytes] = {}  # token → ticket of the lane that it opened; b"" is nobody's
        self._ends: list[tuple[float, bytes]] = []
        self.abroad = Abroad()
        self.tokens = tokens

    def check(self, token: str | None, ticket: str = "", *, again: bool = False) -> Pass | None:
        """What the token says; None where it is no signed one.

        Args:
            token: what the client shows.
            ticket: of the lane that it says to have had.
            again: it opens nothing: that it was used before does not matter.

        Raises:
            Refused: it may not come in.
        """
        given = token or ""
        if self._word is not None and _same(given, self._word):
            return None
        if self.tokens is None:
            if self._word is None:
                return None
            raise Refused("a valid token is needed", code=Refusal.UNAUTHORIZED)
        if not given:
            raise Refused("a token is needed", code=Refusal.UNAUTHORIZED)
        now = self._wall()
        shown = self.tokens.check(given, now)
        self._forget(now)
        bound = self._spent.get(digest(shown.id))
        if bound is None:
            if len(self._spent) >= MOST_SPENT:
                raise Refused("too many new clients at once", code=Refusal.FULL, retry_after_ms=_RETRY_MS)
        elif not again and not (bound and hmac.compare_digest(digest(ticket), bound)):
            raise Refused("the token was used before: each connection needs its own", code=Refusal.UNAUTHORIZED)
        return shown

    def spend(self, shown: Pass | None, ticket: str) -> None:
        """The token has opened something: a lane with this ticket, or what nobody comes back to ("")."""
        if shown is None:
            return
        token, owner = digest(shown.id), digest(ticket) if ticket else b""
        self._remember(token, owner, shown.expires_at)
        self.abroad.spent(token, owner, shown.expires_at)

    def elsewhere(self, token: bytes, ticket: bytes, until: float) -> None:
        """Another replica has spent a token; both are digests. Others' tokens take half of the memory at most."""
        now = self._wall()
        self._forget(now)  # where no client comes, nobody else does
        if self._spent.get(token) == b"":
            return  # it is nobody's, and stays so
        if token in self._spent or len(self._spent) < MOST_SPENT // 2:
            self._remember(token, ticket, min(now + MAX_LIFE_S, until))  # in this order: `until` may be no number

    def revoke(self, token: str) -> None:
        """The token with this id opens nothing any more, whatever ticket is shown with it; until it expires."""
        if digest(token) in self._spent or len(self._spent) < MOST_SPENT:
            self._remember(digest(token), b"", self._wall() + MAX_LIFE_S)

    def turn_out(self, lane: Lane) -> None:
        """The lane's token, if it has one, opens nothing any more, at other replicas neither."""
        if lane.token:
            self.revoke(lane.token)
            self.abroad.spent(digest(lane.token), b"", self._wall() + MAX_LIFE_S)

    def bind(self, lane: Lane, shown: Pass | None, now: float) -> None:
        """The token has opened this lane, or prolongs it. `now` is on the lanes' clock."""
        if shown is None:
            return
        self.spend(shown, lane.ticket)
        lane.token, lane.campaign = shown.id, shown.campaign
        expires_at = now + shown.expires_at - self._wall()
        lane.expires_at = expires_at if math.isinf(lane.expires_at) else max(lane.expires_at, expires_at)

    def left_ms(self, lane: Lane, now: float) -> int | None:
        """Milliseconds until the lane's token expires; None if it does not."""
        return None if math.isinf(lane.expires_at) else max(0, round(1000 * (lane.expires_at - now)))

    def _remember(self, token: bytes, ticket: bytes, until: float) -> None:
        if token not in self._spent:
            heappush(self._ends, (until, token))
        self._spent[token] = ticket

    def _forget(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self._spent.pop(heappop(self._ends)[1], None)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
