"""A worker's links to the slots: which may be used, what is in flight where, and what happens when one dies.

A run is one cell of one model on its way through a slot. It ends exactly once: run, failed, or without a slot before
its deadline. When a slot dies, what was in flight there is sent again, alone, to another slot, but only after the
gateway has seen the old process end (GONE): until then it might still write into the cells. What was *in work* when
its slot died is suspected of having killed it; when that happens to a run twice, it fails, and no third slot meets it.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Any

from framelane.models.errors import FramelaneError

from .memory import Memory
from .messages import Blame, Channel, Kind, Outcome, PeerGone, PeerStuck, pack, pack_run
from .progress import ProgressPage

ALL = 2**64 - 1
"""Stands for every request of a batch."""

_MAX_SUSPICIONS = 2
_PACKED = 4
_PACKED_S = 0.005
_RUN_WEIGHT = 0.1


class ModelFailed(FramelaneError):
    """A model's run raised, or ended two slots. A pipeline may catch it; otherwise its frame is ``failed``."""

    code = "model_failed"


class SlotsEnded(ModelFailed):
    """Slots ended while they ran this, and nothing else: the frame is to blame."""

    code = "slots_ended"
    blame = Blame.CERTAIN


class SlotEnded(SlotsEnded):
    """One slot ended while it ran this, and there was no time to try another: that may have been chance."""

    blame = Blame.SUSPECTED


class NoSlotLeft(FramelaneError):
    """No slot could take the run before its deadline."""

    code = "expired"


class Run:
    """One cell of one model in flight for a task."""

    __slots__ = (
        "accused",
        "cell",
        "deadline",
        "epoch",
        "model",
        "position",
        "ran_s",
        "request",
        "suspicions",
        "task",
    )

    def __init__(self, request: int, task: Any, position: int, model: int, cell: int, deadline: float) -> None:
        self.request = request
        self.task = task
        self.position = position
        self.model = model
        self.cell = cell
        self.deadline = deadline
        self.epoch = 0
        self.suspicions = 0
        self.ran_s = 0.0
        self.accused = False  # a slot ended while it ran this alone


Finished = list[tuple[Run, Exception | None]]


class Link:
    """One slot as this worker sees it."""

    __slots__ = ("channel", "generation", "open", "progress", "run_s", "runs", "slot")

    def __init__(self, slot: int, generation: int, channel: Channel, progress: ProgressPage) -> None:
        self.slot = slot
        self.generation = generation
        self.channel = channel
        self.progress = progress
        self.runs: dict[int, Run] = {}
        self.open = True
        self.run_s = 0.0  # moving average of the seconds that a run takes there

    def load(self) -> int:
        """How many requests are ahead of a new one: those of all workers as far as the slot's page tells, or ours."""
        return max(self.progress.load(), len(self.runs))


