"""Who is served next: the frames that wait, and the line of lanes that have one.

A lane holds one waiting frame, and a newer one takes its place (policy "latest"); with the policy "queue" it holds a
few, in order. A lane stands in the line, once, exactly when it has a waiting frame and fewer in work than it may have.
The bytes of all waiting frames together have a budget.

The line is start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996). Each lane has a clock, its `turn`, that every
frame taken moves on: by one, or by what its frames cost on average, in seconds of workers and slots. Next is whoever's
clock is furthest behind, and among equals whoever was served longest ago; a lane that comes back from a pause counts
as no further behind than the frame taken last. Among lanes that always have a frame this is round-robin. It differs
from a plain ring for those who send seldom: when turns come round more slowly than frames expire, a ring would put each
new frame of theirs at its end, where it expires again and again. Here they have a place in the round, and if it has
gone by, they are next.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from framelane.preprocess.pool import Job

from .lane import Lane

_COST_WEIGHT = 0.2
_STALE = 64


class Mailboxes:
    """The only queue of the server.

    Args:
        budget: the most bytes that may wait, summed over all lanes.
        by_cost: whether a turn costs a lane the measured seconds of its frames; else all frames cost the same.

    Attributes:
        lanes: how many lanes stand in the line. 0 means that ``take`` has nothing.
        bytes: what waits now.
    """

    __slots__ = ("_before", "_budget", "_by_cost", "_clock", "_line", "_mean_s", "_places", "bytes", "lanes")

    def __init__(self, budget: int, *, by_cost: bool = False) -> None:
        self._budget = budget
        self._by_cost = by_cost
        self._mean_s = 0.0
        self._clock = 0.0
        self._places = 1
        self._before = (0.0, 0)  # turn and served of the lane that was taken from, as they were
        self._line: list[tuple[float, int, int, Lane]] = []  # with entries of lanes that have left the line
        self.bytes = 0
        self.lanes = 0

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
        if not lane.place and lane.in_work < lane.parallel:
            self._line_up(lane)
        return loser

    def take(self) -> Job | None:
        """The next frame to work on; its lane has one more in work until ``finished`` or ``spared``."""
        while self._line:
            turn, _served, place, lane = heappop(self._line)
            if lane.place != place:
                continue
            job = lane.jobs.popleft()
            self.bytes -= len(job.data)
            self._clock = turn
            self._before = lane.turn, lane.served
            self._places = lane.served = self._places + 1
            lane.turn = turn + (self._cost(lane) if self._by_cost else 1.0)
            lane.in_work += 1
            lane.place = 0
            self.lanes -= 1
            if lane.jobs and lane.in_work < lane.parallel:
                self._line_up(lane)
            return job
        return None

    def finished(self, lane: Lane, cost_s: float = 0.0) -> None:
        """A frame of the lane is no longer in work. A lane that has left has nothing waiting, so it stays out.

        Args:
            lane: its lane.
            cost_s: seconds of workers and slots that it took.
        """
        if self._by_cost and cost_s > 0:
            lane.cost_s = cost_s if lane.cost_s == 0 else lane.cost_s + (cost_s - lane.cost_s) * _COST_WEIGHT
            self._mean_s = cost_s if self._mean_s == 0 else self._mean_s + (cost_s - self._mean_s) * _COST_WEIGHT
        lane.in_work -= 1
        if lane.jobs and not lane.place:
            self._line_up(lane)

    def spared(self, lane: Lane) -> None:
        """The frame that was taken last is not worked on: it costs its lane no turn."""
        lane.turn, lane.served = self._before
        if lane.place:  # it stands in line for a later turn than it need
            self._leave_line(lane)
        self.finished(lane)

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

    def _line_up(self, lane: Lane) -> None:
        self._places = lane.place = self._places + 1
        self.lanes += 1
        lane.served = lane.served or self._places  # a new one has missed nothing
        heappush(self._line, (max(lane.turn, self._clock), lane.served, lane.place, lane))

    def _leave_line(self, lane: Lane) -> None:
        lane.place = 0
        self.lanes -= 1
        if len(self._line) > 2 * self.lanes + _STALE:
            self._line = [entry for entry in self._line if entry[3].place == entry[2]]
            heapify(self._line)

    def _cost(self, lane: Lane) -> float:
        return lane.cost_s or self._mean_s

    def _out(self, lane: Lane, jobs: list[Job]) -> None:
        self.bytes -= sum(len(job.data) for job in jobs)
        if lane.place and not lane.jobs:
            self._leave_line(lane)
