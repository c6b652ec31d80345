"""Plants five bottlenecks, one after another, and asks the server what limits it; then none, and asks for the headroom.

\b
  slots       a simulated device that is slow            more frames than it can run
  preprocess  one worker for a pipeline with much to do before the model
  gateway     more tiny frames on `echo` than the event loop can take: 5,000 per second leave it half idle
  network     clients that send, and do not read
  admission   --max-clients, and more clients than that
  idle        none of these: for how many users would there be room? Then it is measured how many can be served

A planted bottleneck is found when the server names it in five looks in a row, a second apart, and says in its sentence
what was planted: in the last five, except that of clients that do not read, which come and go. The headroom is right
when it is within 25 % of the ceiling that is measured after it.

\b
  python -m framelane.loadtests.diagnose             all, about five minutes
  python -m framelane.loadtests.diagnose gateway idle

Devices are simulated (sim), so that their capacity is known. The exit status is 1 if a bar is missed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from rich.console import Console

from framelane.loadtests.bench import machine
from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.overload.crowd import Orders
from framelane.loadtests.overload.lab import WARM_UP_S, During, Effort, Lab
from framelane.loadtests.overload.targets import Running, Target, roomy
from framelane.loadtests.processes import Process

_LOOKS = 5
_LOAD_S = 14.0
_HEADROOM = 0.25
_DELIVERY = 0.99
_USER_FPS = 5.0
_WINDOW_S = 8.0
_FLOOD_FPS = 30_000.0


class Planted(NamedTuple):
    """A bottleneck: the server that has it, the load that shows it, and what the server must say."""

    limit: str
    says: str
    target: Target
    load: dict[str, Any]
    size: tuple[int, int] | None = None
    flood: bool = False
    deaf: int = 0
    seconds: float = _LOAD_S
    steady: bool = True


_OPEN = ("--max-clients", "1000")
PLANTED = {
    "slots": Planted(
        "slots",
        "the active slot is",
        Target(device="sim:80", arguments=_OPEN),
        {"rate": 5.0, "clients": 8},
    ),
    "preprocess": Planted(
        "preprocess",
        "the worker is",
        Target(device="sim:0.2", pipeline="face_mesh", workers=1, arguments=_OPEN),
        {"rate": 45.0, "clients": 12},
        size=(1280, 960),
    ),
    "gateway": Planted(
        "gateway",
        "the event loop is",
        Target(device="cpu", pipeline="echo", slots=0, arguments=_OPEN),
        {"rate": _FLOOD_FPS, "clients": 300},
        size=(32, 24),
        flood=True,
    ),
    "network": Planted(
        "network",
        "do not read",
        Target(device="sim:0.2", pipeline="face_mesh", arguments=(*_OPEN, "--stall-limit", "120")),
        {"rate": 5.0, "clients": 3},
        deaf=3,
        seconds=30.0,
        steady=False,
    ),
    "admission": Planted(
        "admission",
        "all 4 places are taken",
        Target(device="sim:8", arguments=("--max-clients", "4")),
        {"rate": 5.0, "clients": 12, "window": "follow"},
    ),
}


class Looks(msgspec.Struct, frozen=True):
    """What the server said while a bottleneck was there."""

    name: str
    wanted: str
    diagnoses: list[dict[str, Any]]
    found: bool

    @property
    def shown(self) -> dict[str, Any]:
        """The last diagnosis that named it, or the last of all."""
        return next((seen for seen in reversed(self.diagnoses) if seen["limit"] == self.wanted), self.diagnoses[-1])


class Headroom(msgspec.Struct, frozen=True):
    """What the server said while little was to do, and how many users it could really serve."""

    users: int
    diagnosis: dict[str, Any]
    told: int
    ceiling: int

    @property
    def error(self) -> float:
        """How far what was told is from what was measured, as a share of that."""
        return abs(self.users + self.told - self.ceiling) / max(1, self.ceiling)

    @property
    def found(self) -> bool:
        """Whether that is near enough."""
        return self.diagnosis["limit"] == "idle" and self.error <= _HEADROOM


def plant(lab: Lab, name: str) -> Looks:
    """Run one planted bottleneck."""
    planted = PLANTED[name]
    diagnoses: list[dict[str, Any]] = []
    with lab.server(planted.target) as server:

        def during(start: float, _generators: Sequence[int]) -> None:
            for second in range(int(WARM_UP_S + planted.seconds)):
                lab.wait(f"{name}: load", start + 1 + second)
                diagnoses.append(server.get_json("/v1/status")["diagnosis"])

        if planted.flood:
            _flood(lab, server, planted, during)
        else:
            lab.run(server, *_orders(lab, server, planted), during=during, tolerant=True)
    right = [seen["limit"] == planted.limit and planted.says in seen["sentence"] for seen in diagnoses]
    rows = [all(right[at : at + _LOOKS]) for at in range(len(right) - _LOOKS + 1)]
    return Looks(name, planted.limit, diagnoses, rows[-1] if planted.steady else any(rows))


def _flood(lab: Lab, server: Running, planted: Planted, during: During) -> None:
    assert planted.size is not None
    options = {"port": server.port, "frames": lab.save(_clip(*planted.size)), **planted.load}
    arguments = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    with Process(["-m", "framelane.loadtests.flood", *arguments], lab.path("flood.log")) as flood:
        during(time.monotonic() + 1, [flood.pid])
        flood.check()


def _orders(lab: Lab, server: Running, planted: Planted) -> list[Orders]:
    given = dict(planted.load)
    rate = given.pop("rate")
    frames = lab.save(_clip(*planted.size)) if planted.size else lab.frames
    well = lab.orders(server, rate, planted.seconds, frames=frames, kind="fixed", gather_s=20.0, **given)
    if not planted.deaf:
        return [well]
    phases = tuple(msgspec.structs.replace(phase, rate=60.0) for phase in well.phases)
    slow = {"clients": planted.deaf, "first": well.clients, "deaf": True, "phases": phases, "drain_s": 0.1, "seed": 2}
    return [well, msgspec.structs.replace(well, **slow)]


def _clip(width: int, height: int) -> FrameFile:
    clip = moving_face(width, height, frames=10)
    return FrameFile(clip.fps, list(clip.frames))


def headroom(lab: Lab, target: Target, users: int, say: Callable[[str], None]) -> Headroom:
    """Ask for the headroom with few users, then find how many it really serves."""
    diagnosis: dict[str, Any] = {}
    with lab.server(target) as server:

        def during(start: float, _generators: Sequence[int]) -> None:
            lab.wait("idle: load", start + WARM_UP_S + _LOAD_S)
            diagnosis.update(server.get_json("/v1/status")["diagnosis"])

        lab.run(server, _users(lab, server, users, _LOAD_S), during=during, tolerant=True)
    say(f"{users} users: {diagnosis['sentence']}")
    told = diagnosis.get("headroom_users") or 0
    return Headroom(users, diagnosis, told, _ceiling(lab, target, users + told, say))


def _ceiling(lab: Lab, target: Target, guess: int, say: Callable[[str], None]) -> int:
    """The most users of whom 99 % of the frames are answered in time, to a twentieth."""
    step = max(1, guess // 20)
    count = guess
    served = _serves(lab, target, count, say)
    while served and count < 4 * guess:
        count += step
        if not _serves(lab, target, count, say):
            return count - step
    while not served and count > step:
        count -= step
        served = _serves(lab, target, count, say)
    return count


def _serves(lab: Lab, target: Target, users: int, say: Callable[[str], None]) -> bool:
    with lab.server(roomy(target, users)) as server:
        run = lab.valid(lambda: lab.run(server, _users(lab, server, users, _WINDOW_S)))
    delivery = run.summary().delivery
    say(f"{users} users: {100 * delivery:.1f} % delivered")
    return delivery >= _DELIVERY


def _users(lab: Lab, server: Running, users: int, seconds: float) -> Orders:
    return lab.orders(server, _USER_FPS, seconds, clients=users, kind="fixed", window="follow", gather_s=15.0)


class Session:
    """All that was asked for; Ctrl-C keeps what was measured."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.looks: list[Looks] = []
        self.headroom: Headroom | None = None

    def run(self, lab: Lab, names: Sequence[str]) -> None:
        """Plant one after another."""
        for name in names:
            if name == "idle":
                self.headroom = found = headroom(lab, Target(device="sim:8"), 4, self.say)
                self.say(
                    f"told {found.users} + {found.told} users, measured {found.ceiling}: "
                    f"{100 * found.error:.0f} % off: {'right' if found.found else 'WRONG'}"
                )
                continue
            looks = plant(lab, name)
            self.looks.append(looks)
            shown = looks.shown
            self.say(f"{name}: {'right' if looks.found else 'WRONG'}: {shown['sentence']} → {shown['advice']}")

    def say(self, text: str) -> None:
        """Tell what is going on."""
        self._console.out(f"{time.strftime('%H:%M:%S')} {text}", highlight=False)

    def wait(self, _what: str, until: float) -> None:
        """Sleep until a moment of ``time.monotonic``."""
        time.sleep(max(0.0, until - time.monotonic()))

    @property
    def right(self) -> bool:
        """Whether all that was planted was named."""
        return all(looks.found for looks in self.looks) and (self.headroom is None or self.headroom.found)

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        return {"planted": msgspec.to_builtins(self.looks), "headroom": msgspec.to_builtins(self.headroom)}


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice([*PLANTED, "idle"]), metavar="[BOTTLENECK]...")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("out/diagnose.json"),
              show_default=True, help="file for everything that was said")  # fmt: skip
def main(names: tuple[str, ...], output: Path) -> None:
    """Entry point of the process."""
    facts = machine()
    console = Console(soft_wrap=True)
    session = Session(console)
    console.print(f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_average'][0]:.2f}; devices are SIMULATED")
    complete = True
    with tempfile.TemporaryDirectory(prefix="framelane-diagnose-") as folder:
        clip = moving_face()
        lab = Lab(Path(folder), FrameFile(clip.fps, list(clip.frames)), Target(), Effort(), session.say, session.wait)
        try:
            session.run(lab, names or [*PLANTED, "idle"])
        except KeyboardInterrupt:
            session.say("interrupted; what was measured so far is kept")
            complete = False
    output.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": facts, "command": sys.argv[1:], "complete": complete, **session.record()}
    output.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"written to {output}")
    sys.exit(not (complete and session.right))


if __name__ == "__main__":
    main()
