"""What operators watch, as JSON; the page /ops, `framelane top` and others read it.

    GET /v1/ops            the document: status, live figures, diagnosis
    GET /v1/ops/history    the last 15 minutes, a row per 5 seconds, as columns
    GET /v1/ops/stream     server-sent events: ``ops`` every second, ``history`` for each new row

The document (times in milliseconds, rates per second, shares from 0 to 1; null: nothing came that could tell)::

    at           seconds since 1970
    status       {version, pid, uptime_s, pipeline, device: {requested, used, simulated}, ready, reasons: [text],
                 draining, restarts: {workers, slots}, hangs: {workers, slots}, promotions, given_up: {id: why}}
    diagnosis    {limit, sentence, advice, evidence: {slots, workers, gateway, cores, others, lost, unread, gpu?},
                 window_s, headroom_users}; limit: gpu, slots, preprocess, gateway, fan_out, network, admission, idle
    live         of the last 5 seconds; null in the first two:
                 {window_s, clients, admitted, waiting, sending, not_reading, received_per_s, goodput_per_s, delivery,
                 p50_ms, p95_ms, p99_ms, drops_per_s: {reason: rate, every reason of the protocol, slow_reader, left},
                 refused_per_s, stages_ms: {queue, worker_wait, preprocess, slot_wait, run, postprocess, deliver},
                 batch_mean, bytes_in_per_s, bytes_out_per_s, inside, inflight_limit, mailbox_bytes, capacity_fps,
                 pace_ms, loop_lag_ms: {p50, p99}, gil, cores, cores_used, cores_used_by_others}
    processes    [{kind: gateway | worker | slot | audit, id, pid, state, busy, cpu, core_wait, done_per_s, frames,
                 pss_bytes, device?}]; busy: share of the time at work, of which core_wait without a core;
                 cpu: cores used; slots have the states of ``slots/states.py``, workers those of ``pool.Worker.state``
    gpus         [{index, name, memory_used, memory_total, utilisation}] of the cards that slots use (``ops/gpu.py``)

The history is ``{step_s, columns: {name: [value, …]}}``, oldest first, with the columns of ``ops/watch.COLUMNS``; an
event ``history`` is one row, ``{name: value}``. Each event is encoded once, however many watch; who watches too slowly
misses some. There may be ``MOST_VIEWERS`` of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from framelane.server.ops.watch import Watch, encode

from .answers import answer

MOST_VIEWERS = 64


class OpsDoor:
    """The endpoints.

    Args:
        watch: what is told.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._viewers = 0
        self._next: asyncio.Future[bytes] | None = None
        watch.on_look = self._looked

    def routes(self) -> list[BaseRoute]:
        """For the application."""
        return [
            Route("/v1/ops", self.document),
            Route("/v1/ops/history", self.history),
            Route("/v1/ops/stream", self.stream),
        ]

    async def document(self, _request: Request) -> Response:
        """The document."""
        return _json(self._watch.document())

    async def history(self, _request: Request) -> Response:
        """The last quarter of an hour."""
        return _json(self._watch.history())

    async def stream(self, _request: Request) -> Response:
        """The document, again and again."""
        if self._viewers >= MOST_VIEWERS:
            return answer(503, "busy", f"{MOST_VIEWERS} watch already", retry_after_ms=10_000)
        return StreamingResponse(self._events(), media_type="text/event-stream", headers=_UNCACHED)

    async def _events(self) -> AsyncIterator[bytes]:
        self._viewers += 1
        try:
            yield b"retry: 2000\n\n" + _event("ops", self._watch.document())
            while True:
                yield await asyncio.shield(self._coming())
        finally:
            self._viewers -= 1

    def _coming(self) -> asyncio.Future[bytes]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def _looked(self, row: dict[str, Any] | None) -> None:
        """Encode what is new, once for all who wait for it."""
        if self._next is None:
            return
        events = _event("ops", self._watch.document())
        if row is not None:
            events = _event("history", row) + events
        self._next.set_result(events)
        self._next = None


_UNCACHED = {"cache-control": "no-store", "x-accel-buffering": "no"}


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encode(data))


def _json(document: Any) -> Response:
    return Response(encode(document), media_type="application/json", headers={"cache-control": "no-store"})
