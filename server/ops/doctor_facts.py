"""Gathers what ``doctor.py`` judges. Nothing is changed, nothing is left behind, and each look ends within seconds."""

from __future__ import annotations

import ctypes
import itertools
import resource
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from framelane.models.devices import Device
from framelane.models.errors import FramelaneError
from framelane.models.gpu import GpuFacts
from framelane.models.registry import Registry
from framelane.server.config import Settings

from .doctor import Facts
from .gpu import Cards
from .machine import read_machine

_CGROUP = Path("/sys/fs/cgroup")
_PATIENCE_S = 3.0
_TIME_ERROR = 5
_TIMEX_BYTES = 256
_LOOKS = 1000


def gather(
    settings: Settings, device: Device, gpu: GpuFacts | None, processes: int, plan_problem: str, card_slots: int = 1
) -> Facts:
    """Look at this machine with the eyes of these settings."""
    names, models_problem = _models(settings.models)
    cards = Cards()
    cards.read()
    cards.close()
    return Facts(
        machine=read_machine(),
        device=device,
        processes=processes,
        plan_problem=plan_problem,
        gpu=gpu,
        models=names,
        models_problem=models_problem,
        port_problem=_port_problem(settings.host, settings.port),
        files=resource.getrlimit(resource.RLIMIT_NOFILE),
        tasks=_number(_CGROUP / "pids.max"),
        somaxconn=_number(Path("/proc/sys/net/core/somaxconn")),
        clock=_text(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        clock_step_ns=_clock_step_ns(),
        synchronised=_synchronised(),
        throttled=_throttled(_table(_CGROUP / "cpu.stat")),
        oom_kills=_table(_CGROUP / "memory.events").get("oom_kill", 0),
        card_slots=card_slots,
        mps_clients=_mps_clients(),
        nvml_problem=cards.problem,
        redis=_shown(settings.redis),
        redis_problem=redis_problem(settings.redis) if settings.redis else "",
    )


def redis_problem(url: str) -> str:
    """Why the Redis at this address does not answer a PING; empty when it does (one that wants a password does)."""
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    try:
        with socket.create_connection((host, parts.port or 6379), _PATIENCE_S) as sock:
            sock.settimeout(_PATIENCE_S)
            secure = parts.scheme == "rediss"
            with ssl.create_default_context().wrap_socket(sock, server_hostname=host) if secure else sock as channel:
                channel.sendall(b"PING\r\n")
                answer = channel.recv(64)
    except OSError as error:  # what TLS refuses is one, too
        return f"no connection: {error}"
    if answer.startswith((b"+PONG", b"-NOAUTH")):
        return ""
    return f"it answers {answer!r} to PING, so it is no Redis"


def _shown(url: str) -> str:
    """An address without the name and the password that it may have."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}" if url else ""


def _models(folders: Sequence[str]) -> tuple[tuple[str, ...], str]:
    try:
        return tuple(spec.name for spec in Registry(map(Path, folders))), ""
    except FramelaneError as error:
        return (), error.message


def _port_problem(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            return f"cannot listen on {host} port {port}: {error.strerror}"
    return ""


def _clock_step_ns() -> int:
    """The smallest step that a series of looks at the monotonic clock shows."""
    looks = [time.monotonic_ns() for _ in range(_LOOKS)]
    return min((later - earlier for earlier, later in itertools.pairwise(looks) if later > earlier), default=0)


def _synchronised() -> bool | None:
    """What the kernel says of its clock (``adjtimex``); None where it may not be asked."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zeros: only a question
    state = ctypes.CDLL(None).adjtimex(buffer)
    return None if state < 0 else state != _TIME_ERROR


def _throttled(stat: dict[str, int]) -> float | None:
    periods = stat.get("nr_periods", 0)
    return stat.get("nr_throttled", 0) / periods if periods else None


def _mps_clients() -> int | None:
    """Clients of all MPS servers of this machine; None without MPS."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return None
    try:
        servers = _ask_mps("get_server_list").split()
        return sum(len(_ask_mps(f"get_client_list {server}").split()) for server in servers)
    except (OSError, subprocess.SubprocessError):
        return None


def _ask_mps(question: str) -> str:
    command = ["nvidia-cuda-mps-control"]
    done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    return done.stdout


def _table(path: Path) -> dict[str, int]:
    """A file of lines "name number"."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
