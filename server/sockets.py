"""The sockets that a replica listens on."""

from __future__ import annotations

import contextlib
import resource
import socket

from .config import ConfigError, Settings

_USER_TIMEOUT_MS = 10_000
_BACKLOG = 2048
_DESCRIPTORS = 65_536


def listen(settings: Settings) -> list[socket.socket]:
    """The replica's own socket, and behind it the port that it shares with others, if there is one.

    Raises:
        ConfigError: the address cannot be had.
    """
    if not settings.shared_port:
        return [_listen(settings.host, settings.port)]
    own = _listen("127.0.0.1", settings.port)
    try:
        return [own, _listen(settings.host, settings.shared_port, shared=True)]
    except ConfigError:
        own.close()
        raise


def raise_descriptor_limit() -> None:
    """Connections are descriptors: as many as the system grants, not the 1,024 that programs with `select` can take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _DESCRIPTORS)), hard))


def _listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        # A client that acknowledges nothing for this long is cut by the kernel, with all that waits for it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return sock
