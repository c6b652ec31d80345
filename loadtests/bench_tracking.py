"""Tracking: ``face_mesh`` with scaled decoding and tracking against the plain pipeline, on a moving face in real time.

Speed is that of two servers; how far the landmarks differ, and how many frames were tracked, is computed without a
server (``legacy/agreement.py``), since a server does not tell which frames it tracked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from framelane.loadtests.figures import Figure, ratios
from framelane.loadtests.processes import clean_environment
from framelane.loadtests.stage import Stage
from framelane.loadtests.windows import Window

_OPTIONS = {
    "plain": {"tracking": False, "scaled_decoding": False},
    "tracked": {"tracking": True, "scaled_decoding": True},
}


class Tracking:
    """Rounds of a plain and a tracking server; every other round the other way round."""

    name = "tracking"
    title = "Scaled decoding and tracking"
    most_rounds = 100

    def __init__(self) -> None:
        self._rounds: list[tuple[Window, Window]] = []
        self._agreement: dict[str, Any] = {}

    def measure_round(self, stage: Stage, number: int) -> None:
        """See ``Section``."""
        if not self._agreement:
            self._agreement = _agreement()
            stage.say(f"agreement: {self._agreement}")
        windows: dict[str, Window] = {}
        for kind in ("plain", "tracked") if number % 2 == 0 else ("tracked", "plain"):
            with stage.server(_OPTIONS[kind]) as server:
                windows[kind] = stage.load_window(server, real_time=True)
        self._rounds.append((windows["plain"], windows["tracked"]))

    def figures(self) -> list[Figure]:
        """See ``Section``."""
        plain, tracked = ([found[kind].fps for found in self._rounds] for kind in (0, 1))
        per_core = [[found[kind].fps / found[kind].cores for found in self._rounds] for kind in (1, 0)]
        found = self._agreement
        return [
            Figure(name="throughput, tracked over plain", unit="×", rounds=ratios(*per_core), bar=1.4, at_most=False),
            Figure(name="  plain", unit="fps", rounds=tuple(plain)),
            Figure(name="  tracked", unit="fps", rounds=tuple(tracked)),
            _told("landmarks off the plain ones, mean of all frames", found, "mean_error_percent"),
            _told("  in 95 % of the frames less than", found, "p95_error_percent"),
            _told("  in the worst frame", found, "max_error_percent", bar=2.0),
            _told("  frames with another number of faces", found, "differing_percent"),
            _told("  tracked share of the frames", found, "tracked_percent"),
        ]

    def details(self) -> Any:
        """See ``Section``."""
        rounds = [{"plain": plain.record(), "tracked": tracked.record()} for plain, tracked in self._rounds]
        return {"rounds": rounds, "agreement": self._agreement}


def _told(name: str, found: dict[str, Any], key: str, bar: float | None = None) -> Figure:
    return Figure(name=name, unit="%", rounds=(found[key],) if key in found else (), bar=bar)


def _agreement() -> dict[str, Any]:
    command = [sys.executable, "-m", "framelane.loadtests.legacy.agreement"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=clean_environment())
    return dict(json.loads(done.stdout))
