"""Processes of a replica: how they are born, prove themselves, and are known to have ended.

Used by both kinds of children, workers (``pool.py``) and slots (``server/slots``). A child is a fresh interpreter
(``python -m …``, never a fork) that inherits three descriptors: its channel to the gateway, the memory of the progress
pages, and a small *birth file* holding its configuration as JSON, into which it writes its report before it says READY.
It dies with its parent (``PR_SET_PDEATHSIG``), and its end is observed through a pidfd: nothing depends on timing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from framelane.models.errors import FramelaneError

from .memory import Memory
from .messages import Channel, Kind, Message, PeerGone, PeerStuck, channel_pair, pack
from .progress import ProgressPage

log = logging.getLogger("framelane.children")

START_FAILED = 3
"""Exit status of a child that could not start: the reason is in its report, and trying again will not help."""

_LEAVE_S = 1.0
_PR_SET_PDEATHSIG = 1
_REPORT_AT = 1 << 20
_ENVIRONMENT = {
    "ORT_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENCV_LOG_LEVEL": "SILENT",  # what is wrong with a picture is told to its sender
    # Decoded images are allocated and freed for every frame. Left to itself, glibc gives them back to the kernel each
    # time, and faulting them in again costs 5 % of the CPU. Pictures larger than 8 MiB are still given back at once.
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(1 << 20),
}


class StartFailed(FramelaneError):
    """A child process could not start."""

    code = "start_failed"


class Child:
    """A process that the gateway started: its channel, its progress page, its pidfd.

    Args:
        module: what to run, with ``python -m``.
        name: for logs, for example ``worker-1``.
        config: JSON-like configuration; descriptors in it must be listed in ``descriptors``.
        pages: the memory of all progress pages.
        page: which of them is this child's.
        descriptors: further descriptors to inherit, under the same numbers.
        idle: it takes only what all others leave of the machine (``SCHED_IDLE``). Whoever serves clients is woken on
            its core at once, which a low priority alone would not give to children, see ``born``.
    """

    def __init__(
        self,
        module: str,
        name: str,
        config: Mapping[str, Any],
        pages: Memory,
        page: int,
        descriptors: Sequence[int] = (),
        *,
        idle: bool = False,
    ) -> None:
        self.name = name
        self.progress = ProgressPage(pages.view, page)
        self.progress.clear()
        with contextlib.ExitStack() as undo:
            self.channel, theirs = channel_pair()
            undo.callback(self.channel.close)
            with theirs:
                self._birth = os.memfd_create(f"framelane-{name}", os.MFD_CLOEXEC)
                undo.callback(os.close, self._birth)
                inherited = {"channel": theirs.fileno(), "pages": pages.fd, "page": page, "parent": os.getpid()}
                inherited["idle"] = idle
                os.pwrite(self._birth, msgspec.json.encode({**inherited, "config": config}, enc_hook=str), 0)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(self._birth)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(self._birth, theirs.fileno(), pages.fd, *descriptors),
                    env={**os.environ, **_ENVIRONMENT},
                )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self.pidfd = os.pidfd_open(self.pid)
            if idle:
                os.sched_setscheduler(self.pid, os.SCHED_IDLE, os.sched_param(0))  # it does so itself, but starts first
            undo.pop_all()

    def report(self) -> dict[str, Any]:
        """What the child wrote about itself before READY, or ``{"error": …}`` when it could not start."""
        written = os.fstat(self._birth).st_size - _REPORT_AT
        if written <= 0:
            return {}
        return dict(msgspec.json.decode(os.pread(self._birth, written, _REPORT_AT)))

    def failure(self) -> StartFailed:
        """Why the child ended before it was ready. Call after ``reap``."""
        reason = self.report().get("error") or f"ended with status {self._process.returncode} before it was ready"
        return StartFailed(f"{self.name}: {reason}")

    def tell(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send it a message. One that has ended is about to be noticed; one that does not read is killed."""
        try:
            self.channel.send(message, descriptors)
        except PeerGone:
            pass
        except PeerStuck:
            log.error("%s does not read its messages; it is put down", self.name)
            self.kill()

    def kill(self) -> None:
        """SIGKILL; its end shows on ``pidfd``."""
        self._process.kill()

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL has ended it, whoever sent that. Call after ``reap``."""
        return self._process.returncode == -signal.SIGKILL

    def reap(self) -> int:
        """Collect the exit status of a process whose pidfd is readable, and close what belongs to it."""
        status = self._process.wait()
        os.close(self.pidfd)
        self.channel.close()
        return status

    def close(self) -> None:
        """Close the birth file; the report cannot be read afterwards."""
        os.close(self._birth)


class Birth(NamedTuple):
    """What a child was given."""

    config: dict[str, Any]
    channel: Channel
    progress: ProgressPage
    pages: Memory
    fd: int

    def ready(self, report: Mapping[str, Any]) -> None:
        """Write the report and tell the gateway that this process has proven itself."""
        data = msgspec.json.encode(report)
        os.pwrite(self.fd, data, _REPORT_AT)
        self.channel.send(pack(Kind.READY, length=len(data)))

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Within it, an exception is written down as the reason why this process cannot start, and ends it."""
        try:
            yield
        except Exception as error:
            if isinstance(error, FramelaneError):
                text = error.message
            else:
                log.exception("cannot start")
                text = f"{type(error).__name__}: {error}"
            os.pwrite(self.fd, msgspec.json.encode({"error": text}), _REPORT_AT)
            sys.exit(START_FAILED)


