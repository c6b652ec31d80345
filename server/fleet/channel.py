"""The way between replicas: one Redis (or Valkey) channel per fleet, with redis-py.

Why not python-socketio's Redis manager: it is made to emit from anywhere to anyone. It publishes every emit to every
process, base64 in JSON, at a hundred times the cost of a local one; it has no proof that its listener lives; and a
mistaken room in a message becomes a broadcast. Here nothing of a frame may leave its replica, messages are typed and
few (``messages.py``), and whatever reaches a client goes through the one function that delivers to one lane.

Publishing never waits: what cannot be sent now is dropped and counted, since a beat of yesterday is worth nothing and
an operator is told how many replicas heard. What is said while a message is on its way goes with the next one, in
order, so that many clients that come at once are few messages. Two connections: a subscriber whose socket has no
timeout, since silence is normal there (a default timeout loses messages), and a publisher whose socket has a short one.
Bytes stay bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from framelane.server.config import ConfigError
from framelane.server.errors import BadMessage

from .messages import Beat, Message, decode, encode
from .pulse import BEAT_S, Pulse

log = logging.getLogger("framelane.fleet")

_CONNECT_S = 1.0
_MOST_WAITING = 1024  # a Redis that has stopped is noticed some beats later: until then this is what may wait for it
_AGAIN_S = 1.0
_LOCK_S = 60
_TURN_PAUSE_S = 0.2
# Gives a lock back only if it is still one's own.
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Channel:
    """This replica's end.

    Args:
        url: of Redis: redis://, rediss:// or unix://.
        fleet: its name; fleets that share a Redis do not hear each other.
        replica: this one's name, unique in the fleet.
        beat: what to say of oneself now.
        hear: called with each message, one's own included, on the event loop.

    Raises:
        ConfigError: the address cannot be read.
    """

    def __init__(
        self, url: str, fleet: str, replica: str, beat: Callable[[], Beat], hear: Callable[[Message], None]
    ) -> None:
        try:
            _client(url, None)
        except ValueError as error:
            raise ConfigError(f"redis = {_without_password(url)}: {error}") from None
        self._url = url
        self._topic = f"framelane:{fleet}:replicas"
        self._lock = f"framelane:{fleet}:drain"
        self._replica = replica
        self._beat = beat
        self._hear = hear
        self._publisher: Redis | None = None
        self._said_down = False
        self._waiting: deque[Message] = deque()
        self._sending: asyncio.Task[None] | None = None
        self.pulse = Pulse()
        self.unsent = 0
        self.unreadable = 0

    @property
    def works(self) -> bool:
        """Whether the other replicas can be reached."""
        return self.pulse.works(time.monotonic())

    async def run(self) -> None:
        """Keep the way open until it is cancelled."""
        while True:
            try:
                await self._once()
            except (RedisError, OSError, TimeoutError) as error:
                self._say_down(error)
            self.pulse.lost()
            await asyncio.sleep(_AGAIN_S)

    def publish(self, message: Message) -> None:
        """Send to all replicas, soon; dropped and counted if they cannot be reached."""
        if self._publisher is None or not self.works or len(self._waiting) >= _MOST_WAITING:
            self.unsent += 1
            return
        self._waiting.append(message)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(self._publisher))

    async def my_turn(self, patience: float) -> bool:
        """Wait until no other replica of the fleet drains, so that they do it one at a time.

        Returns False if it is not to be had within ``patience`` seconds, or cannot be asked for: who has to go goes.
        """
        until = time.monotonic() + patience
        while self._publisher is not None and self.works and time.monotonic() < until:
            try:
                if await self._publisher.set(self._lock, self._replica, nx=True, ex=_LOCK_S):
                    return True
            except (RedisError, OSError, TimeoutError):
                return False
            await asyncio.sleep(_TURN_PAUSE_S)
        return False

    async def turn_over(self) -> None:
        """Let the next replica drain."""
        if self._publisher is not None:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self._publisher.eval(_RELEASE, 1, self._lock, self._replica)

    async def _once(self) -> None:
        """Connect, and serve until something breaks."""
        quick = _client(self._url, socket_timeout=_CONNECT_S)
        patient = _client(self._url, socket_timeout=None)
        async with quick, patient, patient.pubsub(ignore_subscribe_messages=True) as listener:
            async with asyncio.timeout(2 * _CONNECT_S):
                await quick.ping()
                await listener.subscribe(self._topic)
            self._publisher = quick
            self.pulse.connected(time.monotonic())
            listening = asyncio.create_task(self._listen(listener))
            try:
                await self._beat_on(quick, listening)
            finally:
                self._publisher = None
                listening.cancel()
                await asyncio.wait([listening])

    async def _beat_on(self, quick: Redis, listening: asyncio.Task[None]) -> None:
        while not self.pulse.is_dead(time.monotonic()):
            await quick.publish(self._topic, encode(self._beat()))
            await asyncio.wait([listening], timeout=BEAT_S)
            if listening.done():
                listening.result()
                raise ConnectionError("the subscription ended")
        raise ConnectionError("own beats do not come back: the listener is dead")

    async def _listen(self, listener: object) -> None:
        async for message in listener.listen():  # type: ignore[attr-defined]
            if message["type"] == "message":
                self._take(message["data"])

    def _take(self, data: bytes) -> None:
        try:
            message = decode(data)
        except BadMessage as error:
            self.unreadable += 1
            log.debug("%s", error.message)
            return
        if isinstance(message, Beat) and message.replica == self._replica:
            self.pulse.heard(time.monotonic())
            self._say_up()
        try:
            self._hear(message)
        except Exception:  # a bug in one verb must not cost the way to the others
            log.exception("a message of another replica could not be dealt with")

    async def _send(self, publisher: Redis) -> None:
        """Send what waits, until nothing does."""
        while self._waiting:
            messages = list(self._waiting)
            self._waiting.clear()
            async with publisher.pipeline(transaction=False) as together:
                for message in messages:
                    together.publish(self._topic, encode(message))
                try:
                    await together.execute()
                except (RedisError, OSError, TimeoutError):
                    self.unsent += len(messages)

    def _say_down(self, error: BaseException) -> None:
        if not self._said_down:
            self._said_down = True
            log.warning("the other replicas cannot be reached: %s; clients here are served as before", error)

    def _say_up(self) -> None:
        if self._said_down:
            self._said_down = False
            log.info("the other replicas can be reached again")


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", url)


def _client(url: str, socket_timeout: float | None) -> Redis:
    return Redis.from_url(
        url,
        socket_timeout=socket_timeout,
        socket_connect_timeout=_CONNECT_S,
        decode_responses=False,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )
