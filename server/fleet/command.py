"""``framelane fleet``: several replicas on one box, behind one address."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from framelane.models.errors import FramelaneError
from framelane.models.gpu import read_gpu_facts_apart
from framelane.preprocess.children import START_FAILED
from framelane.preprocess.logs import set_up_logs
from framelane.server.config import ConfigError, Settings
from framelane.server.doors.entrance import warn_of_open_door
from framelane.server.options import settings_from, settings_options
from framelane.server.plan import Choice, needs_gpu_facts

from . import haproxy
from .fleet import Fleet, FleetConfig
from .front import Front, HAProxy, SharedPort, find_haproxy
from .layout import MOST_REPLICAS, Layout, Member, check_cards_of, lay_out, on_its_card

_OWN = (
    "host",
    "port",
    "shared_port",
    "device",
    "workers",
    "tls_cert",
    "tls_key",
    "drain_wait",
    "trusted_proxies",
    "record",
    "trace",
)
"""Settings of which each replica gets its own; the others are passed on as they were given."""


@click.command(short_help="Run several replicas on one box, behind one address.")
@click.option("--replicas", type=click.IntRange(1, MOST_REPLICAS), metavar="N", help="Replicas, spares included.")
@click.option("--active", type=click.IntRange(1, MOST_REPLICAS), metavar="N", help="Those that serve at once.")
@click.option("--devices", metavar="LIST", help="Devices with commas between, as cuda:0,cuda:1; in place of --device.")
@click.option("--density", type=click.IntRange(1, MOST_REPLICAS), metavar="K", help="Most active replicas per device.")
@click.option(
    "--balancer",
    type=click.Choice(["auto", "haproxy", "none"]),
    default="auto",
    show_default=True,
    help="What stands in front: HAProxy where it is installed, or one port that all replicas share.",
)
@settings_options
def main(
    replicas: int | None,
    active: int | None,
    devices: str | None,
    density: int | None,
    balancer: str,
    config: Path | None,
    **given: Any,
) -> None:
    """Run several replicas on one box, behind one address.

    Without options: three replicas, two of them active, the third a warm spare that takes over without a start when one
    dies or does not answer. Each has a port of its own, its device and its share of the CPUs; HAProxy in front gives
    new clients to the active replica with the fewest connections. All other options are those of `framelane serve`,
    and go to every replica; --gpu-permits counts over all of them.

    \b
      SIGTERM, Ctrl-C   all replicas drain, then everything ends
      SIGHUP            rolling restart: one replica at a time, no admitted frame is lost
                        (also POST /v1/fleet/restart with the admin token)
    """
    try:
        settings = settings_from(config, given)
        names = [part.strip() for part in devices.split(",")] if devices else [settings.device]
        port, *free = _free_ports(settings)
        layout = lay_out(
            replicas=replicas,
            active=active,
            devices=names,
            density=density,
            cpus=sorted(os.sched_getaffinity(0)),
            ports=free,
        )
        if any(needs_gpu_facts(msgspec.structs.replace(settings, device=name)) for name in names):
            check_cards_of(settings, layout.members, read_gpu_facts_apart())
        _run(settings, layout, balancer, port, free[len(layout.members)], _passed_on(config, given))
    except FramelaneError as error:
        click.secho(f"framelane: {error.message}", fg="red", err=True)
        sys.exit(START_FAILED)


def _run(settings: Settings, layout: Layout, balancer: str, port: int, door: int, passed: list[str]) -> None:
    set_up_logs(settings.logs)
    warn_of_open_door(settings)
    program = _balancer(balancer)
    if program is None and settings.tls_cert:
        raise ConfigError("tls_cert needs the balancer: install haproxy (Debian: apt install haproxy)")
    if settings.tls_key not in ("", settings.tls_cert, f"{settings.tls_cert}.key"):
        raise ConfigError(
            f"tls_key: HAProxy wants the key in the certificate's own file, or as {settings.tls_cert}.key"
        )
    if program is None and layout.active < len(layout.members):
        raise ConfigError(
            f"without a balancer every replica listens on the one port, and none can be a spare: give --active "
            f"{len(layout.members)}, or install haproxy (Debian: apt install haproxy)"
        )
    config = FleetConfig(
        command=_commands(settings, layout, port if program is None else 0, passed),
        environment=dict(os.environ),
        address=f"http{'s' if settings.tls_cert else ''}://{_shown(settings.host)}:{port}",
        front="haproxy" if program else "shared port",
        door=door,
        drain_s=settings.drain_limit,
        admin_token=settings.admin_token,
    )
    front: Front = SharedPort()
    if program:
        text = haproxy.configuration(
            layout.members, host=settings.host, port=port, door=door, control="{control}", certificate=settings.tls_cert
        )
        front = HAProxy(program, text)
    _print(layout, _front_choice(program, port, door))
    asyncio.run(Fleet(layout, config, front).run())


def _balancer(asked: str) -> str | None:
    """The path of HAProxy, or None for the shared port.

    Raises:
        ConfigError: HAProxy was asked for and is not there.
    """
    if asked == "none":
        return None
    program = find_haproxy()
    if program is None and asked == "haproxy":
        raise ConfigError("--balancer haproxy: it is not installed (Debian: apt install haproxy)")
    return program


def _front_choice(program: str | None, port: int, door: int) -> Choice:
    if program:
        return Choice("balancer", "haproxy", f"{program}; least connections, on port {port}")
    return Choice(
        "balancer",
        "none",
        f"all replicas share port {port} (SO_REUSEPORT): the kernel spreads connections at random, not by load; "
        f"the fleet's own /v1/status is on port {door}",
    )


def _commands(
    settings: Settings, layout: Layout, shared_port: int, passed: Sequence[str]
) -> Callable[[Member], Sequence[str]]:
    """How each replica is started."""

    def command(member: Member) -> list[str]:
        own = ["--host", "127.0.0.1", "--port", str(member.port), "--device", member.device]
        own += ["--drain-wait", "0"]  # the fleet decides who drains when
        if settings.redis:
            own += ["--replica-name", f"{socket.gethostname()}-{member.name}"]
        own += ["--tls-cert", "", "--tls-key", ""]  # the balancer's
        balancer = "" if shared_port else "127.0.0.1"  # it says for whom it asks
        own += ["--trusted-proxies", ",".join(filter(None, (settings.trusted_proxies, balancer)))]
        if shared_port:
            own = ["--host", settings.host, *own[2:], "--shared-port", str(shared_port)]
        for key, value in on_its_card(settings, layout.members, member).items():
            own += [f"--{key.replace('_', '-')}", str(value)]
        for key in ("record", "trace"):
            if getattr(settings, key):
                own += [f"--{key}", f"{getattr(settings, key)}.{member.name}"]
        workers = settings.workers or layout.workers
        if workers:
            own += ["--workers", str(workers)]
        return [sys.executable, "-P", "-m", "framelane.server.cli", "serve", *passed, *own]

    return command


def _passed_on(config: Path | None, given: dict[str, Any]) -> list[str]:
    """The options of the command line that go to every replica; variables and the file reach them by themselves."""
    options = ["--config", str(config)] if config else []
    for key, value in given.items():
        if key in _OWN or value in (None, (), False):
            continue
        name = "--option" if key == "options" else f"--{key.replace('_', '-')}"
        if value is True:
            options.append(name)
            continue
        for each in value if isinstance(value, tuple) else (value,):
            options += [name, str(each)]
    return options


def _free_ports(settings: Settings) -> list[int]:
    """The port of the front, and enough for replicas and the fleet itself.

    Next to each other after the front's, where they are free: easy to remember, and below the range that the kernel
    takes for outgoing connections, one of which could otherwise hold a replica's port when it starts again.

    Raises:
        ConfigError: the front's port is taken.
    """
    first = settings.port or _any_port()
    if not _is_free(settings.host, first):
        raise ConfigError(f"cannot listen on {settings.host} port {first}: it is taken")
    free = (port for port in range(first + 1, 65536) if _is_free("127.0.0.1", port))
    found = list(itertools.islice(free, MOST_REPLICAS + 1))
    if len(found) <= MOST_REPLICAS:
        raise ConfigError(f"too few free ports above {first}: choose a lower --port")
    return [first, *found]


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _shown(host: str) -> str:
    return "localhost" if host in ("0.0.0.0", "::", "127.0.0.1", "::1") else host


def _print(layout: Layout, balancer: Choice) -> None:
    click.echo(f"Framelane {importlib.metadata.version('framelane')}: a fleet\n")
    for choice in (*layout.choices, balancer):
        click.echo(f"  {choice.what:<14} {choice.value:<14} {choice.why}")
    click.echo()
