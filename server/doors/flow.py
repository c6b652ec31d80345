"""Slowing a client down: a door that does not read lets TCP hold back whoever sends too much."""

from __future__ import annotations

import asyncio

from framelane.server.lanes.lane import Lane


async def room_in(lane: Lane) -> None:
    """Wait while the queue of a lane with the policy "queue" is full.

    It lasts no longer than the deadline of the frames in it. So pings and whatever else stands behind the next frame in
    the same byte stream is answered late, but long before anyone's patience ends.
    """
    loop = asyncio.get_running_loop()
    while len(lane.jobs) >= lane.depth and not lane.left:
        room: asyncio.Future[None] = loop.create_future()
        lane.on_room = lambda room=room: room.done() or room.set_result(None)
        await room