def born(argv: Sequence[str]) -> Birth:
    """The child's side: take over what was inherited, and make sure not to outlive the gateway."""
    fd = int(argv[1])
    inherited = msgspec.json.decode(os.pread(fd, _REPORT_AT, 0))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != inherited["parent"]:
        os._exit(0)  # the gateway died before the line above
    # Whoever is woken does not interrupt another child in the middle of a decode or a run: fewer switches, warmer
    # caches, 5 % less CPU per frame at saturation. The gateway, with the ordinary policy, still goes before them.
    os.sched_setscheduler(0, os.SCHED_IDLE if inherited["idle"] else os.SCHED_BATCH, os.sched_param(0))
    for number in (signal.SIGINT, signal.SIGTERM):  # they may be sent to the whole group; the gateway decides
        signal.signal(number, signal.SIG_IGN)
    pages = Memory.attach(inherited["pages"])
    channel = Channel(socket.socket(fileno=inherited["channel"]))
    return Birth(inherited["config"], channel, ProgressPage(pages.view, inherited["page"]), pages, fd)


def watch(child: Child, hear: Callable[[Message], None], ended: Callable[[int], None]) -> None:
    """Call ``hear`` for each message of a child, and at last ``ended`` with its exit status, on the running event loop.

    Everything that the child wrote is heard before ``ended`` is called. A child that closes its channel and lives on is
    killed: it could not be told anything any more. A process that it forked may keep the channel open after its end.
    """
    loop = asyncio.get_running_loop()
    listening = True
    leaving: asyncio.TimerHandle | None = None

    def readable() -> bool:
        nonlocal leaving
        try:
            messages = child.channel.receive()
        except PeerGone:
            stop_listening()
            leaving = loop.call_later(_LEAVE_S, child.kill)  # until then its interpreter may tidy up
            return False
        for message in messages:
            hear(message)
        return bool(messages)

    def stop_listening() -> None:
        nonlocal listening
        if listening:
            listening = False
            loop.remove_reader(child.channel.fileno())

    def exited() -> None:
        loop.remove_reader(child.pidfd)
        while listening and readable():
            pass
        stop_listening()
        if leaving is not None:
            leaving.cancel()
        ended(child.reap())

    loop.add_reader(child.channel.fileno(), readable)
    loop.add_reader(child.pidfd, exited)


async def ask(child: Child) -> dict[str, Any]:
    """Wait for a child that only reports and ends; return its report.

    Raises:
        StartFailed: it ended without one.
    """
    answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def ended(_status: int) -> None:
        report, failure = child.report(), child.failure()
        child.close()
        if answer.done():
            return  # nobody waits any more
        if report and "error" not in report:
            answer.set_result(report)
        else:
            answer.set_exception(failure)

    watch(child, lambda _message: None, ended)
    try:
        return await answer
    finally:
        child.kill()  # it has ended, or nobody waits for it any more
