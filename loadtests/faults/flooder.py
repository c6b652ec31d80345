"""A process that floods a server on this machine with connections that want nothing good: ``floods.py`` starts it.

    handshakes   opens websockets and leaves at once, as fast as it can
    silent       connects and says nothing
    slow-heads   sends a request's head a byte at a time and never ends it
    half-open    opens websockets and never says hello

    python -m framelane.loadtests.faults.flooder KIND PORT COUNT PER_SECOND

It prints how many connections it made, and how many of them the server ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import time

_UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-protocol: framelane.v1\r\n\r\n"
)
_SAYS = {"handshakes": _UPGRADE, "silent": b"", "slow-heads": b"GET / HTTP/1.1\r\nx", "half-open": _UPGRADE}
_AT_ONCE = 64
_DRIP_S = 1.0
_RESET = struct.pack("ii", 1, 0)  # close with a reset, which leaves no port behind to wait


class Flood:
    """One kind of connections."""

    def __init__(self, kind: str, port: int) -> None:
        self._kind = kind
        self._port = port
        self._kept: set[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)
        self.made = self.ended = 0

    async def run(self, count: int, per_second: float) -> None:
        """Make so many; those that stay are kept until the last was made."""
        started, tasks = time.monotonic(), set()
        dripping = asyncio.create_task(self._drip())
        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
            await self._places.acquire()
            task = asyncio.create_task(self._one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        dripping.cancel()

    async def _one(self) -> None:
        try:
            async with asyncio.timeout(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2048)
                self.made += 1
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.write(_SAYS[self._kind])
                if self._kind in ("handshakes", "half-open"):
                    await reader.readuntil(b"\r\n\r\n")
            if self._kind == "handshakes":
                writer.transport.abort()
            else:
                self._kept.add((reader, writer))
        except (OSError, EOFError, TimeoutError):
            self.ended += 1
        finally:
            self._places.release()

    async def _drip(self) -> None:
        """A byte of every slow head now and then; whoever was shut out is forgotten."""
        while True:
            await asyncio.sleep(_DRIP_S)
            for reader, writer in list(self._kept):
                if writer.transport.is_closing() or reader.at_eof():
                    self._kept.discard((reader, writer))
                    writer.transport.abort()
                    self.ended += 1
                elif self._kind == "slow-heads":
                    writer.write(b"x")


def main() -> None:
    """Entry point of the process."""
    kind, port, count, per_second = sys.argv[1], *map(int, sys.argv[2:5])
    os.nice(5)  # a flood comes from other machines
    flood = Flood(kind, port)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(flood.run(count, per_second))
    print(json.dumps({"made": flood.made, "ended": flood.ended}))


if __name__ == "__main__":
    main()
