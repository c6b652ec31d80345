"""HTTP: the page, health, metrics, status, and inference for those who have one picture and no patience for sockets.

    GET  /              the demo page            GET  /livez       the event loop turns
    GET  /ops           the operators' page      GET  /readyz      503 with the reasons until frames can be served
    GET  /static/…      their files
    GET  /sdk/…         the browser's client
    GET  /metrics       Prometheus               GET  /v1/status   JSON for people and tools
    POST /v1/infer      one image in, JSON out: a lane of its own that lives for one frame, and a signed token is spent

None of these waits behind frames. Long jobs are in ``audit.py``, operators' verbs in ``admin.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from framelane.preprocess.packets import JSON, json_result
from framelane.server.errors import Refused
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane
from framelane.server.ops.metrics import render
from framelane.server.ops.watch import Watch
from framelane.server.protocol import Drop, Hello, Refusal

from .answers import answer, bearer, json_answer
from .gate import address_of
from .origin import check_origin

_STATIC = Path(__file__).parent / "static"
_SDK = Path(__file__).parents[1] / "sdk"
_BODY_TIMEOUT_S = 10.0
_MOST_DISCARDED = 64 * 2**20
_HOST = re.compile(r"[A-Za-z0-9.\-\[\]:]{1,255}")

_REFUSED_STATUS = {
    Refusal.UNAUTHORIZED: 401,
    Refusal.ORIGIN: 403,
    Refusal.FULL: 429,
    Refusal.RATE_LIMITED: 429,
    Refusal.DRAINING: 503,
    Refusal.BAD_REQUEST: 400,
    Refusal.IDLE: 408,
    Refusal.KICKED: 403,
}
_DROPPED_STATUS = {Drop.INVALID: 422, Drop.EXPIRED: 504, Drop.FAILED: 500, Drop.SUPERSEDED: 503}
_MESSAGES = {Drop.EXPIRED: "no answer within the deadline", Drop.FAILED: "the pipeline failed"}


class Provider(Protocol):
    """What the rest of the server tells about itself; ``app.py`` gives it."""

    def ready(self) -> list[str]:
        """Why frames cannot be served now; empty when they can."""

    def degraded(self) -> list[str]:
        """What does not work though frames can be served."""

    def status(self) -> dict[str, Any]:
        """The body of /v1/status, without the lanes."""


class HttpDoor:
    """The pages and endpoints.

    Args:
        exchange: where the frames of /v1/infer go.
        provider: readiness and status.
        further: routes of other doors.
        watch: looks at the replica, for /metrics.
    """

    def __init__(
        self, exchange: Exchange, provider: Provider, further: Sequence[BaseRoute] = (), watch: Watch | None = None
    ) -> None:
        self._exchange = exchange
        self._provider = provider
        self._further = further
        self._watch = watch
        self._reading = 0  # bytes of bodies that have come so far; they share the budget's size with the mailboxes

    def app(self) -> Starlette:
        """The Starlette application with all routes."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/ops", self.operators),
                Route("/livez", self.livez),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route("/v1/status", self.status),
                Route("/v1/infer", self.infer, methods=["POST"]),
                *self._further,
                Mount("/static", _Static(directory=_STATIC, check_dir=False)),
                Mount("/sdk", _Scripts(directory=_SDK, check_dir=False)),
            ]
        )

    async def page(self, request: Request) -> Response:
        """The demo page."""
        return _page("index.html", request, camera="self")

    async def operators(self, request: Request) -> Response:
        """The operators' page. Anybody may read what it shows; its verbs need the admin token (``admin.py``)."""
        return _page("ops/index.html", request)

    async def livez(self, _request: Request) -> Response:
        """Answered means alive."""
        return Response("ok\n", media_type="text/plain")

    async def readyz(self, _request: Request) -> Response:
        """Whether frames can be served, and if not, why."""
        reasons = self._provider.ready()
        if self._exchange.draining and "draining" not in reasons:
            reasons = ["draining", *reasons]
        body = {"ready": not reasons, "reasons": reasons, "degraded": self._provider.degraded()}
        if device := self._provider.status().get("device"):
            body["device"] = device
        return json_answer(503 if reasons else 200, body)

    async def metrics(self, _request: Request) -> Response:
        """All counters."""
        text = render(self._exchange, self._provider.status(), self._watch)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def status(self, _request: Request) -> Response:
        """What runs here, and how many clients it serves."""
        lanes = {"connected": len(self._exchange.delivery.lanes), "waiting": self._exchange.reception.room.present}
        return json_answer(200, {**self._provider.status(), "lanes": lanes, "draining": self._exchange.draining})

    async def infer(self, request: Request) -> Response:
        """One image in, its result as JSON out."""
        reasons = self._provider.ready()
        if reasons:
            return answer(503, "not_ready", "; ".join(reasons), self._exchange.limits.retry_after_ms)
        reply = _Reply(asyncio.get_running_loop().create_future())
        try:
            lane = self._enter(request, reply)
        except Refused as refusal:
            self._exchange.accounts.turned_away[refusal.code] += 1
            retry = refusal.retry_after_ms
            return answer(_REFUSED_STATUS[Refusal(refusal.code)], refusal.code, refusal.message, retry)
        try:
            return await self._infer(request, lane, reply)
        finally:
            self._exchange.disconnect(lane)

    def _enter(self, request: Request, reply: _Reply) -> Lane:
        check_origin(request.scope["headers"], self._exchange.limits)
        hello = Hello(token=bearer(request))
        return self._exchange.admit(hello, JSON, reply, may_wait=False, address=address_of(request.scope))

    async def _infer(self, request: Request, lane: Lane, reply: _Reply) -> Response:
        limit = self._exchange.limits.max_frame_bytes
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                body = await self._read(request, limit)
        except (TimeoutError, ClientDisconnect):
            return answer(408, "timeout", "the body did not come", close=True)
        except _TooLarge:
            await _discard(request)
            return answer(413, "too_large", f"the body is larger than {limit} bytes", close=True)
        except _Busy:
            return answer(503, "busy", "too many bodies at once", self._exchange.limits.retry_after_ms, close=True)
        self._exchange.frame(lane, 0, body)
        await _first(reply.packet, _disconnected(request))
        if not reply.packet.done():
            return Response(status_code=499)  # nobody reads it
        return _reply_response(reply.packet.result(), self._exchange.limits.retry_after_ms)

    async def _read(self, request: Request, limit: int) -> bytes:
        """The body.

        Raises:
            _TooLarge: as soon as it is certain that it has more than `limit` bytes.
            _Busy: the bodies that are being read would have more bytes than the mailboxes may have.
        """
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise _TooLarge
        pieces, size = [], 0
        try:
            async for piece in request.stream():
                size += len(piece)
                self._reading += len(piece)
                if size > limit:
                    raise _TooLarge
                if self._reading > self._exchange.limits.mailbox_bytes:
                    raise _Busy
                pieces.append(piece)
        finally:
            self._reading -= size
        return b"".join(pieces)


