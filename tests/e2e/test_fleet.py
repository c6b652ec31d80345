"""Several replicas as one: `framelane fleet`, and the topology of deploy/ on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.clients import Client
from e2e.servers import Serve, wait_until

from framelane.loadtests.faults.pictures import told_apart
from framelane.loadtests.fleet_lab import FleetServer
from framelane.loadtests.fleet_load import Crowd
from framelane.loadtests.processes import free_port
from support import ROOT, require_program

CLIENTS = 12
_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def fleet(logs: Path) -> Iterator[FleetServer]:
    require_program("haproxy")
    server = FleetServer(("--pipeline", "echo", "--device", "cpu", "--deadline-ms", "20000"), logs / "fleet.log")
    try:
        yield server
    finally:
        server.stop()


async def test_fleet_survives_a_death_and_a_rolling_restart_and_leaves_nothing(fleet: FleetServer) -> None:
    async with Crowd(fleet.url, told_apart(4, 64, 48), CLIENTS, 5.0) as crowd:
        await asyncio.sleep(0.5)
        victim = (await asyncio.to_thread(fleet.replicas, "active"))[0]
        had = victim["status"]["lanes"]["connected"]
        assert had == CLIENTS // 2, "least connections"
        os.kill(victim["status"]["pid"], signal.SIGKILL)
        await asyncio.to_thread(fleet.wait_for, lambda: fleet.status()["takeovers"] == 1, "the spare takes over")
        await asyncio.to_thread(fleet.wait_for, lambda: len(crowd.outages) == had, "its clients are served again")
        await asyncio.to_thread(fleet.wait_for, fleet.is_whole, "the dead one is the spare")
        assert fleet.replicas("spare")[0]["id"] == victim["id"]

        before = {replica["status"]["pid"] for replica in fleet.status()["replicas"]}
        rolled = time.monotonic()
        fleet.roll()
        await asyncio.to_thread(fleet.wait_for, lambda: fleet.status()["rolling"] > 0, "it begins")
        await asyncio.to_thread(fleet.wait_for, fleet.is_whole, "all were restarted")
        assert not before & {replica["status"]["pid"] for replica in fleet.status()["replicas"]}
        await asyncio.to_thread(fleet.wait_for, lambda: len(crowd.outages) >= had + CLIENTS, "all have moved")
        outcomes = crowd.outcomes(rolled, time.monotonic())
        assert set(outcomes) <= {"result", "superseded", "draining"}, outcomes
        assert all(outage.reason == "draining" for outage in crowd.out(rolled, time.monotonic()))
    os.kill(fleet.pid, signal.SIGKILL)
    assert fleet.leftovers() == ()


def test_a_fleet_that_cannot_start_says_why_and_ends(logs: Path) -> None:
    command = [sys.executable, "-m", "framelane.server.cli", "fleet", "--port", str(free_port())]
    done = subprocess.run(
        [*command, "--pipeline", "nowhere:Nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "nowhere" in done.stderr
    alone = [*command, "--balancer", "none", "--active", "1"]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "none can be a spare" in done.stderr


@pytest.mark.prove
def test_without_a_balancer_all_replicas_share_one_port(logs: Path) -> None:
    options = ("--pipeline", "echo", "--device", "cpu", "--balancer", "none", "--replicas", "2", "--active", "2")
    port = free_port()
    command = [sys.executable, "-m", "framelane.server.cli", "fleet", "--port", str(port), *options]
    with (
        (logs / "shared.log").open("wb") as log,
        subprocess.Popen(["python3", "-c", _DIE_WITH_PARENT, *command], stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(lambda: b"Page" in (logs / "shared.log").read_bytes(), "the fleet is ready")
            pids = {json.loads(_get(port, "/v1/status")[1])["pid"] for _ in range(40)}
            assert len(pids) == 2
        finally:
            process.terminate()
    assert process.returncode == 0


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextlib.contextmanager
def program(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        ["python3", "-c", _DIE_WITH_PARENT, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_topology_of_deploy_on_loopback(logs: Path) -> None:
    """HAProxy with the configuration of deploy/, Redis, three replicas: the spare helps out, words cross replicas."""
    haproxy, redis_server = require_program("haproxy"), require_program("redis-server")
    redis_port, front = free_port(), free_port()
    environment = {
        "FRAMELANE_REDIS": f"redis://127.0.0.1:{redis_port}/0",
        "FRAMELANE_ADMIN_TOKEN": "operator",
        "FRAMELANE_TRUSTED_PROXIES": "127.0.0.1",
    }
    options = ("--pipeline", "echo", "--device", "cpu", "--workers", "1", "--active-slots", "1")
    with contextlib.ExitStack() as stack:
        stack.enter_context(program(redis_server, "--port", str(redis_port), "--save", "", "--dir", str(logs)))
        named = {f"r{n}": Serve(logs, *options, environment={**environment, "FRAMELANE_REPLICA_NAME": f"r{n}"})
                 for n in (1, 2, 3)}  # fmt: skip
        for server in named.values():
            stack.callback(server.kill)
        for server in named.values():
            server.wait_ready()
        text = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()
        text = re.sub(r"(r\d):8000", lambda found: f"127.0.0.1:{named[found[1]].port}", text)
        (logs / "haproxy.cfg").write_text(text.replace("bind :8000", f"bind 127.0.0.1:{front}"))
        stack.enter_context(program(haproxy, "-db", "-f", str(logs / "haproxy.cfg")))
        wait_until(lambda: served_by(front), "the balancer answers")
        wait_until(lambda: len(named["r1"].status()["fleet"].get("replicas", [])) == 3, "they know each other")

        clients = [Client(front, "websocket") for _ in range(4)]
        for client in clients:
            await client.open()
            await client.ready()
        lanes = {name: server.status()["lanes"]["connected"] for name, server in named.items()}
        assert lanes == {"r1": 2, "r2": 2, "r3": 0}, "the spare gets nobody while both are there"

        lane = (await clients[0].ready())["lane"]
        body = json.dumps({"to": {"lane": lane}, "text": "Back in five minutes"}).encode()
        headers = {"authorization": "Bearer operator", "content-type": "application/json"}
        status, answer = named["r3"].request("POST", "/v1/notices", body, headers)
        assert (status, json.loads(answer)["other_replicas_told"]) == (202, 2)
        assert (await clients[0].notice("notice"))["text"] == "Back in five minutes"
        assert _get(front, "/v1/notices")[0] == 404, "operators' endpoints stay inside"

        named["r1"].kill()
        await asyncio.to_thread(wait_until, lambda: served_by(front) == "r3", "the spare joins")
        late = [Client(front, "websocket") for _ in range(2)]
        for client in late:
            await client.open()
            await client.ready()
        assert named["r3"].status()["lanes"]["connected"] == 1
        for client in (*clients, *late):
            await client.abort()


def served_by(front: int) -> str | None:
    """The name of the replica that one request goes to; None without an answer."""
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        return str(json.loads(_get(front, "/v1/status")[1])["fleet"]["replica"])
    return None
