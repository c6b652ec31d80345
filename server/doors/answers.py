"""What HTTP endpoints have in common: who asks, and answers that are JSON, or an error with a code and a message."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response


def answer(status: int, code: str, message: str, retry_after_ms: int | None = None, *, close: bool = False) -> Response:
    """An error. ``close``: the rest of the request's body is not read."""
    body: dict[str, Any] = {"code": code, "message": message}
    response_headers = {"connection": "close"} if close else {}
    if retry_after_ms is not None:
        body["retry_after_ms"] = retry_after_ms
        response_headers["retry-after"] = str(math.ceil(retry_after_ms / 1000))
    return json_answer(status, body, response_headers)


def json_answer(status: int, body: Any, response_headers: dict[str, str] | None = None) -> Response:
    """Any JSON."""
    headers = {"x-content-type-options": "nosniff", **(response_headers or {})}
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def bearer(request: Request) -> str | None:
    """The token of ``Authorization: Bearer …``; never one of the address, which ends up in logs."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
