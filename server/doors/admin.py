"""Operators' verbs over HTTP. They need the admin token (``Authorization: Bearer …``).

    POST /v1/slots/{id}/promote    a standby becomes active; where there are as many as there may be, one steps back
    POST /v1/slots/{id}/drain      an active slot finishes what it has, and is not used until it is promoted again
    POST /v1/slots/{id}/restart    a new process for a slot; an active one finishes what it has first
    POST /v1/drain                 the whole replica, as SIGTERM does: tell clients, finish, exit

The body may be ``{"why": "…"}``; every verb is logged with who asked and why. What cannot be done, for example since it
would leave no active slot, is refused with 409 and the reason. A slot's id is its number, or "slot-N".
"""

from __future__ import annotations

import hmac
import logging
from typing import Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from framelane.preprocess.logs import ALWAYS
from framelane.server.slots.supervisor import SlotRefused

from .answers import answer, json_answer

log = logging.getLogger("framelane.admin")

_VERBS = ("promote", "drain", "restart")
_MOST_BODY_BYTES = 4096
_TOLD = 200


class Reason(msgspec.Struct, frozen=True):
    """The body of a verb."""

    why: str = ""


class Operated(Protocol):
    """What is operated; ``app.py`` gives it."""

    def operate(self, verb: str, slot: int) -> None:
        """Carry out a verb on a slot.

        Raises:
            SlotRefused: not now; the message says why.
        """

    def drain(self) -> None:
        """Begin to drain the replica."""


class AdminDoor:
    """The endpoints of operators.

    Args:
        replica: what is operated.
        token: the admin token; empty if none is configured, and then every verb is refused.
    """

    def __init__(self, replica: Operated, token: str) -> None:
        self._replica = replica
        self._token = token

    def routes(self) -> list[BaseRoute]:
        """For the application."""
        return [
            Route("/v1/slots/{id}/{verb}", self.slot, methods=["POST"]),
            Route("/v1/drain", self.drain, methods=["POST"]),
        ]

    async def slot(self, request: Request) -> Response:
        """Promote, drain or restart one slot."""
        number, verb = request.path_params["id"].removeprefix("slot-"), request.path_params["verb"]
        if verb not in _VERBS:
            return answer(404, "unknown_verb", f"a slot's verbs are {', '.join(_VERBS)}")
        if not (number.isascii() and number.isdigit() and len(number) < 4):
            return answer(404, "unknown_slot", 'a slot\'s id is its number, or "slot-N"')
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        who, why = _who(request), await _why(request)
        try:
            self._replica.operate(verb, int(number))
        except SlotRefused as error:
            log.warning("%s of slot-%s by %s (%s) is refused: %s", verb, number, who, why, error.message, extra=ALWAYS)
            return answer(409, error.code, error.message)
        log.warning("%s of slot-%s by %s (%s)", verb, number, who, why, extra=ALWAYS)
        return json_answer(200, {"slot": f"slot-{number}", "verb": verb})

    async def drain(self, request: Request) -> Response:
        """Drain the replica."""
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        log.warning("drain of this replica by %s (%s)", _who(request), await _why(request), extra=ALWAYS)
        self._replica.drain()
        return json_answer(202, {"verb": "drain"})


def refusal(request: Request, token: str) -> Response | None:
    """The answer to whoever does not show the admin token; None if it was shown.

    Args:
        request: with ``Authorization: Bearer …``.
        token: the admin token; empty if none is configured, and then everybody is refused.
    """
    if not token:
        message = "operators' verbs are off: start the server with FRAMELANE_ADMIN_TOKEN, or admin_token in its file"
        return answer(403, "no_admin_token", message)
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
        return None
    log.warning("an operator's verb from %s without the admin token: %.100r", _who(request), request.url.path)
    response = answer(401, "unauthorized", "the admin token is needed: Authorization: Bearer …")
    response.headers["www-authenticate"] = "Bearer"
    return response


def _who(request: Request) -> str:
    return f"admin at {request.client.host}" if request.client else "admin"


async def _why(request: Request) -> str:
    """The reason that was given, as one line for the log; a body that cannot be read gives none."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BODY_BYTES:
                return "no reason given"
        why = msgspec.json.decode(body, type=Reason).why if body else ""
    except (ClientDisconnect, msgspec.DecodeError):
        why = ""
    return repr(why[:_TOLD]) if why else "no reason given"
