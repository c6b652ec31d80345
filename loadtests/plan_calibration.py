"""Stage times of one real replica, and a second run of it that the simulation is held against."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from framelane.loadtests.attempts import Attempts
from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.plan import Stages, error_of
from framelane.loadtests.plan_simulation import Load, Replica, simulate
from framelane.loadtests.probe import level
from framelane.loadtests.processes import cores
from framelane.loadtests.stage import Effort, Stage
from framelane.loadtests.windows import Window

_LONE_PAUSE_MS = 20.0
_FRAMES = 30
_OF_PROCESSOR = 0.3


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the run that the simulation did not see."""

    figure: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """How far the simulation is off, as a share of what was measured."""
        return error_of(self.simulated, self.measured)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: stage times from a lone client, and the checks with several."""

    stages: Stages
    replica: Replica
    clients: int
    checks: tuple[Check, ...]
    foreign_cores: float
    simulated_device: bool = False
    windows: tuple[dict[str, Any], ...] = ()


class Effortful(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure.

    Attributes:
        serve: further arguments for ``framelane serve``.
        workers, slots, credits: of the server.
        runs: of models per frame.
        clients: of the run that the simulation is held against.
        seconds: of each window.
        patience: how often a window that other programs disturbed is measured again.
    """

    serve: tuple[str, ...] = ()
    workers: int = 2
    slots: int = 1
    credits: int = 3
    runs: int = 2
    clients: int = 8
    seconds: float = 5.0
    patience: int = 1


def calibrate(effort: Effortful, folder: Path, say: Callable[[str], None]) -> Calibration:
    """Start a replica and measure it.

    Raises:
        StartFailed, Vanished, OSError: it could not be measured.
    """
    clip = moving_face(frames=_FRAMES)
    work = Effort(
        seconds=effort.seconds, clients=effort.clients, patience=effort.patience, serve=tuple(_arguments(effort))
    )
    stage = Stage(folder, FrameFile(clip.fps, list(clip.frames)), work, say)
    with stage.server() as server:
        say("one client, alone")
        course = Attempts("127.0.0.1", server.port, clip.frames).run(1, 60)
        lone = level(1, 1, course.attempts, course.seconds)
        quiet = stage.load_window(server, clients=1, pause_ms=_LONE_PAUSE_MS)
        say(f"{effort.clients} clients, for the check")
        loaded = stage.load_window(server, clients=effort.clients)
        status = server.get_json("/v1/status")
    stages = _stages(quiet, loaded, lone.inference_ms, shlex.join(effort.serve))
    replica = Replica(
        workers=effort.workers, slots=effort.slots, credits=effort.credits, cores=cores(), runs=effort.runs,
        generator_ms=loaded.cpu_ms("generator"), deadline_ms=60_000,
    )  # fmt: skip
    return Calibration(
        stages=stages,
        replica=replica,
        clients=effort.clients,
        checks=check(stages, replica, effort.clients, loaded),
        foreign_cores=max(quiet.foreign, loaded.foreign),
        simulated_device=bool(status["device"]["simulated"]),
        windows=(quiet.record(), loaded.record()),
    )


def check(stages: Stages, replica: Replica, clients: int, loaded: Window) -> tuple[Check, ...]:
    """Hold the simulation of the same load against the window that was measured.

    What other programs took of the cores in that window is taken from the simulated ones as well.
    """
    slower = replica.cores / max(loaded.cores, 0.05 * replica.cores)
    left = msgspec.structs.replace(replica, generator_ms=replica.generator_ms * slower)
    found = simulate(stages.slowed(slower), left, Load(users=clients, fps=0), seconds=8, seeds=3)
    figures: Sequence[tuple[str, float, float]] = (
        ("results per second", loaded.fps, found.per_second),
        ("p50 ms", loaded.percentile(50), found.p50_ms),
        ("p95 ms", loaded.percentile(95), found.p95_ms),
    )
    return tuple(Check(figure=name, measured=real, simulated=guess) for name, real, guess in figures)


def _arguments(effort: Effortful) -> list[str]:
    fixed = {
        "--workers": effort.workers,
        "--active-slots": effort.slots,
        "--credits": effort.credits,
        "--spare-workers": 0,
        "--deadline-ms": 60_000,
        "--max-clients": 1000,
    }
    return [*(part for name, value in fixed.items() for part in (name, str(value))), *effort.serve]


def _stages(quiet: Window, loaded: Window, inference_ms: float, source: str) -> Stages:
    """Processor times from the loaded window, with caches as warm as in production; the rest from the quiet one."""
    names = ("gateway", "worker", "slot")
    gateway, worker, slot = (loaded.cpu_ms(name) if name in loaded.use else 0.0 for name in names)
    lone_cpu = quiet.cpu_ms("worker") + quiet.cpu_ms("gateway")
    # Where the device is the processor, a lone frame's inference is half wake-ups, which load makes disappear.
    device = slot if slot > _OF_PROCESSOR * inference_ms else inference_ms
    return Stages(
        gateway_ms=round(gateway, 4),
        worker_ms=round(worker, 4),
        slot_ms=round(max(device, 0.001), 4),
        slot_cpu_ms=round(min(slot, device), 4),
        wait_ms=round(max(0.0, quiet.percentile(50) - lone_cpu - device), 4),
        source=f"measured: framelane serve {source}".strip(),
    )
