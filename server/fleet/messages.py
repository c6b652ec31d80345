"""What replicas tell each other, on one page. Every message goes to all replicas of a fleet, its sender included.

    beat     once a second from each: I am here, and so many clients have a place or wait. Hearing one's own is the
             proof that the way there and back works
    notice   an operator's words to one client or to those of a campaign
    kick     an operator ends a connection
    moved    these clients had a place or a position here, and may come back elsewhere
    spent    a signed token has opened a connection here, or prolonged one: it opens no other

There is nothing about frames or results, and nothing is sent because of one. Tickets, which are their clients' secrets,
and the ids of tokens travel as digests (``lanes/abroad.py``).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from framelane.server.errors import BadMessage

MOST_BYTES = 256 * 1024
Text = Annotated[str, Meta(max_length=2000)]
Name = Annotated[str, Meta(max_length=200)]
Digest = Annotated[bytes, Meta(max_length=16)]


class Beat(Struct, frozen=True, kw_only=True, tag="beat"):
    """One replica's counts.

    Attributes:
        replica: its name, unique in the fleet.
        admitted: clients that have a place, those included that may come back to one.
        waiting: clients that wait for one.
        line: since when (Unix seconds) the first of those have waited, the longest first.
    """

    replica: Name
    admitted: Annotated[int, Meta(ge=0)] = 0
    waiting: Annotated[int, Meta(ge=0)] = 0
    line: Annotated[list[float], Meta(max_length=64)] = []


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Whom a verb is about: the client with this lane, ticket or token (its ``jti``), or all of a campaign.

    Between replicas `ticket` is the digest, in hex.
    """

    lane: Name = ""
    ticket: Name = ""
    token: Name = ""
    campaign: Name = ""

    @property
    def named(self) -> int:
        """How many of them are given; a verb needs exactly one."""
        return sum(bool(getattr(self, field)) for field in self.__struct_fields__)


class Notice(Struct, frozen=True, kw_only=True, tag="notice"):
    """See above; ``sender`` is a replica's name."""

    sender: Name
    to: Target
    text: Text


class Kick(Struct, frozen=True, kw_only=True, tag="kick"):
    """See above."""

    sender: Name
    to: Target


class Moved(Struct, frozen=True, kw_only=True, tag="moved"):
    """Digests of tickets, and since when each has waited for a place (Unix seconds); 0: it had one.

    ``until`` is when they are forgotten, in Unix seconds.
    """

    sender: Name
    tickets: Annotated[dict[bytes, float], Meta(max_length=4096)]
    until: float


class Spent(Struct, frozen=True, kw_only=True, tag="spent"):
    """Digests of a token's id and of the ticket with which its client comes back; b"" is nobody's, or turned out.

    ``until`` is when the token expires, in Unix seconds.
    """

    sender: Name
    token: Digest
    ticket: Digest
    until: float


Message = Beat | Notice | Kick | Moved | Spent

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def decode(data: bytes) -> Message:
    """Read a message.

    Raises:
        BadMessage: it is none of these; perhaps of a later version.
    """
    if len(data) > MOST_BYTES:
        raise BadMessage(f"{len(data)} bytes are more than any message between replicas has")
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadMessage(f"no message between replicas: {str(error)[:120]}") from None
