"""The fleet's own endpoints; HAProxy sends these paths here, whichever replicas there are.

GET  /livez               the fleet's process answers
GET  /readyz              503 until as many replicas are active as shall be
GET  /v1/status           every replica's state and its own /v1/status, and their sums
GET  /metrics             the replicas' metrics, each with the label `replica`, and the fleet's
POST /v1/fleet/restart    begin a rolling restart (needs the admin token)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from framelane.server.doors.admin import refusal
from framelane.server.doors.answers import answer, json_answer

from .asking import get
from .metrics import merge
from .roster import Entry, Roster
from .states import State

_ASK_S = 2.0
_ASKED = (State.SPARE, State.ACTIVE, State.UNWELL, State.DRAINING)


class Rolled(Protocol):
    """What operators can do; ``fleet.py`` gives it."""

    def roll(self) -> bool:
        """Begin a rolling restart; False if one is going on."""


class FleetDoor:
    """The endpoints.

    Args:
        roster: who serves.
        fleet: what can be operated.
        active: how many shall be active.
        token: the admin token; empty: verbs are refused.
        about: what /v1/status says about the fleet besides.
    """

    def __init__(
        self, roster: Roster, fleet: Rolled, active: int, token: str, about: Callable[[], dict[str, Any]]
    ) -> None:
        self._roster = roster
        self._fleet = fleet
        self._wanted = active
        self._token = token
        self._about = about

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/livez", self.livez),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route("/v1/status", self.status),
                Route("/v1/fleet/restart", self.restart, methods=["POST"]),
            ]
        )

    async def livez(self, _request: Request) -> Response:
        """Answered means alive."""
        return Response("ok\n", media_type="text/plain")

    async def readyz(self, _request: Request) -> Response:
        """Ready while one replica serves; degraded, and still 200, with fewer than there shall be."""
        serving = len(self._roster.of(State.ACTIVE))
        missing = [f"{serving} of {self._wanted} replicas are active"] if serving < self._wanted else []
        return json_answer(
            200 if serving else 503,
            {"ready": serving > 0, "reasons": [] if serving else missing, "degraded": missing if serving else []},
        )

    async def status(self, _request: Request) -> Response:
        """Everything, asked of the replicas now."""
        answers = await self._ask("/v1/status", msgspec.json.decode)
        replicas = [_described(entry, answers.get(entry.member.name)) for entry in self._roster.entries.values()]
        return json_answer(200, {**self._about(), "lanes": _lanes(answers.values()), "replicas": replicas})

    async def metrics(self, _request: Request) -> Response:
        """As ``metrics.merge``."""
        texts = await self._ask("/metrics", bytes.decode)
        return Response(merge(texts, self._own()), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def restart(self, request: Request) -> Response:
        """Begin a rolling restart."""
        refused = refusal(request, self._token)
        if refused is not None:
            return refused
        if not self._fleet.roll():
            return answer(409, "rolling", f"a rolling restart goes on: {self._roster.rolling} replica(s) to go")
        return json_answer(202, {"verb": "restart", "replicas": self._roster.rolling})

    async def _ask(self, path: str, read: Callable[[bytes], Any]) -> dict[str, Any]:
        """What the replicas answer, by name; those that do not are not in it."""
        names = [entry.member.name for entry in self._roster.of(*_ASKED)]
        asked: list[Awaitable[Any]] = [get(entry.member.port, path, _ASK_S) for entry in self._roster.of(*_ASKED)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return {
            name: read(got[1])
            for name, got in zip(names, found, strict=True)
            if not isinstance(got, BaseException) and got[0] == 200
        }

    def _own(self) -> list[Metric]:
        states = GaugeMetricFamily("framelane_fleet_replicas", "Replicas by state.", labels=["state"])
        for state in State:
            states.add_metric([state.value], len(self._roster.of(state)))
        restarts = sum(max(0, entry.restarts) for entry in self._roster.entries.values())
        return [
            states,
            CounterMetricFamily("framelane_fleet_restarts", "Replicas that were started again.", restarts),
            CounterMetricFamily("framelane_fleet_takeovers", "Spares that took over.", self._roster.takeovers),
        ]


def _described(entry: Entry, status: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": entry.member.name,
        "state": entry.state.value,
        "device": entry.member.device,
        "port": entry.member.port,
        "restarts": max(0, entry.restarts),
        "reasons": entry.reasons,
        "status": status,
    }


def _lanes(answers: Any) -> dict[str, int]:
    lanes = [found.get("lanes", {}) for found in answers]
    return {word: sum(each.get(word, 0) for each in lanes) for word in ("connected", "waiting")}
