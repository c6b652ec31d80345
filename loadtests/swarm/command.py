"""The command ``framelane swarm``."""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from framelane.loadtests import tools
from framelane.loadtests.overload.targets import Target, roomy
from framelane.loadtests.processes import cores
from framelane.loadtests.report import as_csv

from . import pages
from .album import MIXED_SIZES, SIZES, Album, size_of
from .audience import AUDIENCES, with_turns
from .findings import Objective
from .replay import LADDER, ReplayError, read_sessions
from .run import Course, Given, Orders, Site, Swarming, own_server
from .screen import described, expected_s, line_of_progress
from .shapes import SHAPES, Wish

VOID = 4
"""Exit status: the generator was too late, so nothing was found out about the server; as in ``plugin.py``."""
_DOORS = {
    "both": ("WebSocketUser", "SocketIOUser"),
    "ws": ("WebSocketUser",),
    "socketio": ("SocketIOUser",),
    "stock": ("StockSocketIOUser",),
}
_PLACES = ("--max-clients", "--client-fps")


@click.command(name="swarm")
@click.option("-u", "--users", type=click.IntRange(1), default=100, show_default=True, help="the most users at once")
@click.option("--fps", type=click.FloatRange(0.01, 60), default=0.75, show_default=True, help="frames/s of each user")
@click.option("--shape", type=click.Choice(SHAPES), default="steady", show_default=True, help="see above")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="each level is held")
@click.option("--first", type=click.IntRange(1), default=50, show_default=True, help="users at first (steps, ramp)")
@click.option("--step", type=click.IntRange(1), default=150, show_default=True, help="users more per step (steps)")
@click.option("--spawn-rate", type=click.FloatRange(1), default=50.0, show_default=True, help="users coming per second")
@click.option("--door", type=click.Choice(list(_DOORS)), default="both", show_default=True, help="see above")
@click.option("--sizes", default=",".join(SIZES), show_default=True, help="of pictures: 640x480,320x240; or mixed")
@click.option("--audience", type=click.Choice(list(AUDIENCES)), default="steady", show_default=True, help="see above")
@click.option("--replay", type=click.Path(exists=True, dir_okay=False), help="sessions that `serve --record` wrote")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="of the generator")
@click.option("--delivery", type=click.FloatRange(0, 1), default=0.979, show_default=True, help="objective: at least")
@click.option("--p50-ms", type=click.FloatRange(0), default=259.0, show_default=True, help="objective: at most; 0: any")
@click.option("--url", default="", help="a running server, http://host:port  [default: one is started]")
@click.option("--device", default="auto", show_default=True, help="of the server that is started, as in `serve`")
@click.option("--pipeline", default="face_mesh", show_default=True, help="as in `serve`, or sharpness: one run a frame")
@click.option("--slots", type=click.IntRange(0), default=0, help="active slots  [default: fits the machine]")
@click.option("--workers", type=click.IntRange(0), default=0, help="workers  [default: fits the machine]")
@click.option("--serve", multiple=True, metavar="ARGS", help="further arguments for `framelane serve`")
@tools.output_option("swarm")
def main(output: Path, url: str, serve: tuple[str, ...], **given: Any) -> None:
    """Let hundreds of users stream a moving face, and tell what each of them got.

    Frames are due at fixed intervals, from a phase of each user's own, whether or not answers come (an open loop), and
    age counts from the moment a frame was due. Pictures are real JPEGs of one face, in several qualities and motions,
    played in real time: at 0.75 fps two of them are 1.33 s of motion apart. After the last frame answers are waited
    for before anything is counted. A failed connect fails the run; a generator whose own lag p99 is over 50 ms voids
    it. Users run in Locust; the same users are there for plain Locust: locust -f loadtests/locustfile.py.

    \b
    Shapes
      steady   --users come and stay for --seconds
      steps    from --first to --users by --step, each level held: the curve, and the most users that hold the objective
      ramp     from --first to --users without a stop    spike   a quarter, all at once, a quarter again
      soak     as steady; choose a long --seconds: the first fifth is compared with the last, and memory with memory
    Audiences
      steady   everybody streams all the time
      audience people who think, hide their tab, turn their phone, have slow 3G or lossy Wi-Fi, lose their connection
      hostile  the same with one in five that never reads, speaks an old protocol or sends garbage; the figures of
               honest users are told apart, and only theirs count
    Doors
      both     half of the users each    ws   plain websockets    socketio   Socket.IO, default parser
      stock    python-socketio's own client through locust.contrib.socketio: 1.0 ms of CPU per frame where a lean
               Socket.IO user takes 0.25 ms, so 0.6 of a core at 800 users. Therefore it is not the default; on the
               wire both are the same, and tests hold lean users to it. Shaped networks need a lean door.

    \b
      framelane swarm -u 500 --device sim:8 --pipeline sharpness --slots 4     a server of known capacity
      framelane swarm --shape steps --first 200 -u 800 --seconds 30            this machine's curve
      framelane swarm --url http://localhost:8000 --audience hostile -u 200
      framelane swarm --replay sessions.ndjson -u 300

    A running server promises each client 10 fps unless told otherwise, and lets in only as many as that allows:
    start it with --client-fps 0.75 or --max-clients, or users will be told to wait (the report says so).

    Exit status: 0 valid and the objective held at every level; 1 it did not, or connects failed; 2 nothing could be
    started; 4 void; 130 interrupted. Ctrl-C keeps what was measured and leaves no process.
    """
    out = tools.console()
    objective = Objective(delivery=given["delivery"], p50_ms=given["p50_ms"])
    facts = {**tools.machine_facts(), "users": f"{given['users']}, {given['door']}, {given['audience']}"}
    subject = pages.Subject(
        fps=given["fps"], audience=given["audience"], shape=given["shape"], objective=objective, facts=facts,
        own_server=not url, cores=cores(),
    )  # fmt: skip
    with (
        tools.failing(ValueError, OSError, ReplayError, http.client.HTTPException, msgspec.MsgspecError),
        tempfile.TemporaryDirectory(prefix="framelane-swarm-") as name,
    ):
        try:
            course = _run(out, Path(name), url, tools.serve_arguments(serve), given)
        except KeyboardInterrupt:  # before there was anything to keep
            sys.exit(tools.INTERRUPTED)
        if course.interrupted:
            out.print("[yellow]interrupted; what was measured so far:[/]")
        report, verdict, users = pages.describe(subject, course)
    if users:
        output.mkdir(parents=True, exist_ok=True)
        (output / "swarm-users.csv").write_text(as_csv(pages.user_table(users)), encoding="utf-8")
    tools.finish(out, report, output, {"met": 0, "missed": tools.FAILED, "void": VOID}[verdict])


