"""Python calls per frame in the gateway, above a bare echo of the same door: ``framelane.loadtests.calls``, as JSON."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

from framelane.loadtests.figures import Figure
from framelane.loadtests.processes import StartFailed, clean_environment
from framelane.loadtests.stage import Stage

_MODULE = "framelane.loadtests.calls"
_DOORS = {
    "websocket": ("/ws", 45.0),
    "socketio": ("Socket.IO", 0.0),
    "socketio_msgpack": ("Socket.IO, msgpack parser", 0.0),
}


class Calls:
    """Counts are exact: one round says everything."""

    name = "calls"
    title = "Python calls per frame in the gateway"
    most_rounds = 1

    def __init__(self) -> None:
        self._counted: dict[str, Any] = {}

    def measure_round(self, stage: Stage, number: int) -> None:
        """See ``Section``."""
        if importlib.util.find_spec(_MODULE) is None:
            raise StartFailed(f"{_MODULE} is not there")
        done = subprocess.run(
            [sys.executable, "-m", _MODULE, "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=clean_environment(),
        )
        if done.returncode:
            raise StartFailed(f"{_MODULE}: {done.stderr[-2000:]}")
        self._counted = json.loads(done.stdout)

    def figures(self) -> list[Figure]:
        """See ``Section``."""
        return [figure for door in _DOORS for figure in self._door(door)]

    def details(self) -> Any:
        """See ``Section``."""
        return self._counted

    def _door(self, door: str) -> list[Figure]:
        name, bar = _DOORS[door]
        found = self._counted.get(door)
        rounds = (found["server"] - found["echo"],) if found else ()
        echo = (found["echo"],) if found else ()
        return [
            Figure(name=f"calls above the echo, {name}", unit="", rounds=rounds, bar=bar),
            Figure(name=f"  the echo, {name}", unit="", rounds=echo),
        ]
