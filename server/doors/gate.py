"""Connections before anybody knows who is calling: how many of one address, how fast, and how many strangers in all.

A *stranger* has not said yet what it wants: its request's head is not whole, or its websocket has no lane. Honest ones
are strangers for a round trip. Whoever wants to fill the house with strangers, slowly or by thousands, displaces the
oldest of them: so the next one always gets in, and nobody inside notices.

The limits per address are for connections of any kind, at the socket, where refusing costs least. Behind a proxy all
come from its address: it is believed who they are, if it is one of ``trusted_proxies``, and then each request counts
for its own address. An IPv6 address counts with its /64, which is what one customer has.
"""

from __future__ import annotations

import functools
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from framelane.server.lanes.accounts import Accounts
from framelane.server.protocol import Refusal

MOST_STRANGERS = 1000
MOST_LEAVING = 200
RETRY_S = 5
ADDRESS = "framelane.address"
_UNKNOWN = "unknown"
_BURST_S = 5.0
_MOST_REMEMBERED = 20_000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Gate:
    """Lets connections in.

    Args:
        accounts: where those are counted that are turned away.
        per_address: connections of one address at once; 0 is no limit.
        rate: connections of one address per second, with a few seconds' worth at once; 0 is no limit.
        trusted: proxies, which stand for others.
        strangers: how many there may be.
        head_s: seconds that a request's head may take; None is the default.
        clock: seconds.

    Attributes:
        trusted, head_s: as given.
    """

    def __init__(
        self,
        accounts: Accounts,
        *,
        per_address: int = 0,
        rate: float = 0.0,
        trusted: Collection[Network] = (),
        strangers: int = MOST_STRANGERS,
        head_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounts = accounts
        self._per_address = per_address
        self._interval_s = 1 / rate if rate else 0.0
        self.trusted = tuple(trusted)
        self.head_s = head_s
        self._most_strangers = strangers
        self._clock = clock
        self._inside: dict[Any, str] = {}
        self._refused: set[Any] = set()
        self._strangers: dict[Any, None] = {}  # in the order in which they came
        self._counts: Counter[str] = Counter()
        self._moments: dict[str, float] = {}
        self.trusts = functools.lru_cache(maxsize=1024)(self._trusts)

    def knock(self, comer: Any, host: str) -> bool:
        """A connection was made, by uvicorn's protocol object. Whether it may stay; ``left`` follows in either case."""
        address = "" if self.trusts(host) else group_of(host)
        allowed = not address or self.enter(address)
        self._inside[comer] = address if allowed else ""
        if not allowed:
            self._refused.add(comer)
        else:
            self._strangers[comer] = None
            if len(self._strangers) > self._most_strangers:
                self._displace()
        return allowed

    @property
    def patient(self) -> bool:
        """Whether there is time to let those go politely who are refused, or too many of them are on their way."""
        return len(self._refused) <= MOST_LEAVING

    def replace(self, comer: Any, by: Any) -> None:
        """The same connection under another protocol: a request has become a websocket, still without a lane."""
        self._inside[by] = self._inside.pop(comer, "")
        self._strangers.pop(comer, None)
        self._strangers[by] = None

    def known(self, comer: Any) -> None:
        """It has said what it wants."""
        self._strangers.pop(comer, None)

    def stranger(self, comer: Any) -> None:
        """It begins another request."""
        if comer in self._inside:
            self._strangers[comer] = None

    def left(self, comer: Any) -> None:
        """The connection has ended."""
        self._strangers.pop(comer, None)
        self._refused.discard(comer)
        self.leave(self._inside.pop(comer, ""))

    def enter(self, address: str) -> bool:
        """Count a connection of an address; False if there are too many, or they come too fast."""
        if (self._per_address and self._counts[address] >= self._per_address) or not self._slow_enough(address):
            self._accounts.turned_away[Refusal.RATE_LIMITED] += 1
            return False
        self._counts[address] += 1
        return True

    def leave(self, address: str) -> None:
        """A connection that was counted has ended."""
        if address:
            self._counts[address] -= 1
            if self._counts[address] <= 0:
                del self._counts[address]

    def _slow_enough(self, address: str) -> bool:
        """The generic cell rate algorithm, as in ``lanes/rate.py``."""
        if not self._interval_s:
            return True
        now = self._clock()
        moment = max(self._moments.get(address, 0.0), now)
        if moment - now > max(_BURST_S - self._interval_s, 0.0):
            return False
        self._moments.pop(address, None)  # then at the end: they lie in the order in which they were last heard of
        self._moments[address] = moment + self._interval_s
        if len(self._moments) > _MOST_REMEMBERED:
            del self._moments[next(iter(self._moments))]
        return True

    def _displace(self) -> None:
        oldest = next(iter(self._strangers))
        self.known(oldest)
        self._accounts.turned_away[Refusal.RATE_LIMITED] += 1
        oldest.transport.abort()

    def _trusts(self, host: str) -> bool:
        address = _parse(host)
        return address is not None and any(address in network for network in self.trusted)


@functools.lru_cache(maxsize=4096)
def group_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 one."""
    address = _parse(host)
    if address is None:
        return _UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def address_of(scope: Any) -> str:
    """Where a request comes from, as it counts; "" if nobody knows, or a proxy does not say (``routes.py``)."""
    address = str(scope.get(ADDRESS, ""))
    return "" if address == _UNKNOWN else address


def plain(host: str) -> str:
    """An address as it is usually written: IPv4 also where it came in over an IPv6 socket."""
    return str(_parse(host) or host)


def _parse(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