def _run(out: Console, folder: Path, url: str, serve: list[str], given: dict[str, Any]) -> Course:
    """Draw the pictures, find or start the server, and let the swarm loose."""
    wish = Wish(
        shape=given["shape"], users=given["users"], first=given["first"], step=given["step"],
        seconds=given["seconds"], rate=given["spawn_rate"],
    )  # fmt: skip
    stages = wish.stages()
    out.print(f"[dim]drawing the pictures; {described(stages)}[/]")
    orders = Orders(_DOORS[given["door"]], _arguments(given, wish, _clips(folder, given)), expected_s(stages))
    with contextlib.ExitStack() as stack:
        site: Site = Given(url) if url else stack.enter_context(own_server(_target(given, serve), folder))
        tell = stack.enter_context(line_of_progress(out, orders.seconds, given["fps"]))
        return Swarming(site, orders, folder, tell).run()


def _clips(folder: Path, given: dict[str, Any]) -> Path:
    """Draw what the cameras see. Raises ValueError for a size that is none, ReplayError for a bad file."""
    sizes = MIXED_SIZES if given["sizes"] == "mixed" else tuple(given["sizes"].split(","))
    for size in sizes:
        size_of(size)
    if given["replay"]:
        read_sessions(Path(given["replay"]))  # a bad file is told now, and by name
    path = folder / "clips.msgpack"
    shown = LADDER if given["replay"] else with_turns(given["audience"], sizes)
    Album.render(shown, given["fps"]).save(path)
    return path


def _arguments(given: dict[str, Any], wish: Wish, clips: Path) -> tuple[str, ...]:
    """Locust's own arguments and those of ``locustfile.py``."""
    values = {
        "--users": wish.users, "--spawn-rate": wish.rate, "--shape": wish.shape, "--first": wish.first,
        "--step": wish.step, "--hold": wish.seconds, "--fps": given["fps"], "--sizes": given["sizes"],
        "--audience": given["audience"], "--clips": clips,
    }  # fmt: skip
    arguments = [part for name, value in values.items() for part in (name, str(value))]
    if given["replay"]:
        arguments += ["--replay", os.path.abspath(given["replay"])]
    if given["processes"] > 1:
        arguments += ["--processes", str(min(given["processes"], 4 * cores()))]
    return tuple(arguments)


def _target(given: dict[str, Any], arguments: list[str]) -> Target:
    """The server that is started; with a place for everybody unless told otherwise."""
    target = Target(
        pipeline=given["pipeline"], device=given["device"], slots=given["slots"], workers=given["workers"],
        arguments=tuple(arguments), precedence=True,
    )  # fmt: skip
    chosen = any(argument.startswith(_PLACES) for argument in arguments)
    return target if chosen else roomy(target, given["users"])


if __name__ == "__main__":
    main()
