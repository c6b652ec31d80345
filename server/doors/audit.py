"""HTTP for long jobs: a clip in, its results out as they come.

    POST   /v1/audit            body: a ZIP of pictures, JPEGs in a row (MJPEG, also as multipart), an MP4, WebM or AVI;
                                or JSON {"clip": id of an earlier job, "steps": [{name?, first?, last?, every?}, …]}:
                                passes over the clip which that job brought. A signed token is spent
    GET    /v1/audit/{id}       ?from=N: the same stream again, from result N on (after a lost connection, for example)
    DELETE /v1/audit/{id}       cancel it; the results so far are kept

The answer is a stream: NDJSON, or server-sent events if that is what ``Accept`` names (then ``Last-Event-ID`` works as
``from`` does); with ``Accept: application/json`` it is the state of the job alone. A line is one of

    {"job": {id, state, format, results, errors, total, error?}}      first, and whenever something has changed
    {"result": {frame, step?, name?, result | error}, "n": N}         one per frame; `error` is {code, message}
    {"end": {as "job"}}                                               last

A job does not end with its connection: whoever has its id can come back until the retention time is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from framelane.models.errors import FramelaneError
from framelane.server.errors import Refused
from framelane.server.lanes.limits import Limits
from framelane.server.lanes.passes import Passes
from framelane.server.lanes.tokens import Pass
from framelane.server.slots.audit import AuditRefused, Job, Step
from framelane.server.slots.auditor import Auditor
from framelane.server.slots.uploads import Upload, UploadFailed

from .answers import answer, bearer, json_answer
from .origin import check_origin

_STATUS = {
    "bad_request": 400,
    "unauthorized": 401,
    "origin": 403,
    "unknown_job": 404,
    "timeout": 408,
    "too_large": 413,
    "busy": 503,
    "draining": 503,
    "full": 503,
    "no_audit_slot": 503,
    "not_ready": 503,
    "no_space": 507,
}
_RETRY_MS = 5000
_PIECE_TIMEOUT_S = 20.0
_UPLOAD_LIMIT_S = 1800.0
_UPLOADS_AT_ONCE = 2
_UPLOAD_BYTES_PER_S = 50e6
_READERS_AT_ONCE = 32
_STEPS_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_PROGRESS_S = 0.5
_SIGN_OF_LIFE_S = 10.0


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Passes over a clip that an earlier job brought."""

    clip: str
    steps: list[Step]


class Readiness(Protocol):
    """What the door asks of the rest of the server."""

    def ready(self) -> list[str]:
        """Why nothing can be served now; empty when it can."""


