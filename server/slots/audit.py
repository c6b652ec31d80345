"""Long jobs: their states, as a table, and the ledger of those that wait, run or have ended. Decides without I/O.

    waiting ──▶ running ──▶ done           a slot is taken for a job when its turn comes
       │        ▲  │  │
       │        │  ▼  ├──▶ failed          for a reason that has a name; a picture that fails does not fail its job
       │       paused │
       │          │   │
       └──────────┴───┴──▶ cancelled       by whoever knows its number, or since the server goes away

``paused``: its slot had to take the place of one that serves clients; the job goes on where it was as soon as there is
a slot again. Jobs run one at a time, in the order in which they came. Those that have ended are kept for a while, so
that a client which lost its connection can ask for the rest.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Protocol

import msgspec

from framelane.models.errors import FramelaneError
from framelane.server.transitions import follow


class JobState(StrEnum):
    """See the table above."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset({JobState.FAILED, JobState.CANCELLED})
FOLLOWERS: dict[JobState, frozenset[JobState]] = {
    JobState.WAITING: frozenset({JobState.RUNNING}) | _ENDS,
    JobState.RUNNING: frozenset({JobState.PAUSED, JobState.DONE}) | _ENDS,
    JobState.PAUSED: frozenset({JobState.RUNNING}) | _ENDS,
    JobState.DONE: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class AuditRefused(FramelaneError):
    """A job that is not taken, or one that is not known; code and message say why.

    ``no_audit_slot``: this server has neither an audit slot nor a standby. ``full``: too many jobs wait.
    ``unknown_job``: no such job, or not any more. ``bad_request``: steps that cannot be read.
    """

    code = "bad_request"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pass over a clip: its frames from ``first`` (counted from 0) up to, but not including, ``last``.

    Every step begins with an empty lane state, as a client does that has just connected.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)] = ""
    first: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    last: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    every: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] = 1


class Clip(Protocol):
    """What a job works on (``uploads.Upload``)."""

    size: int

    def hold(self) -> None:
        """One more job uses it."""

    def release(self) -> None:
        """One job fewer does; the last one closes it."""


class Lines(Protocol):
    """Where the results of a job are kept (``spool.Spool``)."""

    def __len__(self) -> int:
        """How many there are."""

    async def append(self, data: bytes) -> None:
        """Keep one more."""

    async def read(self, first: int, most: int) -> list[bytes]:
        """From this index on, about so many bytes; IndexError after ``close``."""

    def close(self) -> None:
        """Give the memory back."""


class Job:
    """One long job.

    Args:
        clip: what it works on; held until the job is forgotten.
        results: where its results go.
        steps: passes over the clip, in order.
        now: seconds, on the clock of the ledger.

    Attributes:
        invalid: how many results are errors.
        total: how many results there will be, as far as it is known.
        error: why it failed or was cancelled: ``{code, message}``.
        listeners: called after every change.
    """

    def __init__(self, clip: Clip, results: Lines, steps: tuple[Step, ...], now: float) -> None:
        self.id = secrets.token_urlsafe(16)
        self.clip = clip
        self.results = results
        self.steps = steps
        self.state = JobState.WAITING
        self.created = now
        self.ended: float | None = None
        self.format = ""
        self.invalid = 0
        self.total: int | None = None
        self.error: dict[str, str] | None = None
        self.listeners: set[Callable[[], None]] = set()
        clip.hold()

    def become(self, state: JobState, now: float, error: dict[str, str] | None = None) -> None:
        """Change the state.

        Raises:
            transitions.IllegalTransition: the new state may not follow the old one.
        """
        self.state = follow(FOLLOWERS, "a job", self.state, state)
        self.error = error
        if not FOLLOWERS[state]:
            self.ended = now
        self.changed()

    def changed(self) -> None:
        """Tell those who listen."""
        for listener in list(self.listeners):
            listener()

    def describe(self) -> dict[str, Any]:
        """What its client is told."""
        told = {
            "id": self.id,
            "state": self.state.value,
            "format": self.format,
            "results": len(self.results),
            "errors": self.invalid,
            "total": self.total,
        }
        return {**told, "error": self.error} if self.error else told


class Ledger:
    """All jobs that this server knows of.

    Args:
        waiting: how many may wait for their turn.
        kept: how many that have ended are kept, at most.
        retention_s: and for how long.

    Attributes:
        jobs: by number, oldest first.
        ended: jobs by the state they ended in, since the start.
    """

    def __init__(self, *, waiting: int = 4, kept: int = 8, retention_s: float = 600.0) -> None:
        self._waiting = waiting
        self._kept = kept
        self._retention_s = retention_s
        self.jobs: dict[str, Job] = {}
        self.ended: Counter[JobState] = Counter()

    def check(self) -> None:
        """Raises AuditRefused if a further job would not be taken."""
        waiting = sum(job.state is JobState.WAITING for job in self.jobs.values())
        if waiting >= self._waiting:
            raise AuditRefused(f"{waiting} jobs are waiting already", code="full", retryable=True)

    def add(self, job: Job) -> None:
        """Take a job; raises as ``check``."""
        self.check()
        self.jobs[job.id] = job

    def find(self, number: str) -> Job:
        """The job of this number.

        Raises:
            AuditRefused: there is none, or its time is over.
        """
        job = self.jobs.get(number)
        if job is None:
            raise AuditRefused("there is no such job, or its results are not kept any more", code="unknown_job")
        return job

    def next(self) -> Job | None:
        """Whose turn it is."""
        return next((job for job in self.jobs.values() if job.state is JobState.WAITING), None)

    def end(self, job: Job, state: JobState, now: float, error: dict[str, str] | None = None) -> None:
        """A job has ended, in one of the last three states."""
        job.become(state, now, error)
        self.ended[state] += 1

    def expire(self, now: float) -> None:
        """Forget jobs that ended long ago, and the oldest of too many."""
        over = sorted((job for job in self.jobs.values() if job.ended is not None), key=lambda job: job.ended or 0.0)
        for index, job in enumerate(over):
            if now - (job.ended or 0.0) > self._retention_s or len(over) - index > self._kept:
                self._forget(job)

    def clear(self) -> None:
        """Forget everything."""
        for job in list(self.jobs.values()):
            self._forget(job)

    def counts(self) -> dict[str, int]:
        """Jobs that wait, run or are paused now, and those that ended in each way since the start."""
        now = Counter(job.state for job in self.jobs.values() if job.ended is None)
        return {state.value: (self.ended if not FOLLOWERS[state] else now)[state] for state in JobState}

    def _forget(self, job: Job) -> None:
        del self.jobs[job.id]
        job.results.close()
        job.clip.release()
        job.changed()
