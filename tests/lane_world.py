"""An exchange without sockets, processes or a clock, for tests of the lanes."""

from typing import Any

import msgpack
from fake_pool import FakePool

from framelane.preprocess.packets import WEBSOCKET
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.limits import Limits
from framelane.server.protocol import Hello


class Client:
    """A writer that remembers what its client got."""

    def __init__(self) -> None:
        self.got: list[list[Any]] = []
        self.reads = True
        self.stuck: bytes | None = None
        self.aborted = False
        self.closed: tuple[int, str] | None = None

    def write(self, packet: bytes) -> bool:
        assert self.stuck is None
        if self.reads:
            self.got.append(msgpack.unpackb(packet))
        else:
            self.stuck = packet
        return self.reads

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def abort(self) -> None:
        self.aborted = True

    def told(self, name: str) -> list[Any]:
        """What came with the events of a name, in order."""
        return [event[1] for event in self.got if event[0] == name]

    def results(self) -> list[int]:
        return [event[1]["seq"] for event in self.got if event[0] == "result"]

    def dropped(self) -> list[tuple[int, str]]:
        return [(event[1]["seq"], event[1]["reason"]) for event in self.got if event[0] == "dropped"]


class World:
    def __init__(self, credits: int = 4, capacity: float = float("inf"), **limits: Any) -> None:
        self.now = 0.0
        self.pool = FakePool(credits)
        self.exchange = Exchange(self.pool, Limits(**{"pipeline": "echo", **limits}), lambda: self.now, capacity)

    def tick(self, seconds: float) -> None:
        """Let time pass as the server does, ten times a second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.1)
            self.exchange.tick()

    def client(self, *, address: str = "", **hello: Any) -> tuple[Lane, Client]:
        client = Client()
        lane = self.exchange.admit(Hello(**hello), WEBSOCKET, client, address=address)
        self.exchange.greet(lane)
        return lane, client

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.exchange.accounts.dropped)