class _TooLarge(Exception):
    """The body has more bytes than a frame may have."""


class _Busy(Exception):
    """Too many bodies at once."""


class _Reply:
    """The writer of a lane that lives for one frame: its first packet is the answer."""

    __slots__ = ("packet",)

    def __init__(self, packet: asyncio.Future[bytes]) -> None:
        self.packet = packet

    def write(self, packet: bytes) -> bool:
        """As ``lanes.lane.Writer.write``."""
        if not self.packet.done():
            self.packet.set_result(packet)
        return True

    def close(self, code: int, reason: str) -> None:
        """Nothing to close: the answer has been written."""

    def abort(self) -> None:
        """Nothing to cut: the answer is one packet."""


class _Static(StaticFiles):
    """The page's files: cached, but asked for again by their ETag, so that a new version is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        response.headers["x-content-type-options"] = "nosniff"
        return response


class _Scripts(_Static):
    """The modules of the browser's client and nothing else that lies beside them; any page may load them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if not path.endswith(".js"):
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers["access-control-allow-origin"] = "*"
        return response


def _page(name: str, request: Request, camera: str = "") -> Response:
    path = _STATIC / name
    if not path.is_file():
        return answer(404, "not_found", "this build has no page")
    return FileResponse(path, headers=_page_headers(request.headers.get("host", ""), camera))


def _page_headers(host: str, camera: str) -> dict[str, str]:
    """A page may load and reach this host only; `host` as the browser sent it. Older browsers need ws: spelt out."""
    sockets = f" ws://{host} wss://{host}" if _HOST.fullmatch(host) else ""
    policy = (
        f"default-src 'self'; connect-src 'self'{sockets}; img-src 'self' blob: data:; media-src 'self' blob:; "
        "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": f"camera=({camera}), microphone=()",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


async def _discard(request: Request) -> None:
    """Read on for a while: a client that still sends when its connection closes sees a reset instead of the answer."""
    if "expect" in request.headers:
        return  # it waits to be told to go on
    left = _MOST_DISCARDED
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for piece in request.stream():
                left -= len(piece)
                if left < 0:
                    return


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(reply: asyncio.Future[bytes], gone: Awaitable[None]) -> None:
    """Wait for the answer, or until its client has gone."""
    watcher = asyncio.ensure_future(gone)
    either: set[asyncio.Future[Any]] = {reply, watcher}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()


def _reply_response(packet: bytes, retry_after_ms: int) -> Response:
    result = json_result(packet)
    if result is not None:  # large, and finished by the worker: nobody looks into it here
        return Response(result, media_type="application/json")
    dropped: dict[str, Any] = msgspec.json.decode(packet)[1]
    reason = str(dropped.get("reason", dropped.get("code", "failed")))
    status = _DROPPED_STATUS.get(Drop(reason), 503) if reason in list(Drop) else 500
    message = dropped.get("message") or _MESSAGES.get(Drop(reason), "not now")
    return answer(status, reason, message, retry_after_ms if status == 503 else None)
