"""What the users of one process of the swarm share: the beat, the pictures, the ledger, and the look after them."""

from __future__ import annotations

import gc
import resource
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import gevent
import msgspec
from gevent.event import Event

from framelane.loadtests.overload.precedence import run_on_time

from .album import SIZES, Gallery
from .audience import AUDIENCES
from .ledger import Ledger
from .metronome import Metronome
from .replay import read_sessions
from .streams import Stream

_TICK_S = 0.1
_GARBAGE = 100_000  # objects between two collections: a frame makes none that needs one


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

    def __init__(self, choices: Choices, gallery: Gallery, host: str, folder: Path, process: int) -> None:
        self.choices = choices
        self.address = _address(host)
        self.personas = AUDIENCES[choices.audience]
        self.sessions = read_sessions(Path(choices.replay)) if choices.replay else []
        self.metronome = Metronome()
        self.gallery = gallery
        self.ledger = Ledger(folder, process)
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


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = socket.gethostbyname(parts.hostname or "127.0.0.1")
    return host, parts.port or 80
