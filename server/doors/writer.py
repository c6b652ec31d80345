"""The transport's end of delivery: puts finished packets on one websocket, without a task for each.

An ASGI server's ``send`` is a coroutine that hardly ever waits: as long as the client reads, it writes to the socket
and returns. So it is stepped by hand, to its end, in the very call that delivers. Only if it waits (the transport's
buffer is full) a task takes over where it stopped, and tells ``Delivery`` when the packet has been taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from framelane.preprocess.packets import SOCKETIO, parts
from framelane.server.lanes.delivery import Delivery
from framelane.server.lanes.lane import Lane

from .transport import Send, protocol_of

log = logging.getLogger(__name__)

_CLOSE_PATIENCE_S = 2.0


class SocketWriter:
    """Writes the packets of one connection (``lanes.lane.Writer``).

    Args:
        asgi: the connection's ``send``, as the ASGI server gave it.
        flavour: of the packets.
        delivery: told when a packet that had to wait has been taken.
        farewell: a packet that goes before a close of the server's own, if the protocol has one.
    """

    __slots__ = ("_asgi", "_closing", "_dead", "_delivery", "_farewell", "_flavour", "_task", "_write_now", "lane")

    def __init__(self, asgi: Send, flavour: int, delivery: Delivery, farewell: bytes = b"") -> None:
        self._asgi = asgi
        self._flavour = flavour
        self._delivery = delivery
        self._farewell = farewell
        self._closing: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._dead = False
        protocol = protocol_of(asgi)
        self._write_now = protocol.write_message if protocol is not None else None
        self.lane: Lane | None = None

    def write(self, packet: bytes) -> bool:
        """As ``lanes.lane.Writer.write``. On a connection that is lost it returns False and never reports back."""
        if self._dead:
            return False
        messages = parts(SOCKETIO, packet) if self._flavour == SOCKETIO else (packet,)
        for index, message in enumerate(messages):
            if self._write_now is not None and self._write_now(message):
                continue
            steps = self._asgi(_event(message)).__await__()
            try:
                waited_for = next(steps)
            except StopIteration:
                continue
            except Exception as error:
                self._lost(error)
                return False
            rest = _Rest(steps, waited_for)
            self._task = asyncio.get_running_loop().create_task(self._finish(rest, messages[index + 1 :]))
            return False
        return True

    def ping(self, text: str) -> bool:
        """Write a text message of the transport's own; False if the transport takes nothing now."""
        if self._dead or self._task is not None:
            return False
        steps = self._asgi(_event(text)).__await__()
        try:
            next(steps)
        except StopIteration:
            return True
        except Exception as error:
            self._lost(error)
            return False
        steps.close()  # it waited for room, and had written nothing
        return False

    def close(self, code: int, reason: str) -> None:
        """As ``lanes.lane.Writer.close``. Its door sees it end, and cleans up."""
        if self._task is not None:  # the client does not read: it would not read this either
            self.abort()
        elif not self._dead:
            self._dead = True
            farewell = events(self._flavour, self._farewell) if self._farewell else ()
            self._closing = asyncio.get_running_loop().create_task(close(self._asgi, code, reason, farewell))

    def abort(self) -> None:
        """Cut the connection. Its door sees it end, and cleans up."""
        self._dead = True
        if self._task is not None:
            self._task.cancel()
        transport = transport_of(self._asgi)
        if transport is not None:
            transport.abort()

    async def _finish(self, begun: _Rest, messages: Sequence[str | bytes]) -> None:
        try:
            await begun
            for message in messages:
                await self._asgi(_event(message))
        except Exception as error:
            self._lost(error)
            return
        self._task = None
        if self.lane is not None:
            self._delivery.written(self.lane)

    def _lost(self, error: Exception) -> None:
        self._dead = True
        log.debug("a connection was lost while it was written to: %r", error)


class _Rest:
    """The rest of a coroutine that has been stepped until it waited for a future."""

    __slots__ = ("_steps", "_waited_for")

    def __init__(self, steps: Generator[Any, None, None], waited_for: Any) -> None:
        self._steps = steps
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, None, None]:
        try:
            yield self._waited_for
            yield from self._steps
        finally:
            self._steps.close()


def transport_of(asgi: Send) -> asyncio.WriteTransport | None:
    """The socket transport behind uvicorn's ``send``: ASGI itself has no way to cut a client that does not read."""
    transport = getattr(getattr(asgi, "__self__", None), "transport", None)
    return transport if hasattr(transport, "abort") else None


async def close(asgi: Send, code: int, reason: str = "", farewell: Iterable[dict[str, Any]] = ()) -> None:
    """Close with a code; a client that does not read it, or does not answer, is cut soon after."""
    transport = transport_of(asgi)
    if transport is not None:
        asyncio.get_running_loop().call_later(_CLOSE_PATIENCE_S, transport.abort)
    with contextlib.suppress(OSError, RuntimeError):
        for event in farewell:
            await asgi(event)
        await asgi({"type": "websocket.close", "code": int(code), "reason": reason})


def was_lost(end: dict[str, Any] | None) -> bool:
    """Whether a connection ended without a word: uvicorn gives a reason, if empty, where a close frame was received."""
    return end is not None and "reason" not in end


def events(flavour: int, packet: bytes) -> list[dict[str, Any]]:
    """The ASGI events of a packet, in order."""
    return [_event(message) for message in parts(flavour, packet)]


def _event(message: str | bytes) -> dict[str, Any]:
    if isinstance(message, str):
        return {"type": "websocket.send", "text": message}
    return {"type": "websocket.send", "bytes": message}
