"""The topology of deploy/ on hosts of their own: network namespaces of this machine, joined by a bridge. Needs root.

    clients (here) ── bridge ──┬── host 1: r1        ├── host 4: HAProxy with deploy/haproxy
                               ├── host 2: r2        └── host 5: Redis
                               └── host 3: r3 (spare)

A host whose cable is pulled says nothing, unlike a process that is killed: no reset, no close. The balancer finds out
by its checks, clients by silence, the other replicas by missing beats.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framelane.loadtests.faults.pictures import told_apart
from framelane.loadtests.faults.report import Report, at_least, at_most
from framelane.loadtests.fleet_load import Crowd
from framelane.loadtests.processes import Process, StartFailed, clean_environment

_NET = "10.86.90"
_HERE, _BALANCER, _REDIS = 254, 4, 5
_EXECUTE = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
_BACK_S = 7.0
"""An SDK takes a silent connection for lost 4.5 s past the deadline of its oldest frame (0.5 s); then it reconnects."""


class Hosts:
    """Five namespaces and their bridge; on leaving, all is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"fl{os.getpid() % 10_000}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise StartFailed("hosts of their own need root and iproute2")
        _ip("link", "add", self._name, "type", "bridge")
        self._stack.callback(_ip, "link", "del", self._name, check=False)
        _ip("addr", "add", f"{_NET}.{_HERE}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        try:
            for number in range(1, 6):
                self._add(number)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, number: int, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> Process:
        """Start a program on a host; it ends with this process, or on leaving."""
        inside = ["-c", _EXECUTE, _program("ip"), "netns", "exec", f"{self._name}-{number}", *command]
        process = Process(inside, self._folder / f"{name}.log", {**clean_environment(), **(environment or {})})
        self._stack.callback(process.stop)
        return process

    def cable(self, number: int, state: str) -> None:
        """Pull a host's cable ("down"), or plug it in ("up")."""
        _ip("link", "set", f"{self._name}v{number}", state)

    def _add(self, number: int) -> None:
        host, near, far = f"{self._name}-{number}", f"{self._name}v{number}", f"{self._name}h{number}"
        _ip("netns", "add", host)
        self._stack.callback(_ip, "netns", "del", host, check=False)
        _ip("link", "add", near, "type", "veth", "peer", "name", far)
        _ip("link", "set", near, "master", self._name, "up")
        _ip("link", "set", far, "netns", host)
        _ip("-n", host, "addr", "add", f"{_NET}.{number}/24", "dev", far)
        _ip("-n", host, "link", "set", far, "up")
        _ip("-n", host, "link", "set", "lo", "up")


async def cable_pulled(folder: Path, configuration: Path, clients: int, quick: bool) -> Report:
    """One host of three vanishes without a word, and comes back."""
    with Hosts(folder) as hosts:
        await asyncio.to_thread(_start, hosts, folder, configuration)
        url = f"http://{_NET}.{_BALANCER}:8000"
        async with Crowd(url, told_apart(15, 64, 48), clients, 2.0) as crowd:
            await asyncio.sleep(3.0)
            had = (await asyncio.to_thread(_get, 1, "/v1/status"))["lanes"]["connected"]
            hosts.cable(1, "down")
            fault = time.monotonic()
            await asyncio.sleep(8.0 if quick else 15.0)
            known = (await asyncio.to_thread(_get, 2, "/v1/status"))["fleet"]["replicas"]
            spare = (await asyncio.to_thread(_get, 3, "/v1/status"))["lanes"]["connected"]
            hosts.cable(1, "up")
            joined = await asyncio.to_thread(_wait_for, 2, 3)
            await crowd.stop()
        out = crowd.out(fault - 0.1, time.monotonic())
        hit = frozenset(outage.client for outage in out)
        others = crowd.outcomes(fault, fault + 8.0, without=hit)
        return Report(
            fault="hosts",
            lost={k: n for k, n in crowd.outcomes(fault, fault + 8.0).items() if k != "result"},
            recover_s=max((outage.ended - fault for outage in out), default=None),
            connections=len(out),
            figures=(
                at_least("clients of the host that vanished", had, 1),
                at_most("slowest of them served again", max((o.ended - fault for o in out), default=99), _BACK_S, "s"),
                at_most("others that lost their connection", len(out) - had, 0),
                at_most("frames of others without a result", others.total() - others["result"], 0),
                at_least("clients of the spare then", spare, 1),
                at_most("replicas that the others know then", len(known), 2),
                at_most("all known again after it came back", joined, 8.0, "s"),
            ),
        )


def _start(hosts: Hosts, folder: Path, configuration: Path) -> None:
    redis, haproxy = _program("redis-server", "valkey-server"), _program("haproxy")
    hosts.run(_REDIS, "redis", [redis, "--bind", f"{_NET}.{_REDIS}", "--protected-mode", "no", "--save", ""])
    for number in (1, 2, 3):
        environment = {
            "FRAMELANE_REDIS": f"redis://{_NET}.{_REDIS}:6379/0",
            "FRAMELANE_REPLICA_NAME": f"r{number}",
            "FRAMELANE_INSECURE": "true",
        }
        serve = [sys.executable, "-m", "framelane.server.cli", "serve", "--host", f"{_NET}.{number}", "--port", "8000"]
        options = ["--pipeline", "echo", "--device", "cpu", "--workers", "1", "--active-slots", "1"]
        hosts.run(number, f"r{number}", [*serve, *options, "--max-clients", "1000"], environment)
    for number in (1, 2, 3):
        _wait_for(number, 3)
    text = re.sub(r"\br([123]):8000", rf"{_NET}.\1:8000", configuration.read_text())
    (folder / "haproxy.cfg").write_text(text)
    hosts.run(_BALANCER, "haproxy", [haproxy, "-db", "-f", str(folder / "haproxy.cfg")])
    time.sleep(1.0)


def _wait_for(number: int, replicas: int, patience: float = 40.0) -> float:
    """Seconds until a replica is ready and knows so many, itself included. Raises TimeoutError."""
    started = time.monotonic()
    while time.monotonic() - started < patience:
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            ready = _get(number, "/readyz")["ready"]
            if ready and len(_get(number, "/v1/status")["fleet"]["replicas"]) == replicas:
                return time.monotonic() - started
        time.sleep(0.1)
    raise TimeoutError(f"r{number} does not know {replicas} replicas within {patience:g} s")


def _get(number: int, path: str) -> Any:
    connection = http.client.HTTPConnection(f"{_NET}.{number}", 8000, timeout=3)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
        if found:
            return found
    raise StartFailed(f"{names[0]} is not installed")


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run([_program("ip"), *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise StartFailed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
