"""The stock JavaScript client, in node, with both parsers: what a frontend uses, not what we think it does."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool

from support import ROOT, require_program

PARSERS = ["default", "msgpack"]
PACKAGES = ("socket.io-client@4.8", "socket.io-msgpack-parser@3")
SCRIPT = ROOT / "tests" / "data" / "socketio_client.mjs"


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which node finds the stock client."""
    require_program("node")
    npm, folder = require_program("npm"), tmp_path_factory.mktemp("node")
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        message = f"npm could not install {', '.join(PACKAGES)}: {done.stderr[-300:]}"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return folder


class Node:
    """A client in a process of its own, and all that it heard."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def next(self) -> tuple[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            name, body = json.loads(await self.process.stdout.readline())
        return name, body

    async def until(self, wanted: str) -> Any:
        while (heard := await self.next())[0] != wanted:
            assert heard[0] not in ("connect_error", "disconnect"), heard
        return heard[1]

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")


@contextlib.asynccontextmanager
async def node(
    folder: Path, gateway: Gateway, parser: str, frames: int = 0, path: str = "", **options: Any
) -> AsyncIterator[Node]:
    arguments = [str(SCRIPT), str(folder), gateway.http + path, parser, json.dumps(options), str(frames)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("node", *arguments, stdin=pipe, stdout=pipe)
    try:
        yield Node(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)


@pytest.mark.parametrize("parser", PARSERS)
async def test_frames_of_all_kinds_of_bytes_are_answered_and_acknowledged(
    gateway: Gateway, node_modules: Path, parser: str
) -> None:
    async with node(node_modules, gateway, parser, frames=6) as client:
        heard = [await client.next() for _ in range(2)]
        assert [name for name, _body in heard] == ["connect", "ready"]
        assert heard[1][1]["protocol"] == 1
        rest = []
        while (event := await client.next())[0] != "done":
            rest.append(event)
    results = [body for name, body in rest if name == "result"]
    assert [(result["seq"], result["size"], result["head"]) for result in results] == [
        (seq, 3, [1, 2, seq]) for seq in range(6)
    ]
    assert [body for name, body in rest if name == "ack"] == list(range(6))
    await gateway.until_gone()
    assert gateway.books()["delivered"] == 6


@pytest.mark.parametrize("parser", PARSERS)
async def test_refusal_tells_code_and_time(node_modules: Path, parser: str) -> None:
    places = {"max_clients": 0, "waiting_room": 0}
    async with run_gateway(EchoPool(), **places) as gateway, node(node_modules, gateway, parser) as client:
        name, error = await client.next()
    assert name == "connect_error"
    assert error["message"] == "all places are taken"
    assert error["data"] == {"code": "full", "retry_after_ms": 2000}


@pytest.mark.parametrize("parser", PARSERS)
async def test_waiting_room_is_heard(node_modules: Path, parser: str) -> None:
    async with run_gateway(EchoPool(), max_clients=1) as gateway, node(node_modules, gateway, parser) as first:
        await first.until("ready")
        async with node(node_modules, gateway, parser, frames=1) as second:
            assert (await second.until("waiting"))["position"] == 1
            first.say("close")
            await second.until("done")


@pytest.mark.parametrize("parser", PARSERS)
async def test_server_disconnect_is_seen_as_one(gateway: Gateway, node_modules: Path, parser: str) -> None:
    async with node(node_modules, gateway, parser) as client:
        sid = await client.until("connect")
        await client.until("done")
        await gateway.doors.socketio.disconnect(sid)
        assert await client.next() == ("disconnect", "io server disconnect")
        await gateway.until_gone()


@pytest.mark.parametrize("parser", PARSERS)
async def test_client_that_is_cut_for_its_frames_sees_a_server_disconnect(
    gateway: Gateway, node_modules: Path, parser: str
) -> None:
    async with node(node_modules, gateway, parser) as client:
        await client.until("done")
        lane = next(iter(gateway.exchange.delivery.lanes.values()))
        lane.writer.close(4431, "fatal_frames")
        assert await client.next() == ("disconnect", "io server disconnect")
        await gateway.until_gone()


@pytest.mark.parametrize("parser", PARSERS)
async def test_client_disconnect_leaves_nothing(gateway: Gateway, node_modules: Path, parser: str) -> None:
    async with node(node_modules, gateway, parser) as client:
        await client.until("done")
        client.say("close")
        assert await client.next() == ("disconnect", "io client disconnect")
        await gateway.until_gone()
        assert not gateway.doors.socketio.connections


async def test_polling_is_refused_with_the_cure(gateway: Gateway, node_modules: Path) -> None:
    async with node(node_modules, gateway, "default", transports=["polling"]) as client:
        name, error = await client.next()
    assert name == "connect_error"
    assert "transports: ['websocket']" in json.dumps(error)


async def test_foreign_namespace_is_refused(gateway: Gateway, node_modules: Path) -> None:
    async with node(node_modules, gateway, "default", path="/admin") as client:
        name, error = await client.next()
    assert (name, error["message"]) == ("connect_error", "Unable to connect")
