"""Operators' words and kicks over HTTP; they need the admin token (``Authorization: Bearer …``).

    POST /v1/notices   {"to": {…}, "text": "…"}    clients get the event `notice`
    POST /v1/kicks     {"to": {…}}                 their connections are ended (`kicked`, 4433)

``to`` names exactly one of ``lane`` (as in the log), ``ticket``, ``token`` (the id of a signed token, its jti) or
``campaign``. One replica is asked, all of its fleet act. The answer says how many clients of this replica were meant,
and how many other replicas were told.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from framelane.preprocess.logs import ALWAYS
from framelane.server.doors.admin import refusal
from framelane.server.doors.answers import answer, json_answer

from .messages import Target, Text
from .together import Together

log = logging.getLogger("framelane.admin")

_MOST_BODY_BYTES = 16 * 1024


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a notice."""

    to: Target
    text: Text


class Whom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a kick."""

    to: Target


_Body = TypeVar("_Body", Words, Whom)


class VerbsDoor:
    """The endpoints.

    Args:
        together: who carries the verbs out.
        token: the admin token; empty if none is configured, and then every verb is refused.
    """

    def __init__(self, together: Together, token: str) -> None:
        self._together = together
        self._token = token

    def routes(self) -> list[BaseRoute]:
        """For the application."""
        return [
            Route("/v1/notices", self.notices, methods=["POST"]),
            Route("/v1/kicks", self.kicks, methods=["POST"]),
        ]

    async def notices(self, request: Request) -> Response:
        """Say something to clients."""
        body = await self._body(request, Words)
        if isinstance(body, Response):
            return body
        return _done("notice", body.to, self._together.notice(body.to, body.text))

    async def kicks(self, request: Request) -> Response:
        """End connections."""
        body = await self._body(request, Whom)
        if isinstance(body, Response):
            return body
        return _done("kick", body.to, self._together.kick(body.to))

    async def _body(self, request: Request, kind: type[_Body]) -> _Body | Response:
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        try:
            body = msgspec.json.decode(await _read(request), type=kind)
        except (msgspec.MsgspecError, ClientDisconnect) as error:
            return answer(400, "bad_request", f"the body cannot be read: {error}")
        if body.to.named != 1:
            return answer(400, "bad_request", "name exactly one of lane, ticket, token and campaign in `to`")
        return body


async def _read(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BODY_BYTES:
            raise msgspec.ValidationError(f"more than {_MOST_BODY_BYTES} bytes")
    return body


def _done(verb: str, to: Target, outcome: dict[str, Any]) -> Response:
    whom = next(field for field in to.__struct_fields__ if getattr(to, field))
    shown = "…" if whom == "ticket" else repr(getattr(to, whom))
    log.warning("%s to %s %s: %d clients here", verb, whom, shown, outcome["clients_here"], extra=ALWAYS)
    return json_answer(202, {"verb": verb, **outcome})
