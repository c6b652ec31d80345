"""Operators' verbs on a real server, with a client that must not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.clients import bystander
from e2e.frames import signed
from e2e.servers import Serve, serving, wait_until

TOKEN = "of-the-operators"
PICTURE = signed(10, 10)
OPTIONS = ("--pipeline", "pipelines:Mirror", "--device", "sim:10", "--deadline-ms", "30000", "--workers", "1")


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Serve]:
    slots = ("--active-slots", "1", "--standby-slots", "1")
    with serving(logs, *OPTIONS, *slots, environment={"FRAMELANE_ADMIN_TOKEN": TOKEN}) as server:
        yield server
        assert TOKEN not in server.log() + server.output() + json.dumps(server.status())


def verb(server: Serve, path: str, token: str = TOKEN) -> tuple[int, dict[str, str]]:
    status, body = server.request("POST", path, b'{"why": "a test"}', {"authorization": f"Bearer {token}"})
    return status, json.loads(body)


def states(server: Serve) -> dict[str, str]:
    return {slot["id"]: slot["state"] for slot in server.status()["slots"]}


def settle(server: Serve) -> dict[str, str]:
    """Slot ids by state, once one is active and one is standby."""

    def settled() -> dict[str, str] | None:
        found = {state: name for name, state in states(server).items()}
        return found if set(found) == {"active", "standby"} else None

    return wait_until(settled, "one slot is active and one is standby")


@pytest.mark.parametrize("verb_and_state", ["promote standby", "drain active", "restart active", "restart standby"])
async def test_clients_do_not_notice(server: Serve, verb_and_state: str) -> None:
    word, state = verb_and_state.split()
    before = await asyncio.to_thread(settle, server)
    pid = next(slot["pid"] for slot in server.status()["slots"] if slot["id"] == before[state])
    async with bystander(server.port, PICTURE) as client:
        await client.until(lambda: client.results >= 3, "it is served")
        status, _ = await asyncio.to_thread(verb, server, f"/v1/slots/{before[state]}/{word}")
        assert status == 200
        if word != "restart" or state == "active":  # the other one serves
            await asyncio.to_thread(
                wait_until, lambda: settle(server)["active"] != before["active"], "the other slot is active"
            )
        if word == "restart":
            await asyncio.to_thread(
                wait_until, lambda: pid not in [slot["pid"] for slot in server.status()["slots"]], "it was replaced"
            )
        await asyncio.to_thread(settle, server)
        served = client.results
        await client.until(lambda: client.results >= served + 3, "it is served still")
        if word == "drain":
            await asyncio.to_thread(verb, server, f"/v1/slots/{before['active']}/promote")  # it is used again
    assert f"{word} of {before[state]} by admin at 127.0.0.1 ('a test')" in server.log()


def test_what_cannot_be_done_is_refused_with_the_reason(server: Serve) -> None:
    found = settle(server)
    status, body = verb(server, f"/v1/slots/{found['active']}/promote")
    assert (status, "only a standby" in body["message"]) == (409, True)
    status, body = verb(server, "/v1/slots/31/restart")
    assert (status, "there is no slot-31" in body["message"]) == (409, True)


def test_the_last_slot_can_neither_be_drained_nor_restarted(logs: Path) -> None:
    options = ("--active-slots", "1", "--standby-slots", "0")
    with serving(logs, *OPTIONS, *options, environment={"FRAMELANE_ADMIN_TOKEN": TOKEN}) as server:
        for word in ("drain", "restart"):
            status, body = verb(server, f"/v1/slots/0/{word}")
            assert (status, "no active slot" in body["message"]) == (409, True)
        assert states(server) == {"slot-0": "active"}
        assert server.json("/readyz")["ready"]


def test_without_the_token_nobody_may(server: Serve, mirror_server: Serve) -> None:
    assert verb(server, "/v1/drain", "guessed")[0] == 401
    assert verb(mirror_server, "/v1/drain")[0] == 403


async def test_draining_over_http_is_as_sigterm(logs: Path) -> None:
    with serving(logs, *OPTIONS, environment={"FRAMELANE_ADMIN_TOKEN": TOKEN}) as server:
        assert await asyncio.to_thread(verb, server, "/v1/drain") == (202, {"verb": "drain"})
        assert await asyncio.to_thread(server.wait) == 0
        await asyncio.to_thread(server.assert_nothing_left)
