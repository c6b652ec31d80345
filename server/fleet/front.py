"""The one address of a fleet: HAProxy, or one port that all replicas share.

HAProxy gets its configuration as a memory file and its commands over a socket pair, so neither is a file on disk that
somebody else could use or that would stay behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import time
from typing import Protocol

from . import haproxy
from .processes import Process

log = logging.getLogger("framelane.fleet")

_ANSWER_S = 2.0
_AGAIN_S = 0.5
_START_S = 2.0
_MOST_STARTS = 10


class Front(Protocol):
    """What the fleet tells whoever stands in front of the replicas."""

    async def run(self) -> None:
        """Stand there until it is cancelled."""

    async def open(self, member: str) -> None:
        """Give the member new clients."""

    async def shut(self, member: str) -> None:
        """Give the member no new clients."""

    def stop(self) -> None:
        """Take no new clients at all."""


class SharedPort:
    """No balancer: every replica listens on the port itself (SO_REUSEPORT), and the kernel spreads connections."""

    async def run(self) -> None:
        """As ``Front.run``."""
        await asyncio.Event().wait()

    async def open(self, member: str) -> None:
        """Nothing to do: whoever is ready listens."""

    async def shut(self, member: str) -> None:
        """Nothing to do: whoever drains stops listening."""

    def stop(self) -> None:
        """Nothing to do."""


class HAProxy:
    """HAProxy as a child of the fleet; it is started again when it ends.

    Args:
        program: its path.
        configuration: its configuration, with ``{control}`` for the address of the socket.
    """

    def __init__(self, program: str, configuration: str) -> None:
        self._program = program
        self._configuration = configuration
        self._commands: socket.socket | None = None
        self._process: Process | None = None
        self._open: set[str] = set()
        self._stopping = False
        self.restarts = 0

    async def run(self) -> None:
        """As ``Front.run``.

        Raises:
            ChildProcessError: it cannot start, or ended again and again.
        """
        for number in range(_MOST_STARTS):
            started = time.monotonic()
            status = await self._serve()
            if self._stopping:
                await asyncio.Event().wait()
            if not number and time.monotonic() - started < _START_S:
                break
            log.error("haproxy ended with status %d; it is started again", status)
            self.restarts += 1
            await asyncio.sleep(_AGAIN_S)
        raise ChildProcessError("haproxy cannot start; what it wrote is above")

    async def open(self, member: str) -> None:
        """As ``Front.open``."""
        self._open.add(member)
        await self._tell(haproxy.open_server(member))

    async def shut(self, member: str) -> None:
        """As ``Front.shut``."""
        self._open.discard(member)
        await self._tell(haproxy.shut_server(member))

    def stop(self) -> None:
        """As ``Front.stop``: it stops listening, and ends when its last connection does."""
        self._stopping = True
        if self._process is not None:
            self._process.signal(signal.SIGUSR1)

    async def _serve(self) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        file = os.memfd_create("haproxy.cfg")
        with ours, theirs:
            os.write(file, self._configuration.replace("{control}", f"sockpair@{theirs.fileno()}").encode())
            command = [self._program, "-db", "-f", f"/proc/self/fd/{file}"]
            try:
                self._process = await Process.start("haproxy", command, descriptors=(file, theirs.fileno()))
            finally:
                os.close(file)
            theirs.close()
            self._commands = ours
            for member in self._open:
                await self._tell(haproxy.open_server(member))
            try:
                return await self._process.ended()
            finally:
                self._commands = self._process = None

    async def _tell(self, command: str) -> None:
        if self._commands is None:
            return  # it is told when it has been started
        try:
            answer = await self.ask(command)
        except OSError as error:
            answer = repr(error)
        if answer.strip():
            log.warning("haproxy to %r: %s", command, answer.strip())

    async def ask(self, command: str) -> str:
        """A command of HAProxy's runtime API, and its answer.

        Raises:
            OSError: there is no HAProxy, or it does not answer.
        """
        if self._commands is None:
            raise ConnectionError("haproxy does not run")
        near, far = socket.socketpair()
        with far:
            socket.send_fds(self._commands, [b"\0"], [far.fileno()])
        reader, writer = await asyncio.open_unix_connection(sock=near)
        try:
            async with asyncio.timeout(_ANSWER_S):
                writer.write(command.encode() + b"\n")
                return (await reader.read()).decode(errors="replace")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def find_haproxy() -> str | None:
    """The path of HAProxy; Debian keeps it off a user's PATH."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/sbin")
