"""Trials of densities: what was asked, what was seen, and the file that makes a search resumable.

Trials that were measured elsewhere come as CSV with a header: ``density,users,delivery,p50_ms,p95_ms``. A density is
written as on the command line (``80`` or ``2x4x1``), a delivery as a share; the last two columns may be empty or
missing.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import msgspec

from framelane.loadtests.density import DensityError, Layout, Trial
from framelane.loadtests.overload.outcomes import SICK_LAG_MS, Summary


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run depends on besides density and users. Trials of different questions are never mixed.

    Attributes:
        pipeline: as in ``framelane serve``.
        devices: each gets the density's number of replicas; a CUDA card is the only one that its replicas see.
        fps: frames per second of a user.
        seconds: of a run, after two seconds of warm-up.
        image: width and height of the frames in pixels.
        pin: whether each replica is held to its share of the cores.
        reserve: cores that no replica gets, for the load generator.
        memory_mib: limit of each replica; 0 for none.
        serve: further arguments for ``framelane serve``.
        machine: what it was measured on.
    """

    pipeline: str = "face_mesh"
    devices: tuple[str, ...] = ("auto",)
    fps: float = 0.75
    seconds: float = 20.0
    image: str = "640x480"
    pin: bool = True
    reserve: int = 0
    memory_mib: int = 0
    serve: tuple[str, ...] = ()
    machine: str = ""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A trial with everything that was seen.

    Attributes:
        offered, delivered: frames due and results, per second.
        without_place: share of the frames whose user had no place or no connection.
        fates: frames by outcome.
        cores: used by the replicas, and by the generators.
        pss_mib: of one replica, the mean, right after the load; gpu_mib likewise, None where nobody can tell.
        limit, advice: what most replicas named as their limit, if they name one.
        notes: what could not be done as asked.
    """

    trial: Trial
    p99_ms: float | None = None
    lag_p99_ms: float = 0.0
    offered: float = 0.0
    delivered: float = 0.0
    without_place: float = 0.0
    fates: dict[str, int] = {}
    cores: float = 0.0
    generator_cores: float = 0.0
    pss_mib: float = 0.0
    gpu_mib: float | None = None
    limit: str = ""
    advice: str = ""
    notes: tuple[str, ...] = ()


def trial_of(layout: Layout, users: int, seen: Summary) -> Trial:
    """What the search looks at. Frames of users without a place count as not delivered."""
    due = sum(seen.fates.values())
    void = f"the load generator was late (p99 {seen.lag.p99:.0f} ms > {SICK_LAG_MS:.0f} ms)" if seen.sick else ""
    return Trial(
        density=layout,
        users=users,
        delivery=seen.results / due if due else 0.0,
        p50_ms=known(seen.age.p50),
        p95_ms=known(seen.age.p95),
        void=void,
    )


def known(value: float) -> float | None:
    """None for what is not a finite number."""
    return value if math.isfinite(value) else None


def read_trials(text: str) -> list[Measured]:
    """Trials from the text of a CSV file; see the module. Raises DensityError naming the line."""
    found = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            density = Layout.parse(row["density"])
            figures = {name: row[name] for name in ("users", "delivery", "p50_ms", "p95_ms") if row.get(name)}
            found.append(Measured(trial=msgspec.convert({"density": density, **figures}, Trial, strict=False)))
        except (KeyError, ValueError) as error:
            raise DensityError(f"trials, line {number}: {error}") from None
    if not found:
        raise DensityError("trials: there are none; the header is density,users,delivery,p50_ms,p95_ms")
    return found


class Notebook:
    """Trials on disk, one JSON line each, after a line with their question: what makes a search resumable.

    Args:
        path: of the file.
        question: of the trials.
    """

    def __init__(self, path: Path, question: Question) -> None:
        self._path = path
        self._question = question

    def read(self) -> list[Measured]:
        """What is there already. Raises ValueError if it answers another question, naming the difference."""
        if not self._path.exists():
            return []
        first, *rest = self._path.read_bytes().splitlines()
        before = json.loads(first)
        now = json.loads(msgspec.json.encode(self._question))
        other = [f"{key}: {before.get(key)} → {now[key]}" for key in now if before.get(key) != now[key]]
        if other:
            raise ValueError(
                f"{self._path} holds trials of another question ({'; '.join(other)}): "
                "give another --output, or --restart to throw them away"
            )
        # An interruption in the middle of a line leaves one that does not end.
        return [msgspec.json.decode(line, type=Measured) for line in rest if line.endswith(b"}")]

    def restart(self) -> None:
        """Throw away what is there."""
        self._path.unlink(missing_ok=True)

    def add(self, found: Measured) -> None:
        """Keep a trial, whatever happens next."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.read_bytes() if self._path.exists() else msgspec.json.encode(self._question)
        with self._path.open("ab") as file:
            if not file.tell():
                file.write(written)
            if not written.endswith(b"\n"):  # a line that an interruption cut short
                file.write(b"\n")
            file.write(msgspec.json.encode(found) + b"\n")
