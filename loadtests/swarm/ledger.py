"""What one process of the swarm writes down: every frame, every event of a connection, and who its users were.

The frames and events are those of ``overload.records``, so that ages, shares and books are worked out by one code. A
``Tally`` beside them can be read while the run goes on.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from framelane.loadtests.overload.records import Recorded, Records, together
from framelane.loadtests.tally import Tally

FIRST_OF_PROCESS = 100_000
"""Users of the process n are numbered from n times this."""


class User(msgspec.Struct, frozen=True):
    """One user: its door, what it is in the audience, and whether it keeps to the rules."""

    number: int
    door: str
    persona: str = "steady"
    honest: bool = True


class Account(msgspec.Struct, kw_only=True):
    """What a process knows besides frames and events.

    Attributes:
        failed: connects that failed, by reason.
        lost: connections that ended although nobody wanted it.
        paced: users whom the server asked to send less often than they do, and the longest interval asked for, in ms.
        waited: users who were told to wait.
        refused: connections that the server did not take, by its code.
        strangers: what became of users who do not keep to the protocol, by name.
        cpu_at: processor time of this process at moments of ``time.monotonic``, about one a second.
    """

    users: list[User] = []
    failed: dict[str, int] = {}
    lost: dict[str, int] = {}
    paced: dict[int, int] = {}
    waited: list[int] = []
    refused: dict[str, int] = {}
    strangers: dict[str, int] = {}
    pipeline: str = ""
    deadline_ms: int = 500
    cpu_at: list[tuple[float, float]] = []


class Ledger:
    """The writer's side.

    Args:
        folder: where it is left at the end.
        process: the number of this process, from 0.
    """

    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._process = process
        self._next = process * FIRST_OF_PROCESS
        self._tracked = array("d")
        self._failed: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self.strangers: Counter[str] = Counter()
        self.records = Records()
        self.account = Account()
        self.tally = Tally.create(folder / f"{process}.tally")

    def peek(self) -> int:
        """The number that the next user will have."""
        return self._next

    @property
    def failed_connects(self) -> int:
        """How many connects failed until now."""
        return self._failed.total()

    def enrol(self, door: str, persona: str = "steady", honest: bool = True) -> User:
        """A new user."""
        user = User(self._next, door, persona, honest)
        self._next += 1
        self.account.users.append(user)
        return user

    def tracked(self, intended: float) -> None:
        """The result of the frame that was due at ``intended`` was tracked."""
        self._tracked.append(intended)

    def connect_failed(self, user: User, reason: str) -> None:
        """A connect failed."""
        if user.honest:
            self._failed[reason] += 1

    def refused(self, user: User, code: str) -> None:
        """The server did not take a connection, and said so."""
        if user.honest:
            self._refused[code] += 1

    def connection_lost(self, user: User, reason: str) -> None:
        """A connection ended although nobody wanted it."""
        if user.honest:
            self._lost[reason] += 1

    def used(self) -> None:
        """Write down the processor time until now."""
        self.account.cpu_at.append((time.monotonic(), time.process_time()))

    def save(self) -> None:
        """Leave everything in the folder; each file is whole or not there."""
        self.used()
        account = self.account
        account.failed, account.lost, account.refused = dict(self._failed), dict(self._lost), dict(self._refused)
        account.strangers = dict(self.strangers)
        files = {"account": msgspec.msgpack.encode(account), "tracked": self._tracked.tobytes()}
        for name, data in files.items():
            self._path(f"{name}.part").write_bytes(data)
            os.replace(self._path(f"{name}.part"), self._path(name))
        self.records.save(self._path("records.part"))
        os.replace(self._path("records.part"), self._path("records"))

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._process}.{name}"


class Found(NamedTuple):
    """The reader's side: all processes together."""

    recorded: Recorded
    accounts: tuple[Account, ...]
    tracked: npt.NDArray[np.float64]

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """What the processes left; None if they left nothing."""
        paths = sorted(folder.glob("*.records"))
        if not paths:
            return None
        accounts = [msgspec.msgpack.decode(path.with_suffix(".account").read_bytes(), type=Account) for path in paths]
        tracked = [np.frombuffer(path.with_suffix(".tracked").read_bytes(), np.float64) for path in paths]
        return cls(together([Recorded.load(path) for path in paths]), tuple(accounts), np.concatenate(tracked))

    @property
    def users(self) -> dict[int, User]:
        """All users by number."""
        return {user.number: user for account in self.accounts for user in account.users}

    def sum(self, name: str) -> dict[Any, int]:
        """A table of the accounts, summed over the processes."""
        total: Counter[Any] = Counter()
        for account in self.accounts:
            total.update(getattr(account, name))
        return dict(total)
