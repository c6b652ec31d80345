"""The Locust users, and what a process of the swarm has for all of them. Importing it patches sockets, as Locust does.

    WebSocketUser        /ws, lean                          SocketIOUser   /socket.io/, lean
    StockSocketIOUser    /socket.io/ with python-socketio's own client, on locust.contrib.socketio: see ``stock.py``

A user's greenlet only waits for its end. Frames are sent by the process's metronome and answers read in callbacks of
the event loop, so users cost what their messages cost.
"""

from __future__ import annotations

import functools
import gc
import math
import random
import resource
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent
import msgspec
from gevent.event import Event
from locust import LoadTestShape, User, events, task
from locust.runners import MasterRunner, WorkerRunner

from framelane.loadtests.overload.precedence import run_on_time

from .album import MIXED_SIZES, SIZES, Album, ClipCamera, Gallery, size_of
from .audience import AUDIENCES, Act, Life, Persona, Presence, cast, with_turns
from .ledger import Ledger
from .ledger import User as Enrolled
from .metronome import Metronome
from .replay import LADDER, LEAVES_AFTER_S, Programme, SizedCamera, read_sessions
from .shapes import SHAPES, Stage, Walk, Wish
from .streams import DRAIN_S, Stream, Transport
from .transports import LeanTransport, ShapedTransport

_TICK_S = 0.1
_GARBAGE = 100_000  # objects between two collections: a frame makes none that needs one
_SLACK_S = 2.0
MARKS = "marks"
"""File of the levels that were reached, one JSON object a line."""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, as Locust's command line has it."""

    fps: float = 0.75
    sizes: tuple[str, ...] = SIZES
    audience: str = "steady"
    records: str = ""
    clips: str = ""
    replay: str = ""
    seed: int = 1


class Shared:
    """What the users of one process share; made when the first of them comes."""

    def __init__(self, choices: Choices, gallery: Gallery, host: str, process: int) -> None:
        self.choices = choices
        self.address = _address(host)
        self.personas = AUDIENCES[choices.audience]
        self.sessions = read_sessions(Path(choices.replay)) if choices.replay else []
        self.metronome = Metronome()
        self.gallery = gallery
        self.folder = Path(choices.records or tempfile.mkdtemp(prefix="framelane-swarm-"))
        self.ledger = Ledger(self.folder, process)
        self.present: dict[Stream, Event] = {}

    def run(self) -> None:
        """Begin to work; the process goes before others where it may, so that frames are sent when they are due."""
        run_on_time()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        gevent.spawn(self.metronome.run)
        gevent.spawn(self._tick)

    def _tick(self) -> None:
        """Look after the users a few times a second: what time alone changes, and who is done."""
        count = 0
        while True:
            now = time.monotonic()
            for stream, done in list(self.present.items()):
                if stream.done(now):
                    done.set()
                elif count % 10 == 0 or not stream.is_live:
                    stream.tick(now)
            if count % 10 == 0:
                self.ledger.used()
            count += 1
            gevent.sleep(_TICK_S)


