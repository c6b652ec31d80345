"""What the settings say about who may come in: keys of tokens, limits per address, certificate; and what to warn of."""

from __future__ import annotations

import ipaddress
import logging
import resource
import ssl
import time
from pathlib import Path
from typing import Any

from framelane.preprocess.logs import ALWAYS
from framelane.server.config import ConfigError, Settings
from framelane.server.lanes.accounts import Accounts
from framelane.server.lanes.passes import Passes
from framelane.server.lanes.tokens import BadKeys, Key, Tokens, key_set, secret_key

from .gate import MOST_STRANGERS, Gate, Network

log = logging.getLogger(__name__)

_LOOK_S = 5.0


def read_keys(settings: Settings) -> list[Key]:
    """The keys of signed tokens; none if there are no such tokens.

    Raises:
        ConfigError: naming the setting that cannot be used.
    """
    try:
        keys = [secret_key(settings.token_secret)] if settings.token_secret else []
        return [*keys, *(key_set(Path(settings.token_keys).read_bytes()) if settings.token_keys else ())]
    except OSError as error:
        raise ConfigError(f"token_keys: {settings.token_keys}: {error.strerror}") from None
    except BadKeys as error:
        raise ConfigError(error.message) from None


class Entrance:
    """Makes what guards the doors.

    Args:
        settings: see there.

    Raises:
        ConfigError: naming the setting that cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        _check_words(settings)
        self._settings = settings
        self._read_at = self._looked_at = 0.0
        keys = read_keys(settings)
        tokens = Tokens(keys, settings.token_audience) if keys else None
        self.passes = Passes(settings.token or None, tokens, time.time)

    def gate(self, accounts: Accounts) -> Gate:
        """Counts connections."""
        settings = self._settings
        return Gate(
            accounts,
            per_address=settings.address_connections,
            rate=settings.address_rate,
            trusted=_networks(settings.trusted_proxies),
            strangers=min(MOST_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4),
            head_s=settings.handshake_limit,
        )

    def turn(self, now: float) -> None:
        """Read the key file again when it has changed; a bad one changes nothing. `now` is on any steady clock."""
        path = self._settings.token_keys
        if not path or now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        try:
            changed_at = Path(path).stat().st_mtime
            if changed_at != self._read_at:
                first, self._read_at = not self._read_at, changed_at
                if not first:
                    self.passes.tokens = Tokens(read_keys(self._settings), self._settings.token_audience)
                    log.info("the keys of tokens were read again")
        except (OSError, ConfigError) as error:
            log.error("the keys of tokens stay as they were: %s", error)


def tls_options(settings: Settings) -> dict[str, Any]:
    """uvicorn's options for the certificate; none without one.

    Raises:
        ConfigError: the files are no certificate and its key.
    """
    if not settings.tls_cert:
        if settings.tls_key:
            raise ConfigError("tls_key is of no use without tls_cert")
        return {}
    key = settings.tls_key or settings.tls_cert
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"tls_cert {settings.tls_cert}, tls_key {key}: {error.strerror or error}") from None
    return {"ssl_certfile": settings.tls_cert, "ssl_keyfile": key}


def names(text: str) -> tuple[str, ...]:
    """A list with commas between."""
    return tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())


def open_door(settings: Settings) -> list[str]:
    """What a public address lets anybody do; empty where it is not public, was decided upon, or `insecure` is set."""
    if settings.insecure or _is_private(settings.host):
        return []
    if settings.token or settings.token_secret or settings.token_keys:
        return []
    if settings.allowed_origins or settings.without_origin != "undecided":
        return []
    found = ["no token is asked for (token_secret, token_keys or token)"]
    found.append("programs may connect, and pages of this address (without_origin, allowed_origins, allowed_hosts)")
    if not settings.address_connections:
        found.append("one address may open any number of connections (address_connections, address_rate)")
    if not settings.frame_limit:
        found.append("one client may send as often as it likes (frame_limit, byte_limit)")
    return found


def warn_of_open_door(settings: Settings) -> None:
    """Say loudly what stands open to everybody."""
    found = open_door(settings)
    if found:
        lines = "".join(f"\n  - {line}" for line in found)
        cure = "Set what fits (deploy/SECURITY.md), or --insecure if this is meant."
        log.warning("%s IS OPEN TO EVERYBODY:%s\n  %s", settings.host, lines, cure, extra=ALWAYS)


def _is_private(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _networks(text: str) -> list[Network]:
    found: list[Network] = []
    for name in names(text):
        try:
            found.append(ipaddress.ip_network(name))
        except ValueError as error:
            raise ConfigError(f"trusted_proxies: {name!r} is no address or network: {error}") from None
    return found


def _check_words(settings: Settings) -> None:
    others = {settings.token, settings.token_secret} - {""}
    if settings.admin_token and settings.admin_token in others:
        raise ConfigError("admin_token is the same as what clients use: whoever streams could operate this server")
    _networks(settings.trusted_proxies)
