"""The Locust users. Importing it patches sockets, as Locust does.

    WebSocketUser        /ws, lean                          SocketIOUser   /socket.io/, lean
    StockSocketIOUser    /socket.io/ with python-socketio's own client, on locust.contrib.socketio: see ``stock.py``

A user's greenlet only waits for its end. Frames are sent by the process's metronome and answers read in callbacks of
the event loop, so users cost what their messages cost.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable
from typing import Any

from gevent.event import Event
from locust import User, task

from .album import ClipCamera, size_of
from .audience import Act, Life, Persona, Presence, cast
from .replay import LEAVES_AFTER_S, Programme, SizedCamera
from .shared import Shared
from .streams import Stream, Transport
from .transports import LeanTransport, ShapedTransport


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
        self._shared: Shared = environment.framelane_shared()
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
        stream.heedless = self._persona.conduct == "deaf"
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
        interval = 1 / (self._shared.choices.fps * self._persona.haste)
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

    def _tell(self, name: str, age_ms: float) -> None:
        """Into Locust's own statistics: frames by door, drops and failed connects as its failures."""
        if self._shared.choices.records:
            return  # ``framelane swarm`` reads the records instead, and it is a tenth of what a frame costs here
        good = name in ("result", "connect")
        self.environment.events.request.fire(
            request_type=self.door,
            name="connect" if name.startswith(("connect", "refused")) else "frame",
            response_time=age_ms,
            response_length=0,
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


def _turned(camera: ClipCamera) -> str:
    """The size after the phone was turned."""
    width, height = size_of(camera.size)
    return f"{height}x{width}"
