"""Servers to be broken: started under a mark that all their processes carry, whatever became of their parents."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import psutil

from framelane.loadtests.processes import Process, Server, clean_environment, free_port

_MARK = "TREE_OF_THE_FAULT_HARNESS"
_START_LIMIT_S = 90.0
_PATIENCE_S = 30.0
_LOG_TO_FULL_DISK = (
    "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 2); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_FOR_THE_GATEWAY_ALONE = (
    "import os, runpy, sys; del os.environ['LD_PRELOAD']; "
    "sys.argv[:3] = [sys.argv[2]]; runpy.run_module(sys.argv[0], run_name='__main__')"
)
_EVERYBODY = ("--client-fps", "0.1")  # nobody waits for a place


class Target(Server):
    """``framelane serve``, marked, with a folder for temporary files of its own.

    Args:
        options: of ``serve``.
        folder: for its log and its temporary files.
        search: where modules of pipelines may lie.
        full_disk: whatever it logs meets a full disk.
        clock: libfaketime, and the file that says by how much the gateway's wall clock is wrong, now.
    """

    APART: ClassVar[dict[str, Any]] = {"process_group": 0}
    """Linux may share out the CPU by sessions first (autogroup). A low priority would then count among the server's own
    processes only, and cost the clients here, which would be on other machines, as much as a high one."""

    def __init__(
        self,
        options: Sequence[str],
        folder: Path,
        search: Path | None = None,
        full_disk: bool = False,
        clock: tuple[Path, Path] | None = None,
    ) -> None:
        self.mark = secrets.token_hex(8)
        self.port = free_port()
        self.temporary = folder / f"tmp-{self.mark}"
        self.temporary.mkdir()
        environment = {**clean_environment(), _MARK: self.mark, "TMPDIR": str(self.temporary)}
        if search is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(search))))
        arguments = ["-m", "framelane.server.cli", "serve", "--port", str(self.port), *_EVERYBODY, *options]
        prefix = ("-c", _LOG_TO_FULL_DISK) if full_disk else ()
        if clock is not None:
            prefix = ("-c", _FOR_THE_GATEWAY_ALONE)
            environment |= {"LD_PRELOAD": str(clock[0]), "FAKETIME_TIMESTAMP_FILE": str(clock[1])}
            environment |= {"FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        Process.__init__(self, [*prefix, *arguments], folder / f"server-{self.mark}.log", environment)
        try:
            self._wait_until_ready(time.monotonic() + _START_LIMIT_S)
        except BaseException:
            self.stop()
            raise

    def status(self) -> Any:
        """/v1/status."""
        return self.get_json("/v1/status")

    def pids_of(self, kind: str, state: str) -> list[int]:
        """Processes of "slots" or "workers" in a state."""
        return [entry["pid"] for entry in self.status()[kind] if entry["state"] == state]

    def living(self) -> list[int]:
        """Every process of the tree, orphans included."""
        return [pid for pid in psutil.pids() if _is_marked(pid, self.mark)]

    def leftovers(self) -> tuple[str, ...]:
        """What is left after its end: processes (given a moment to be reaped) and files."""
        deadline = time.monotonic() + 5
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.02)
        left = [f"process {pid}" for pid in self.living()]
        left += [f"file {path.name}" for path in self.temporary.iterdir() if path.suffix != ".lock"]
        return tuple(left)

    def descriptors(self) -> int:
        """How many the gateway has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def end(self, patience: float = 30.0) -> tuple[str, ...]:
        """SIGTERM, and what is left after it; a server that does not end by itself is left over."""
        self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        return self.leftovers()

    def stop(self, patience: float = 15.0) -> float:
        """As ``Process.stop``, orphans included."""
        seconds = super().stop(patience)
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return seconds


class Lab:
    """Where faults happen.

    Args:
        folder: for logs.
        quick: shorten what can be shortened.
        say: told what is going on.
    """

    def __init__(self, folder: Path, quick: bool, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.quick = quick
        self.say = say

    @contextlib.asynccontextmanager
    async def serving(
        self,
        *options: str,
        search: Path | None = None,
        full_disk: bool = False,
        clock: tuple[Path, Path] | None = None,
    ) -> AsyncIterator[Target]:
        """A server that is ready; in the end it is gone."""
        target = await asyncio.to_thread(Target, options, self.folder, search, full_disk, clock)
        try:
            yield target
        finally:
            await asyncio.to_thread(target.stop)


async def until(condition: Callable[[], Any], what: str, patience: float = _PATIENCE_S, pause: float = 0.002) -> float:
    """Seconds until a condition (asked on another thread) is true.

    Raises:
        TimeoutError: it is not in time.
    """
    started = time.monotonic()
    while not await asyncio.to_thread(_ask, condition):
        if time.monotonic() - started > patience:
            raise TimeoutError(f"not within {patience:g} s: {what}")
        await asyncio.sleep(pause)
    return time.monotonic() - started


def _ask(condition: Callable[[], Any]) -> Any:
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        return condition()
    return False


def sharpness_options() -> tuple[str, ...]:
    """A pipeline with a small real model whose answer tells the pictures apart."""
    folder = importlib.resources.files("framelane.models.examples") / "models"
    return ("--pipeline", "framelane.models.examples.sharpness:Sharpness", "--models", str(folder))


def _is_marked(pid: int, mark: str) -> bool:
    try:
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
