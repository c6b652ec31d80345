"""Peers: other servers of the same pipeline, graphs and frames, measured in the same rounds as Framelane.

``asyncio`` is ``legacy/server`` without its worst faults: one process, threads for the models. The others are installed
into an environment of their own beside the output, on top of this one, when they are first asked for.
"""

from __future__ import annotations

import contextlib
import http.client
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framelane.loadtests.figures import Figure
from framelane.loadtests.processes import Process, StartFailed, free_port
from framelane.loadtests.stage import Stage, server_cpu_ms
from framelane.loadtests.windows import Window

VERSIONS: dict[str, list[str]] = {
    "asyncio": [],
    "mosec": ["mosec==0.9.8"],
    "litserve": ["litserve==0.2.19", "python-multipart"],
}
_LOADS: dict[str, list[str]] = {
    "asyncio": [],
    "mosec": ["--post", "/inference"],
    "litserve": ["--post", "/predict", "--form"],
}
_PROBES = {"asyncio": "/livez", "mosec": "/", "litserve": "/health"}
_START_LIMIT_S = 60.0
_SETTLE_S = 3.0


class Peers:
    """Rounds of Framelane and each peer.

    Args:
        names: of ``VERSIONS``.
        environments: the folder for their virtual environments.
    """

    name = "peers"
    title = "Framelane and its peers"
    most_rounds = 100

    def __init__(self, names: Sequence[str], environments: Path) -> None:
        self._names = names
        self._environments = environments
        self._rounds: list[dict[str, Window]] = []

    def measure_round(self, stage: Stage, number: int) -> None:
        """See ``Section``."""
        windows: dict[str, Window] = {}
        for peer in self._names:
            stage.say(f"peer {peer}")
            windows[peer] = _measure(stage, peer, _python(self._environments, peer))
        with stage.server() as server:
            windows["framelane"] = stage.load_window(server)
        self._rounds.append(windows)

    def figures(self) -> list[Figure]:
        """See ``Section``."""
        rounds = self._rounds
        ahead = tuple(
            _per_core(found["framelane"]) / max(_per_core(found[peer]) for peer in self._names) for found in rounds
        )
        told = [
            figure
            for name in ("framelane", *self._names)
            for figure in (
                Figure(name=f"  {name}", unit="fps", rounds=tuple(found[name].fps for found in rounds)),
                Figure(name=f"    p99 of {name}", unit="ms", rounds=tuple(f[name].percentile(99) for f in rounds)),
                Figure(name=f"    CPU of {name}", unit="ms", rounds=tuple(server_cpu_ms(f[name]) for f in rounds)),
            )
        ]
        return [Figure(name="throughput over the best peer's", unit="×", rounds=ahead, bar=1, at_most=False), *told]

    def details(self) -> Any:
        """See ``Section``."""
        return [{name: window.record() for name, window in found.items()} for found in self._rounds]


def _per_core(window: Window) -> float:
    return window.fps / window.cores


def _measure(stage: Stage, peer: str, python: str) -> Window:
    port = free_port()
    arguments = ["-m", "framelane.loadtests.legacy.peers", peer, "--port", str(port)]
    with Process(arguments, stage.file(f"{peer}.log"), python=python) as process:
        _wait_until_listening(process, port, _PROBES[peer])
        time.sleep(_SETTLE_S)  # its workers may still be opening their models
        return stage.load_window_on(port, {"peer": process.pids()}, _LOADS[peer])


def _wait_until_listening(process: Process, port: int, path: str) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        process.check()
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _status(port, path) == 200:
                return
        time.sleep(0.1)
    raise StartFailed(f"the peer does not answer: {process.tail()}")


def _status(port: int, path: str) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def _python(environments: Path, peer: str) -> str:
    """The interpreter that has the peer installed on top of this environment."""
    if not VERSIONS[peer]:
        return sys.executable
    folder = (environments / peer).absolute()
    python, mark = folder / "bin" / "python", folder / ".ready"
    if not mark.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = next(folder.glob("lib/python*/site-packages"))
        ours = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
        (packages / "zz_ours.pth").write_text(f"import site; {ours}\n")
        pip = [str(python), "-m", "pip", "install", "--only-binary", ":all:", *VERSIONS[peer]]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartFailed(f"{peer} cannot be installed: {done.stderr[-1000:]}")
        mark.touch()
    return str(python)
