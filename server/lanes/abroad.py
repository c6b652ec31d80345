"""What other replicas mean for this one. A replica that is alone knows of none, and that is this module.

``server/fleet/together.py`` has the other form, which knows them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


class Abroad:
    """No other replicas."""

    limited = False
    """Whether places are counted over the whole fleet."""

    def places(self, admitted: int, line: Sequence[float], now: float) -> int:
        """How many more clients may have a place here. Asked only if it is ``limited``.

        Args:
            admitted: clients here that have a place, or for whom one is held.
            line: since when the first of those have waited who are present here.
            now: the time.
        """
        raise NotImplementedError

    def ahead(self, _since: float, _now: float) -> int:
        """How many wait elsewhere for longer."""
        return 0

    def arrived(self, _ticket: str, _now: float) -> float | None:
        """Since when the client with this ticket, which another replica gave it, waits; minus infinity: it had a place.

        None: no replica has told of it. Asked once for each client; it is known no more afterwards.
        """
        return None

    def lost(self, _ticket: str, _since: float | None, _now: float) -> None:
        """A client whose connection was lost may come back elsewhere; ``since``: as it waits, None: it has a place."""

    def spent(self, _token: bytes, _ticket: bytes, _until: float) -> None:
        """A signed token was used here, until then (Unix time) by the client with this ticket alone; digests."""


def digest(secret: str) -> bytes:
    """What stands for a ticket or a token's id, and does not tell it."""
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=12, person=b"framelane").digest()
