"""Speed: a server against the bare loop, saturated by clients on the same cores, and with a single client.

"Bare" is the same pipeline on the same graphs and frames, one process per core, tracking off, with no server. The cores
of a window are those that other programs left to it: on a machine of our own all of them, on a shared one what is fair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from framelane.loadtests.figures import Figure, ratios
from framelane.loadtests.stage import Stage, server_cpu_ms
from framelane.loadtests.windows import Window

UNLOADED_PAUSE_MS = 30.0


class Round(NamedTuple):
    """The four windows of a round."""

    bare: Window
    bare_alone: Window
    server: Window
    server_alone: Window


class Speed:
    """Rounds of bare and server, each saturated and with one client; every other round the other way round."""

    name = "speed"
    title = "Speed against the bare loop"
    most_rounds = 100

    def __init__(self) -> None:
        self._rounds: list[Round] = []

    def measure_round(self, stage: Stage, number: int) -> None:
        """See ``Section``."""
        if number % 2 == 0:
            bare = _measure_bare(stage)
            server = _measure_server(stage)
        else:
            server = _measure_server(stage)
            bare = _measure_bare(stage)
        self._rounds.append(Round(*bare, *server))

    def figures(self) -> list[Figure]:
        """See ``Section``."""
        rounds = self._rounds
        saturated = _saturated([found.bare for found in rounds], [found.server for found in rounds])
        return [*saturated, *_alone([found.bare_alone for found in rounds], [found.server_alone for found in rounds])]

    def details(self) -> Any:
        """See ``Section``."""
        return [{kind: window.record() for kind, window in found._asdict().items()} for found in self._rounds]


def _measure_bare(stage: Stage) -> tuple[Window, Window]:
    return stage.bare_window(), stage.bare_window(processes=1, lanes=1, pause_ms=UNLOADED_PAUSE_MS)


def _measure_server(stage: Stage) -> tuple[Window, Window]:
    with stage.server() as server:
        return stage.load_window(server), stage.load_window(server, clients=1, pause_ms=UNLOADED_PAUSE_MS)


def _saturated(bare: list[Window], server: list[Window]) -> list[Figure]:
    bare_cpu = [window.cpu_ms("bare") for window in bare]
    server_cpu = [server_cpu_ms(window) for window in server]
    generator_cpu = [window.cpu_ms("generator") for window in server]
    both = [s + g for s, g in zip(server_cpu, generator_cpu, strict=True)]
    possible = [window.cores * 1000 / cpu for window, cpu in zip(server, both, strict=True)]
    bare_fps, server_fps = [w.fps for w in bare], [w.fps for w in server]
    per_core = ratios([w.fps / w.cores for w in server], [w.fps / w.cores for w in bare])
    groups = dict.fromkeys(group for window in server for group in window.use if group != "generator")
    return [
        _cpu("CPU per frame, server over bare", ratios(server_cpu, bare_cpu), "×", bar=1.12, goal=1.05),
        Figure(
            name="throughput over cores ÷ (server + generator CPU)",
            unit="×",
            rounds=ratios(server_fps, possible),
            bar=0.97,
            at_most=False,
        ),
        Figure(
            name="throughput over bare, generator on the same cores",
            unit="×",
            rounds=per_core,
            bar=0.86,
            goal=0.90,
            at_most=False,
        ),
        Figure(name="  bare throughput", unit="fps", rounds=tuple(bare_fps)),
        Figure(name="  server throughput", unit="fps", rounds=tuple(server_fps)),
        _cpu("  bare CPU per frame", tuple(bare_cpu), "ms"),
        _cpu("  server CPU per frame", tuple(server_cpu), "ms"),
        *[_cpu(f"    {group}", tuple(w.cpu_ms(group) for w in server if group in w.use), "ms") for group in groups],
        _cpu("  generator CPU per frame", tuple(generator_cpu), "ms"),
        Figure(
            name="  generator's share of all CPU", unit="%", rounds=tuple(100 * r for r in ratios(generator_cpu, both))
        ),
        Figure(name="  latency p50, saturated", unit="ms", rounds=tuple(w.percentile(50) for w in server)),
        Figure(name="  latency p99, saturated", unit="ms", rounds=tuple(w.percentile(99) for w in server)),
        Figure(name="  cores used by others", unit="", rounds=tuple(w.foreign for w in (*bare, *server))),
    ]


def _alone(bare: list[Window], server: list[Window]) -> list[Figure]:
    bare_p50, server_p50 = [w.percentile(50) for w in bare], [w.percentile(50) for w in server]
    above = tuple(s - b for s, b in zip(server_p50, bare_p50, strict=True))
    return [
        Figure(name="one client: p50 above bare", unit="ms", rounds=above, bar=0.9),
        Figure(name="  bare p50", unit="ms", rounds=tuple(bare_p50)),
        Figure(name="  server p50", unit="ms", rounds=tuple(server_p50)),
    ]


def _cpu(
    name: str, rounds: tuple[float, ...], unit: str, bar: float | None = None, goal: float | None = None
) -> Figure:
    return Figure(name=name, unit=unit, rounds=rounds, bar=bar, goal=goal)
