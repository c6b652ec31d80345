"""Operators' verbs: who may, what is done, what is logged and what is refused."""

import logging
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette

from framelane.server.doors.admin import AdminDoor
from framelane.server.slots.supervisor import SlotRefused

TOKEN = "a-token-of-the-test"
RIGHT = {"authorization": f"Bearer {TOKEN}"}


class Operated:
    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.drained = 0
        self.refusal = ""

    def operate(self, verb: str, slot: int) -> None:
        if self.refusal:
            raise SlotRefused(self.refusal)
        self.done.append((verb, slot))

    def drain(self) -> None:
        self.drained += 1


@pytest.fixture
def operated() -> Operated:
    return Operated()


def client(operated: Operated, token: str = TOKEN) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=AdminDoor(operated, token).routes()), client=("10.1.2.3", 999))
    return httpx.AsyncClient(transport=transport, base_url="http://here")


@pytest.fixture
async def http(operated: Operated) -> AsyncIterator[httpx.AsyncClient]:
    async with client(operated) as http:
        yield http


@pytest.mark.parametrize("verb", ["promote", "drain", "restart"])
@pytest.mark.parametrize("name", ["3", "slot-3"])
async def test_a_verb_is_carried_out(http: httpx.AsyncClient, operated: Operated, verb: str, name: str) -> None:
    answer = await http.post(f"/v1/slots/{name}/{verb}", headers=RIGHT)
    assert (answer.status_code, answer.json()) == (200, {"slot": "slot-3", "verb": verb})
    assert operated.done == [(verb, 3)]


async def test_the_replica_is_drained(http: httpx.AsyncClient, operated: Operated) -> None:
    assert (await http.post("/v1/drain", headers=RIGHT)).status_code == 202
    assert operated.drained == 1


async def test_it_is_logged_who_did_what_and_why(http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    await http.post("/v1/slots/1/drain", headers=RIGHT, json={"why": "new driver\nfake line"})
    await http.post("/v1/drain", headers=RIGHT)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        r"drain of slot-1 by admin at 10.1.2.3 ('new driver\nfake line')",
        "drain of this replica by admin at 10.1.2.3 (no reason given)",
    ]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"why": 3}', b"\xff" * 100, b'{"why": "' + b"x" * 5000 + b'"}'])
async def test_a_reason_that_cannot_be_read_stops_nobody(
    http: httpx.AsyncClient, operated: Operated, body: bytes
) -> None:
    assert (await http.post("/v1/slots/1/promote", headers=RIGHT, content=body)).status_code == 200
    assert operated.done == [("promote", 1)]


async def test_what_cannot_be_done_is_409_with_the_reason_and_logged(
    http: httpx.AsyncClient, operated: Operated, caplog: pytest.LogCaptureFixture
) -> None:
    operated.refusal = "it would leave no active slot"
    answer = await http.post("/v1/slots/0/drain", headers=RIGHT)
    assert (answer.status_code, answer.json()["message"]) == (409, "it would leave no active slot")
    assert "is refused: it would leave no active slot" in caplog.messages[0]


@pytest.mark.parametrize("path", ["/v1/slots/0/promote", "/v1/slots/0/drain", "/v1/slots/0/restart", "/v1/drain"])
@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": TOKEN}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": "Bearer ä".encode()}],
)
async def test_without_the_token_nothing_happens(
    http: httpx.AsyncClient, operated: Operated, caplog: pytest.LogCaptureFixture, path: str, headers: dict[str, str]
) -> None:
    answer = await http.post(path, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not operated.done
    assert not operated.drained
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer "}, RIGHT])
async def test_without_a_configured_token_it_says_how_to_have_one(operated: Operated, given: dict[str, str]) -> None:
    async with client(operated, "") as http:
        answer = await http.post("/v1/slots/0/drain", headers=given)
        assert (answer.status_code, answer.json()["code"]) == (403, "no_admin_token")
        assert "FRAMELANE_ADMIN_TOKEN" in answer.json()["message"]
        assert (await http.post("/v1/drain", headers=given)).status_code == 403
    assert not operated.done
    assert not operated.drained


@pytest.mark.parametrize(
    "path", ["/v1/slots/0/explode", "/v1/slots/x/drain", "/v1/slots/-1/drain", "/v1/slots/²/drain"]
)
async def test_unknown_slots_and_verbs_are_404(http: httpx.AsyncClient, operated: Operated, path: str) -> None:
    assert (await http.post(path, headers=RIGHT)).status_code == 404
    assert not operated.done


async def test_verbs_are_posts(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/slots/0/drain", headers=RIGHT)).status_code == 405
    assert (await http.get("/v1/drain", headers=RIGHT)).status_code == 405
