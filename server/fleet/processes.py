"""The processes of a fleet: each in a session of its own, on its CPUs, and dead when the fleet's process is.

A signal from the terminal reaches the fleet alone, which decides. ``PR_SET_PDEATHSIG`` ends a replica with the fleet,
and a replica's own children end with it in the same way: SIGKILL of the fleet leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

_PR_SET_PDEATHSIG = 1
_LINE_BYTES = 1 << 16


class Process:
    """One process that the fleet started. Its lines on stderr appear on the fleet's, after its name.

    Args:
        name: for those.
        process: just started.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        cpus: Iterable[int] = (),
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> Process:
        """Start a program. Call it on the main thread: the kernel ends the process with the *thread* that started it.

        Args:
            name: for its lines.
            command: program and arguments.
            cpus: that it may use; empty: those that this process may use.
            environment: its variables; None: this process's.
            descriptors: to inherit, under the same numbers.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
            preexec_fn=_birth(frozenset(cpus), os.getpid()),
            limit=_LINE_BYTES,
        )
        return cls(name, process)

    async def ended(self) -> int:
        """Pass its lines on until it has ended; the exit status, or minus the signal."""
        assert self._process.stderr is not None
        reading = asyncio.create_task(self._pass_on(self._process.stderr))
        status = await self._process.wait()
        await asyncio.wait([reading], timeout=0.5)  # a grandchild may keep the pipe open a little longer
        reading.cancel()
        return status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def pin(self, cpus: Iterable[int]) -> None:
        """Move it, its children and all their threads to other CPUs, while they run."""
        chosen = set(cpus)
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (whole := psutil.Process(self.pid), *whole.children(recursive=True)):
                _pin_threads(process.pid, chosen)

    async def _pass_on(self, lines: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await lines.readline()
            except ValueError:
                continue  # longer than anybody reads
            if not line:
                return
            sys.stderr.write(f"{self._name} | {line.decode(errors='replace')}")
            sys.stderr.flush()


def _birth(cpus: frozenset[int], parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None)  # loaded before the fork: after it, as little as possible may happen

    def birth() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # it died before the line above
        if cpus:
            os.sched_setaffinity(0, cpus)

    return birth


def _pin_threads(pid: int, cpus: set[int]) -> None:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), cpus)
