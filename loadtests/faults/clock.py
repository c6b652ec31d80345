"""The wall clock is set while the server serves, as NTP or an operator may do: nobody should notice."""

from __future__ import annotations

import asyncio
import email.utils
import http.client
import time
from pathlib import Path
from typing import Any

import socketio

from .lab import Lab, sharpness_options
from .load import Load
from .pictures import plain, told_apart
from .report import Report, at_least, at_most

_LIBRARIES = "faketime/libfaketimeMT.so.1"
_OF_DEBIAN = Path("/usr/lib")
_SLOTS = ("--active-slots", "1", "--standby-slots", "1", "--workers", "1")
_JUMPS = ("+3600s", "-3600s", "+0")
_MOST_MS = 10_000.0
_QUICK_PHASE_S = 4.0
_PHASE_S = 50.0
"""Longer than an interval of pings and the time to answer one, 25 s and 20 s."""


class Stayer:
    """A stock Socket.IO client that stays, sends now and then, and counts what it gets, and how often it is cut."""

    def __init__(self, port: int, picture: bytes) -> None:
        self.sent = 0
        self.results = 0
        self.ends = 0
        self.strange: list[float] = []
        self._client = socketio.AsyncClient(reconnection=False)
        self._url = f"http://127.0.0.1:{port}"
        self._picture = picture

    async def stay(self, seconds: float) -> None:
        """Connect, send a frame a second, and leave."""
        self._client.on("result", self._result)
        self._client.on("disconnect", self._end)
        await self._client.connect(self._url, transports=["websocket"])
        for _ in range(int(seconds)):
            if self._client.connected:
                await self._client.emit("frame", (self.sent, self._picture))
                self.sent += 1
            await asyncio.sleep(1)
        ends = self.ends
        await self._client.disconnect()
        self.ends = ends

    def _result(self, fields: dict[str, Any]) -> None:
        self.results += 1
        self.strange += _strange(fields)

    def _end(self, *_reason: Any) -> None:
        self.ends += 1


async def clock(lab: Lab) -> Report:
    """The gateway's clock jumps an hour ahead, an hour back and home: no connection ends, and no timing is wrong."""
    phase = _QUICK_PHASE_S if lab.quick else _PHASE_S
    hand = lab.folder / "clock"
    hand.write_text("+0")
    strange: list[float] = []

    def look(_client: int, fields: dict[str, Any]) -> bool:
        strange.extend(_strange(fields))
        return True

    options = (*sharpness_options(), "--device", "sim:8", *_SLOTS)
    async with (
        lab.serving(*options, clock=(library(), hand)) as target,
        Load(target.port, told_apart(8), clients=8, fps=4.0, right=look) as load,
    ):
        stayers = [Stayer(target.port, plain(99, 320, 240)) for _ in range(4)]
        staying = asyncio.gather(*[stayer.stay((len(_JUMPS) + 1) * phase) for stayer in stayers])
        await asyncio.sleep(phase / 2)
        seen, uptimes = [], []
        for jump in _JUMPS:
            hand.write_text(jump)
            lab.say(f"the clock of the gateway is {jump} from now on")
            await asyncio.sleep(phase)
            seen.append(await asyncio.to_thread(_ahead_s, target.port))
            uptimes.append((await asyncio.to_thread(target.status))["uptime_s"])
        await staying
        await load.stop()
        lost = load.lost(0, time.monotonic())
        left = await asyncio.to_thread(target.end)
        missed = sum(stayer.sent - stayer.results for stayer in stayers)
        strange += [value for stayer in stayers for value in stayer.strange]
        ends = load.lost_connections + sum(stayer.ends for stayer in stayers)
    return Report(
        fault="clock",
        lost=lost,
        connections=ends,
        leftovers=left,
        figures=(
            at_least("the clock was ahead by", max(seen) / 3600, 0.99, "h"),
            at_most("and behind by", min(seen) / 3600, -0.99, "h"),
            at_most("connections lost", ends, 0),
            at_most("frames lost, of both doors", lost.total() + missed, 0),
            at_most("wrong timings", len(strange), 0),
            at_least("the server's own age never fell", float(uptimes == sorted(uptimes)), 1),
        ),
        note=f"{len(load.fates)} frames of /ws, {sum(stayer.sent for stayer in stayers)} of Socket.IO",
    )


def _strange(fields: dict[str, Any]) -> list[float]:
    """Times that cannot be: negative ones, or so long that a clock must have jumped."""
    return [value for value in fields["timing"].values() if not 0 <= value < _MOST_MS]


def _ahead_s(port: int) -> float:
    """By how much the gateway's clock is ahead of ours, as the date in its answers tells."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/livez")
    date = connection.getresponse().headers["date"]
    connection.close()
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()


def library() -> Path:
    """Of libfaketime. Raises FileNotFoundError."""
    found = sorted(_OF_DEBIAN.glob(f"*/{_LIBRARIES}"))
    if not found:
        raise FileNotFoundError(f"there is no {_OF_DEBIAN}/*/{_LIBRARIES}: apt install faketime")
    return found[0]
