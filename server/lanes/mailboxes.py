"""Who is served next: the frames that wait, and the ring of lanes that have one.

A lane holds one waiting frame, and a newer one takes its place (policy "latest"); with the policy "queue" it holds a
few, in order. A lane is in the ring, once, exactly when it has a waiting frame and fewer in work than it may have. The
ring is turned one frame at a time, so every client gets the same share however much it sends. The bytes of all waiting
frames together have a budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from framelane.preprocess.pool import Job

from .lane import Lane


class Mailboxes:
    """The only queue of the server.

    Args:
        budget: the most bytes that may wait, summed over all lanes.

    Attributes:
        ring: lanes that can be served, next first. Empty means that ``take`` has nothing.
        bytes: what waits now.
    """

    __slots__ = ("_budget", "bytes", "ring")

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.bytes = 0
        self.ring: deque[Lane] = deque()

    def offer(self, lane: Lane, job: Job) -> Job | None:
        """Put a frame into a lane's mailbox.

        Returns the frame that does not wait any more because of it: the older one that it replaces, or `job` itself if
        there is no room for it. None if every frame keeps its place.
        """
        jobs = lane.jobs
        after = self.bytes + len(job.data)
        loser = None
        if len(jobs) >= lane.depth:
            if lane.queues:
                return job
            loser = jobs[-1]
            after -= len(loser.data)
        if after > self._budget:
            return job
        if loser is not None:
            jobs.pop()
        jobs.append(job)
        self.bytes = after
        if not lane.queued and lane.in_work < lane.parallel:
            lane.queued = True
            self.ring.append(lane)
        return loser

    def take(self) -> Job | None:
        """The next frame to work on; its lane has one more in work until ``finished``."""
        if not self.ring:
            return None
        lane = self.ring.popleft()
        job = lane.jobs.popleft()
        self.bytes -= len(job.data)
        lane.in_work += 1
        if lane.jobs and lane.in_work < lane.parallel:
            self.ring.append(lane)
        else:
            lane.queued = False
        return job

    def finished(self, lane: Lane) -> None:
        """A frame of the lane is no longer in work. A lane that has left has nothing waiting, so it stays out."""
        lane.in_work -= 1
        if lane.jobs and not lane.queued:
            lane.queued = True
            self.ring.append(lane)

    def clear(self, lane: Lane) -> list[Job]:
        """Empty a lane's mailbox and return what was in it. Its frames in work still end with ``finished``."""
        jobs = list(lane.jobs)
        lane.jobs.clear()
        self._out(lane, jobs)
        return jobs

    def overdue(self, lanes: Iterable[Lane], now: float) -> list[Job]:
        """Remove and return the frames whose deadline has passed while they waited."""
        late: list[Job] = []
        for lane in lanes:
            if lane.jobs and lane.jobs[0].deadline < now:
                found = [job for job in lane.jobs if job.deadline < now]
                for job in found:
                    lane.jobs.remove(job)
                self._out(lane, found)
                late += found
        return late

    def _out(self, lane: Lane, jobs: list[Job]) -> None:
        self.bytes -= sum(len(job.data) for job in jobs)
        if lane.queued and not lane.jobs:
            lane.queued = False
            self.ring.remove(lane)