class Links:
    """All slots of the replica.

    Args:
        epoll: where the links' sockets are watched.
        pages: the progress pages, from which a worker tells how many requests wait in each slot.
        worker: the worker's number and incarnation (24 bits): they make its runs' ids unique in the replica.

    Attributes:
        parked: runs that no slot can take now.
        unacknowledged: whether routes have come that the gateway has not been told the end of the older ones.
    """

    def __init__(self, epoll: select.epoll, pages: Memory, worker: int) -> None:
        self._epoll = epoll
        self._pages = pages
        self._links: dict[int, Link] = {}
        self._by_descriptor: dict[int, Link] = {}
        self._routes: list[Link] = []
        self._mask = 0
        self._share_cores = False
        self._epoch = 0
        self._next = worker << 36
        self.parked: list[Run] = []
        self.unacknowledged = False

    # -- routes ------------------------------------------------------------------------------------------------------

    def add(self, slot: int, generation: int, page: int, descriptor: int) -> None:
        """Meet a slot; it is used once a route leads to it."""
        link = Link(slot, generation, Channel(socket.socket(fileno=descriptor)), ProgressPage(self._pages.view, page))
        self._links[slot] = link
        self._by_descriptor[link.channel.fileno()] = link
        self._epoll.register(link.channel.fileno(), select.EPOLLIN)
        self._find_routes()

    def route(self, epoch: int, mask: int, share_cores: bool) -> None:
        """Use the slots of ``mask`` (a bit per slot id) from now on, and no others; they may share our cores."""
        self._epoch = epoch
        self._share_cores = share_cores
        self._mask = mask
        self.unacknowledged = True
        self._find_routes()

    def drained_epoch(self) -> int:
        """The epoch to acknowledge, once nothing is in flight on slots that it does not name; else 0."""
        if not self.unacknowledged or any(link.runs and not self._named(link) for link in self._links.values()):
            return 0
        self.unacknowledged = False
        return self._epoch

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(self, task: Any, position: int, model: int, cell: int, deadline: float) -> None:
        """Send one cell to the slot with the least to do, or park it until there is one."""
        self._next += 1
        self._dispatch(Run(self._next, task, position, model, cell, deadline))

    def cancel(self, task: Any) -> None:
        """The task's client has left: tell slots, so that what waits there is not run. Each run ends as any other."""
        for link in self._links.values():
            for run in link.runs.values():
                if run.task is task and link.open:
                    with contextlib.suppress(PeerGone, PeerStuck):
                        link.channel.send(pack(Kind.CANCEL, request=run.request))

    def receive(self, descriptor: int) -> Finished:
        """What the slot at ``descriptor`` has finished."""
        link = self._by_descriptor.get(descriptor)
        if link is None:
            return []  # closed since the poll that named it
        try:
            messages = link.channel.receive()
        except PeerGone:
            self._close(link)
            return []
        finished: Finished = []
        for message in messages:
            run = link.runs.pop(message.request)
            if message.status == Outcome.OK:
                run.ran_s = message.f0
                link.run_s += (message.f0 - link.run_s) * _RUN_WEIGHT
                finished.append((run, None))
            elif message.status == Outcome.MOVED:
                self.parked.append(run)
            elif message.status == Outcome.EXPIRED:
                finished.append((run, NoSlotLeft("the deadline passed before a slot could run it")))
            else:
                finished.append((run, ModelFailed("the model's run failed; the slot's log says why")))
        return finished

    def gone(self, slot: int, generation: int, suspect: int) -> Finished:
        """The slot's process has certainly ended: take what it finished, send the rest again.

        Args:
            slot, generation: which process.
            suspect: the request that was in work when it ended; 0 when it was idle, ``ALL`` when it was a batch.
        """
        link = self._links.get(slot)
        if link is None or link.generation != generation:
            return []
        finished: Finished = []
        before = -1
        while link.open and len(link.runs) != before:  # no end of file while a process that the slot forked lives on
            before = len(link.runs)
            finished += self.receive(link.channel.fileno())
        self._close(link)
        for run in link.runs.values():
            # A suspect runs alone, so it was in no batch.
            run.accused |= suspect == run.request
            if suspect == run.request or (suspect == ALL and not run.suspicions):
                run.suspicions += 1
            if run.suspicions >= _MAX_SUSPICIONS:
                finished.append((run, SlotsEnded(f"{_MAX_SUSPICIONS} slots ended while they ran it")))
            else:
                self._park(run)
        del self._links[slot]
        return finished

    def quarantine(self, slot: int, generation: int) -> list[Run]:
        """The slot cannot be killed, and may still write into its cells: what was in flight there is parked."""
        link = self._links.get(slot)
        if link is None or link.generation != generation:
            return []
        self._close(link)
        runs = list(link.runs.values())
        link.runs.clear()
        for run in runs:
            run.suspicions += 1
            self._park(run)
        return runs

    def retry_parked(self, now: float) -> Finished:
        """Send parked runs again where a slot can take them; those past their deadline end."""
        parked, self.parked = self.parked, []
        expired: Finished = []
        for run in parked:
            if now > run.deadline and run.accused:
                expired.append((run, SlotEnded("a slot ended while it ran it, and no other was free in time")))
            elif now > run.deadline:
                expired.append((run, NoSlotLeft("no slot was free before the deadline")))
            elif run.epoch and run.epoch == self._epoch:
                self.parked.append(run)  # a slot said MOVED: its newer routes have not reached this worker yet
            else:
                self._dispatch(run)
        return expired

    # -- inside ------------------------------------------------------------------------------------------------------

    def _dispatch(self, run: Run) -> None:
        if not self._routes:
            self._park(run)
            return
        link = self._routes[0] if len(self._routes) == 1 else self._choose()
        run.epoch = self._epoch
        link.runs[run.request] = run
        message = pack_run(run.request, run.cell, run.model, run.epoch, run.suspicions > 0, run.deadline)
        try:
            link.channel.send(message)
        except PeerStuck:  # its socket is full: try again when it has read
            del link.runs[run.request]
            self._park(run)
        except PeerGone:  # what it has finished is still to be read; the run stays with it until GONE
            self._routes = [other for other in self._routes if other is not link]

    def _choose(self) -> Link:
        """The slot with the least to do; but where slots share the workers' cores, the first that gets to it soon.

        A slot that is woken on a busy core takes turns there, and each turn begins with cold caches: with two slots on
        two busy cores a run costs a fifth more than with one. So a few short runs wait for one slot.
        """
        if self._share_cores:
            for link in self._routes:
                load = link.load()
                if load < _PACKED and load * link.run_s < _PACKED_S:
                    return link
        return min(self._routes, key=_least)

    def _park(self, run: Run) -> None:
        run.epoch = 0
        self.parked.append(run)

    def _find_routes(self) -> None:
        self._routes = [link for link in sorted(self._links.values(), key=_number) if self._named(link)]

    def _named(self, link: Link) -> bool:
        return link.open and bool(self._mask >> link.slot & 1)

    def _close(self, link: Link) -> None:
        if link.open:
            link.open = False
            del self._by_descriptor[link.channel.fileno()]
            self._epoll.unregister(link.channel.fileno())
            link.channel.close()
            self._find_routes()


def _number(link: Link) -> int:
    return link.slot


def _least(link: Link) -> tuple[int, int]:
    """What this worker has there is known exactly; what others have, only as of the slot's last turn."""
    return len(link.runs), link.progress.load()
