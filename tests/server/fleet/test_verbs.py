"""Operators' words and kicks over HTTP, to the clients of one replica."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from fake_pool import FakePool
from lane_world import Client
from starlette.applications import Starlette

from framelane.preprocess.packets import WEBSOCKET
from framelane.server.fleet.together import Together
from framelane.server.fleet.verbs import VerbsDoor
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.limits import Limits
from framelane.server.protocol import Hello

TOKEN = {"authorization": "Bearer operator"}


class World:
    """A replica that is alone, with one client."""

    def __init__(self, token: str = "operator") -> None:
        self.exchange = Exchange(FakePool(4), Limits(pipeline="echo"), time.monotonic)
        self.client = Client()
        self.lane = self.exchange.admit(Hello(), WEBSOCKET, self.client)
        self.exchange.greet(self.lane)
        door = VerbsDoor(Together(self.exchange, "a", 10.0, None), token)
        self._app = Starlette(routes=door.routes())

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            content = body if isinstance(body, bytes) else None
            return await http.post(
                path, json=None if content else body, content=content, headers=TOKEN if headers is None else headers
            )


async def test_words_reach_the_client_that_is_named() -> None:
    world = World()
    answer = await world.post("/v1/notices", {"to": {"lane": world.lane.id}, "text": "Back in five minutes"})
    assert answer.status_code == 202
    assert answer.json() == {"verb": "notice", "clients_here": 1, "other_replicas_told": 0, "degraded": []}
    assert world.client.told("notice") == [{"text": "Back in five minutes"}]


async def test_a_kick_ends_the_connection_that_is_named() -> None:
    world = World()
    assert (await world.post("/v1/kicks", {"to": {"ticket": "somebody else's"}})).json()["clients_here"] == 0
    assert world.client.closed is None
    assert (await world.post("/v1/kicks", {"to": {"ticket": world.lane.ticket}})).json()["clients_here"] == 1
    assert world.client.closed == (4433, "kicked")


@pytest.mark.parametrize(
    "body",
    [
        {"to": {}, "text": "x"},
        {"to": {"lane": "a", "campaign": "b"}, "text": "x"},
        {"to": {"everybody": True}, "text": "x"},
        {"to": {"lane": "a"}, "text": "x" * 2001},
        {"text": "x"},
        b"{",
        b'{"to": {"lane": "' + b"a" * 20_000 + b'"}, "text": "x"}',
    ],
)
async def test_a_target_that_is_not_exactly_one_is_refused(body: Any) -> None:
    world = World()
    assert (await world.post("/v1/notices", body)).status_code == 400
    assert not world.client.told("notice")


async def test_verbs_need_the_admin_token() -> None:
    body = {"to": {"lane": "a"}, "text": "x"}
    assert (await World().post("/v1/notices", body, {})).status_code == 401
    assert (await World(token="").post("/v1/notices", body)).status_code == 403