class AuditDoor:
    """The endpoints of long jobs.

    Args:
        auditor: who runs them.
        readiness: whether anything runs here.
        limits: origins, as for clients.
        passes: tokens, as for clients.
    """

    def __init__(self, auditor: Auditor, readiness: Readiness, limits: Limits, passes: Passes) -> None:
        self._auditor = auditor
        self._readiness = readiness
        self._limits = limits
        self._passes = passes
        self._uploads = 0
        self._readers = 0

    def routes(self) -> list[BaseRoute]:
        """For the application."""
        return [
            Route("/v1/audit", self.post, methods=["POST"]),
            Route("/v1/audit/{id}", self.get, methods=["GET"]),
            Route("/v1/audit/{id}", self.delete, methods=["DELETE"]),
        ]

    async def post(self, request: Request) -> Response:
        """Begin a job."""
        try:
            shown = self._check(request)
            reasons = self._readiness.ready()
            if reasons:
                raise AuditRefused("; ".join(reasons), code="not_ready", retryable=True)
            self._auditor.check()
            self._passes.spend(shown, "")
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
                job = await self._steps(request)
            else:
                job = await self._upload(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except FramelaneError as error:
            return _refusal(error, close=True)
        return self._answer(request, job, 0, 202)

    async def get(self, request: Request) -> Response:
        """The results of a job, from any on."""
        try:
            self._check(request, again=True)
            return self._answer(request, self._auditor.ledger.find(request.path_params["id"]), _first(request), 200)
        except FramelaneError as error:
            return _refusal(error)

    async def delete(self, request: Request) -> Response:
        """Cancel a job."""
        try:
            self._check(request, again=True)
            job = self._auditor.ledger.find(request.path_params["id"])
        except FramelaneError as error:
            return _refusal(error)
        self._auditor.cancel(job)
        ended = asyncio.Event()
        job.listeners.add(ended.set)
        try:
            while job.ended is None:
                await ended.wait()
                ended.clear()
        finally:
            job.listeners.discard(ended.set)
        return json_answer(200, job.describe())

    # -- what comes in -----------------------------------------------------------------------------------------------

    def _check(self, request: Request, *, again: bool = False) -> Pass | None:
        """Whether the caller may come in. With `again` it may show a token that has begun a job before."""
        check_origin(request.scope["headers"], self._limits)
        return self._passes.check(bearer(request), again=again)

    async def _upload(self, request: Request) -> Job:
        limit = self._auditor.config.clip_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise UploadFailed(f"the clip has {declared} bytes; the limit is {limit} (audit_bytes)")
        if self._uploads >= _UPLOADS_AT_ONCE:
            raise AuditRefused(f"{self._uploads} clips are coming in already", code="busy", retryable=True)
        self._uploads += 1
        upload = Upload(limit)
        try:
            async with asyncio.timeout(_UPLOAD_LIMIT_S):
                await self._receive(request, upload)
            return self._auditor.add(upload, (Step(),))
        except TimeoutError:
            raise UploadFailed("the clip did not come", code="timeout") from None
        finally:
            self._uploads -= 1
            upload.release()

    async def _receive(self, request: Request, upload: Upload) -> None:
        pieces = request.stream().__aiter__()
        while True:
            async with asyncio.timeout(_PIECE_TIMEOUT_S):
                piece = await anext(pieces, None)
            if piece is None:
                break
            await upload.append(piece)
            await asyncio.sleep(len(piece) / _UPLOAD_BYTES_PER_S)  # the loop is the clients'
        if not upload.size:
            raise AuditRefused("the body is the clip, and it is empty")
        await upload.flush()

    async def _steps(self, request: Request) -> Job:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _STEPS_BYTES:
                raise UploadFailed(f"a list of steps has at most {_STEPS_BYTES} bytes")
        try:
            asked = msgspec.json.decode(body, type=Steps)
        except msgspec.DecodeError as error:
            raise AuditRefused(f'the body is not {{"clip": …, "steps": […]}}: {error}') from None
        if not asked.steps:
            raise AuditRefused("a job has at least one step")
        clip = self._auditor.ledger.find(asked.clip).clip
        assert isinstance(clip, Upload)
        return self._auditor.add(clip, tuple(asked.steps))

    # -- what goes out -----------------------------------------------------------------------------------------------

    def _answer(self, request: Request, job: Job, first: int, status: int) -> Response:
        accept = request.headers.get("accept", "")
        location = {"location": f"/v1/audit/{job.id}", "cache-control": "no-store"}
        if "text/event-stream" in accept:
            encode, media_type = _sse, "text/event-stream"
        elif "application/json" in accept:
            return json_answer(status, job.describe(), location)
        else:
            encode, media_type = _ndjson, "application/x-ndjson"
        if self._readers >= _READERS_AT_ONCE:
            refusal = AuditRefused("too many are reading results already", code="busy", retryable=True)
            return _refusal(refusal)
        return StreamingResponse(self._stream(job, first, encode), 200, location, media_type)

    async def _stream(self, job: Job, first: int, encode: Any) -> AsyncIterator[bytes]:
        changed = asyncio.Event()
        job.listeners.add(changed.set)
        self._readers += 1
        try:
            yield encode("job", job.describe(), None)
            said = time.monotonic()
            while True:
                changed.clear()
                ended = job.ended is not None  # asked before the results are read, so that none is missed
                while first < len(job.results):
                    lines = await job.results.read(first, _CHUNK_BYTES)
                    yield b"".join(encode("result", msgspec.Raw(line), first + n) for n, line in enumerate(lines))
                    first += len(lines)
                if ended:
                    break
                silent_for = _PROGRESS_S if await _within(changed, _PROGRESS_S) else _SIGN_OF_LIFE_S
                if time.monotonic() - said >= silent_for:
                    said = time.monotonic()
                    yield encode("job", job.describe(), None)
            yield encode("end", job.describe(), None)
        except IndexError:  # its time was over before it had been read
            yield encode("end", {**job.describe(), "error": _EXPIRED}, None)
        finally:
            self._readers -= 1
            job.listeners.discard(changed.set)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _ndjson(name: str, value: Any, number: int | None) -> bytes:
    line = {name: value} if number is None else {name: value, "n": number}
    return msgspec.json.encode(line) + b"\n"


def _sse(name: str, value: Any, number: int | None) -> bytes:
    mark = b"" if number is None else b"id: %d\n" % number
    return b"event: " + name.encode() + b"\n" + mark + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _first(request: Request) -> int:
    """From which result on: ``?from=N``, or what follows the last event that an EventSource has seen."""
    asked, last = request.query_params.get("from"), request.headers.get("last-event-id", "")
    if asked is None:
        return int(last) + 1 if last.isascii() and last.isdigit() else 0
    if not (asked.isascii() and asked.isdigit() and len(asked) < 16):
        raise AuditRefused("from is the number of a result, counted from 0")
    return int(asked)


def _refusal(error: FramelaneError, *, close: bool = False) -> Response:
    status = _STATUS.get(error.code, 400)
    retry = error.retry_after_ms if isinstance(error, Refused) else _RETRY_MS if error.retryable else None
    return answer(status, error.code, error.message, retry, close=close)


_EXPIRED = {"code": "unknown_job", "message": "its results are not kept any more"}
