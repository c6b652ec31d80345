"""What Locust calls: our options, what its environment is given, the shape, and the word at the end.

``locustfile.py`` puts the functions in place.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from locust import LoadTestShape, events
from locust.runners import MasterRunner, WorkerRunner

from . import findings
from .album import MIXED_SIZES, SIZES, Album, Gallery, size_of
from .audience import AUDIENCES, with_turns
from .ledger import Found
from .replay import LADDER
from .shapes import MARKS, SHAPES, Stage, Walk, Wish
from .shared import Choices, Shared
from .streams import DRAIN_S

VOID = 4
"""Exit status: the generator was too late, so nothing was found out about the server."""
_SLACK_S = 2.0


class Shape(LoadTestShape):
    """Walks through the stages, and writes down the levels that were reached."""

    abstract = True

    def __init__(self, stages: list[Stage], folder: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._walk = Walk(stages)
        self._path = folder / MARKS

    def tick(self) -> tuple[int, float] | None:
        """As Locust wants it."""
        runner = self.runner
        known = len(self._walk.marks)
        stage = self._walk.now(time.monotonic(), runner.user_count if runner else 0)
        if len(self._walk.marks) > known:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(self._walk.marks[-1]) + b"\n")
        return None if stage is None else (stage.users, stage.rate)


# -- Locust's listeners; ``locustfile.py`` puts them in place ---------------------------------------------------------


def add_arguments(parser: Any) -> None:
    """Our options of Locust's command line."""
    group = parser.add_argument_group("Framelane")
    group.add_argument("--fps", type=float, default=0.75, help="frames per second and user")
    group.add_argument("--sizes", default=",".join(SIZES), help="sizes of the pictures, as 640x480,320x240; or mixed")
    group.add_argument("--audience", choices=list(AUDIENCES), default="steady", help="who the users are")
    group.add_argument("--shape", choices=["none", *SHAPES], default="none", help="none: --users stay for --run-time")
    group.add_argument("--first", type=int, default=50, help="users at first, in steps and ramps")
    group.add_argument("--step", type=int, default=150, help="users more with each step")
    group.add_argument("--hold", type=float, default=60.0, help="seconds of each level of a shape")
    group.add_argument("--records", default="", help="folder for the records that `framelane swarm` reads")
    group.add_argument("--clips", default="", help="file of pictures that were drawn before")
    group.add_argument("--replay", default="", help="sessions to replay, as `framelane serve --record` wrote them")


def set_up(environment: Any) -> None:
    """Give the environment what its users share, and its shape."""
    options = environment.parsed_options
    sizes = MIXED_SIZES if options.sizes == "mixed" else tuple(options.sizes.split(","))
    for size in sizes:
        size_of(size)
    choices = Choices(
        fps=options.fps, sizes=sizes, audience=options.audience, records=options.records, clips=options.clips,
        replay=options.replay,
    )  # fmt: skip
    made: list[Shared] = []
    folder = Path(options.records or tempfile.mkdtemp(prefix="framelane-swarm-"))
    gallery = None if isinstance(environment.runner, MasterRunner) else Gallery(_album(choices))

    def shared() -> Shared:
        if not made:
            runner = environment.runner
            process = runner.worker_index if isinstance(runner, WorkerRunner) else 0
            assert gallery is not None
            made.append(Shared(choices, gallery, environment.host or "http://127.0.0.1:8000", folder, process))
            made[0].run()
        return made[0]

    environment.framelane_shared = shared
    if not options.user_classes:
        environment.user_classes = [kind for kind in environment.user_classes if kind.usual]
    environment.stop_timeout = max(environment.stop_timeout or 0.0, DRAIN_S + _SLACK_S)
    if options.shape != "none":
        wish = Wish(
            shape=options.shape, users=options.num_users or 50, first=options.first, step=options.step,
            seconds=options.hold, rate=options.spawn_rate or 50.0,
        )  # fmt: skip
        environment.shape_class = Shape(wish.stages(), folder)
        environment.shape_class.runner = environment.runner
    if not isinstance(environment.runner, MasterRunner):
        events.quitting.add_listener(  # type: ignore[no-untyped-call]
            lambda environment, **_: _leave(made, folder, environment)
        )


def _leave(made: list[Shared], folder: Path, environment: Any) -> None:
    """Write everything down; without ``--records`` nobody reads it, so say what it means, and be gone."""
    for shared in made:
        shared.ledger.save()
        found = Found.load(folder)
        if not shared.choices.records and found is not None:
            text, status = verdict(found)
            print(f"Framelane: {text}")
            environment.process_exit_code = status or environment.process_exit_code
            shutil.rmtree(folder)


def verdict(found: Found) -> tuple[str, int]:
    """What a plain run of Locust says at its end, besides Locust's own tables, and its exit status if it is not 0."""
    summary = findings.whole(found)
    failed = sum(found.sum("failed").values())
    text = (
        f"{summary.delivery:.2%} of {summary.sent:,} frames delivered, age p50 {summary.age.p50:.0f} ms, "
        f"p95 {summary.age.p95:.0f} ms, p99 {summary.age.p99:.0f} ms; {failed} failed connects; "
        f"generator's lag p99 {summary.lag.p99:.0f} ms"
    )
    if summary.sick:
        return f"{text}: VOID, it measured itself", VOID
    return text, 1 if failed else 0


def _album(choices: Choices) -> Album:
    if choices.clips:
        return Album.load(Path(choices.clips))
    if choices.replay:
        return Album.render(LADDER, choices.fps)
    return Album.render(with_turns(choices.audience, choices.sizes), choices.fps)