class Streamer(User):
    """A user that streams; subclasses choose the door.

    Attributes:
        usual: whether it takes part where no user classes were named.
    """

    abstract = True
    door = ""
    usual = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._shared: Shared = environment.framelane_stage()
        number = self._shared.ledger.peek()
        persona = cast(self._shared.personas, number)
        self._persona = persona
        self._user = self._shared.ledger.enrol(self.door, persona.name, persona.honest)
        self._random = random.Random(self._user.number * 7919 + self._shared.choices.seed)
        self._presence = Presence()
        self._ended = Event()
        gallery = self._shared.gallery
        self.camera = SizedCamera(gallery, number) if self._shared.sessions else gallery.camera(number)
        self.stream = Stream(
            self._user, self._shared.ledger, self.camera, self._tell, self._random.random, persona.paced
        )

    def transport(self, persona: Persona) -> Transport:
        """What carries this user's messages."""
        shared = self._shared
        if persona.link != "good":
            return ShapedTransport(self.stream, self.door, shared.address, persona.link, shared.metronome)
        return LeanTransport(self.stream, self.door, shared.address, deaf=persona.conduct == "deaf")

    @task
    def stream_frames(self) -> None:
        """The whole life of the user."""
        if self._persona.conduct in ("old", "garbage"):
            from .strangers import Stranger

            shared = self._shared
            Stranger(self._persona.conduct, shared.address, self._random, self._ended, shared.ledger.strangers).run()
            return
        shared, stream = self._shared, self.stream
        stream.transport = self.transport(self._persona)
        now = time.monotonic()
        shared.present[stream] = self._ended
        try:
            stream.begin(now)
            if isinstance(self.camera, SizedCamera):
                self._replay(self.camera, now)
            else:
                self._keep_time(now)
                self._live(Life(self._persona, now, self._random.expovariate), self.camera)
            self._ended.wait()
        finally:
            del shared.present[stream]
            stream.close()

    def stop(self, force: bool = False) -> Any:
        """As Locust wants it: what was sent is still waited for, unless it is forced."""
        self.stream.finish(time.monotonic())
        if self._persona.conduct in ("old", "garbage"):
            self._ended.set()
        return super().stop(force)

    def _keep_time(self, now: float) -> None:
        """Frames at fixed intervals from a phase of one's own on, whatever becomes of them."""
        metronome, stream, presence = self._shared.metronome, self.stream, self._presence
        interval = 1 / self._shared.choices.fps
        stream.interval_ms = 1000 * interval

        def due(when: float) -> None:
            if not stream.over:
                metronome.at(when + interval, due)
                if presence.streams:
                    stream.due(when)

        metronome.at(now + self._random.random() * interval, due)

    def _replay(self, camera: SizedCamera, now: float) -> None:
        """Frames when and as large as they were in recorded sessions, from somewhere in the middle of the first."""
        metronome, stream = self._shared.metronome, self.stream
        programme = Programme(self._shared.sessions, self._random.random, now)
        programme.start -= self._random.random() * programme.session.seconds

        def play(now: float) -> None:
            for at, size in programme.frames():
                if at >= now:
                    metronome.at(at, frame(size))
            metronome.at(max(now, programme.stop) + LEAVES_AFTER_S, leave)

        def frame(size: int) -> Callable[[float], None]:
            def due(when: float) -> None:
                camera.wanted = size
                stream.due(when)

            return due

        def leave(_when: float) -> None:
            if not stream.over:
                stream.close()
                programme.next()
                metronome.at(programme.start, come)

        def come(when: float) -> None:
            if not stream.over:
                stream.begin(time.monotonic())
                play(when)

        play(now)

    def _live(self, life: Life, camera: ClipCamera) -> None:
        """Whatever happens in the user's life besides."""
        acts, metronome = life.acts(), self._shared.metronome

        def next_act() -> None:
            at, act = next(acts, (math.inf, Act.RESUME))
            metronome.at(at, functools.partial(do, act))

        def do(act: Act, _when: float) -> None:
            if self.stream.over:
                return
            if act is Act.VANISH:
                self.stream.leave(time.monotonic())
            elif act is Act.TURN:
                camera.size = _turned(camera)
            self._presence.does(act)
            next_act()

        next_act()

    def _tell(self, name: str, age_ms: float, size: int) -> None:
        """Into Locust's own statistics: frames by door, drops and failed connects as its failures."""
        if self._shared.choices.records:
            return  # ``framelane swarm`` reads the records instead, and it is a tenth of what a frame costs here
        good = name in ("result", "connect")
        self.environment.events.request.fire(
            request_type=self.door,
            name="connect" if name.startswith(("connect", "refused")) else "frame",
            response_time=age_ms,
            response_length=size,
            exception=None if good else _Fate(name),
            context={},
        )


class _Fate(Exception):
    """What became of a frame or a connect; Locust groups failures by its text."""


class WebSocketUser(Streamer):
    """A user of /ws."""

    door = "ws"


class SocketIOUser(Streamer):
    """A user of Socket.IO, lean."""

    door = "socketio"


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
    gallery = None if isinstance(environment.runner, MasterRunner) else Gallery(_album(choices))

    def stage() -> Shared:
        if not made:
            runner = environment.runner
            process = runner.worker_index if isinstance(runner, WorkerRunner) else 0
            assert gallery is not None
            made.append(Shared(choices, gallery, environment.host or "http://127.0.0.1:8000", process))
            made[0].run()
        return made[0]

    environment.framelane_stage = stage
    if not options.user_classes:
        environment.user_classes = [kind for kind in environment.user_classes if kind.usual]
    environment.stop_timeout = max(environment.stop_timeout or 0.0, DRAIN_S + _SLACK_S)
    if options.shape != "none":
        wish = Wish(
            shape=options.shape, users=options.num_users or 50, first=options.first, step=options.step,
            seconds=options.hold, rate=options.spawn_rate or 50.0,
        )  # fmt: skip
        environment.shape_class = Shape(wish.stages(), Path(options.records or tempfile.mkdtemp()))
        environment.shape_class.runner = environment.runner
    if not isinstance(environment.runner, MasterRunner):
        events.quitting.add_listener(  # type: ignore[no-untyped-call]
            lambda environment, **_: _leave(made, environment)
        )


def _leave(made: list[Shared], environment: Any) -> None:
    for stage in made:
        stage.ledger.save()
        if not stage.choices.records:
            print(verdict(stage.ledger))
        if stage.ledger.failed_connects:
            environment.process_exit_code = 1


def verdict(ledger: Ledger) -> str:
    """What a plain run of Locust says at its end, besides Locust's own tables."""
    failed = ledger.failed_connects
    return f"Framelane: {failed} failed connects" if failed else "Framelane: every connect succeeded"


def _turned(camera: ClipCamera) -> str:
    """The size after the phone was turned."""
    width, height = size_of(camera.size)
    return f"{height}x{width}"


def _album(choices: Choices) -> Album:
    if choices.clips:
        return Album.load(Path(choices.clips))
    if choices.replay:
        return Album.render(LADDER, choices.fps)
    return Album.render(with_turns(choices.audience, choices.sizes), choices.fps)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = socket.gethostbyname(parts.hostname or "127.0.0.1")
    return host, parts.port or 80


__all__ = ["Enrolled", "SocketIOUser", "WebSocketUser", "add_arguments", "set_up"]
