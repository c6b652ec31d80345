"""Results in the order of their frames, for a lane that has several in the workers.

At most ``lane.parallel`` frames count as in work until their turn has come, those that have their result included: so
this holds back at most one result fewer than that.
"""

from __future__ import annotations

from framelane.preprocess.pool import Done

from .lane import Lane


def started(lane: Lane, request: int) -> None:
    """A frame of the lane has gone to the workers."""
    lane.started.append(request)


def in_turn(lane: Lane, done: Done) -> list[Done]:
    """The frames whose turn it is now that this one is done: none while an earlier one is still in work."""
    lane.early[done.request] = done
    ready = []
    while lane.started and lane.started[0] in lane.early:
        ready.append(lane.early.pop(lane.started.popleft()))
    return ready


def forget(lane: Lane) -> int:
    """The lane has left: how many results were held back for it."""
    held = len(lane.early)
    lane.early.clear()
    lane.started.clear()
    return held
