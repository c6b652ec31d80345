"""Messages that have come in part: how much of them there may be, summed over all connections.

A websocket message is collected until it is whole. Each is bounded by ``ws_max_size``, about 1 MiB, but thousands of
clients that never finish theirs would take as many MiB. What a client has sent whole waits in the mailboxes, which have
a budget of their own; per connection, uvicorn reads no further than one read's worth (256 KiB) beyond a whole message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from framelane.server.lanes.accounts import Accounts
from framelane.server.protocol import Cut


class PartialMessages:
    """Watches over the connections of one server.

    Args:
        budget: bytes that may be held in part, summed.
        largest: bytes that one message may have.
        accounts: where cuts are counted.
    """

    __slots__ = ("_accounts", "_budget", "_largest")

    def __init__(self, budget: int, largest: int, accounts: Accounts) -> None:
        self._budget = budget
        self._largest = largest
        self._accounts = accounts

    def check(self, connections: Iterable[Any]) -> None:
        """Cut those who hold most while all together hold too much. Call it about ten times a second.

        Args:
            connections: uvicorn's (``server_state.connections``), of all kinds.
        """
        sockets = [connection for connection in connections if hasattr(connection, "conn")]
        if len(sockets) * self._largest <= self._budget:
            return
        held = [(_held(socket), socket) for socket in sockets]
        total = sum(size for size, _socket in held)
        if total <= self._budget:
            return
        for size, socket in sorted(held, key=lambda pair: pair[0], reverse=True):
            if total <= self._budget:
                return
            total -= size
            self._accounts.cut[Cut.UNFINISHED] += 1
            socket.transport.abort()


def _held(socket: Any) -> int:
    """Bytes of an unfinished message: the frame that is coming, and the fragments before it."""
    return len(socket.conn.reader.buffer) + sum(map(len, socket.frames))
