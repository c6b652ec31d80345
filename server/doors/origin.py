"""Which web pages may connect, which programs, and under which name this server may be asked.

Only browsers send an Origin, and only they can be misused by a foreign page: a program says whatever it likes. So the
Origin keeps foreign pages out, and tokens keep programs out. A page that has its own name point at this server's
address (DNS rebinding) passes for a page of this host; ``allowed_hosts`` keeps it out.
"""

from __future__ import annotations

from collections.abc import Iterable

from framelane.server.errors import Refused
from framelane.server.lanes.limits import Limits
from framelane.server.protocol import Refusal


def check_origin(headers: Iterable[tuple[bytes, bytes]], limits: Limits) -> None:
    """Let in the pages of this host, those in ``allowed_origins`` ("*" is all), and programs, if they may come.

    Raises:
        Refused: the page is a foreign one, nobody knows which, or this server is not asked under a name of its own.
    """
    found = dict(headers)  # names are lower case in ASGI
    host = found.get(b"host", b"").decode("latin-1").lower()
    if limits.allowed_hosts and _name(host) not in limits.allowed_hosts:
        raise Refused(f"this server is not called {host[:100]!r}: see allowed_hosts", code=Refusal.ORIGIN)
    origin = found.get(b"origin", b"").decode("latin-1")
    if not origin:
        if not limits.without_origin:
            raise Refused("programs, which send no Origin, may not connect: see without_origin", code=Refusal.ORIGIN)
        return
    if "*" in limits.allowed_origins or origin in limits.allowed_origins:
        return
    if origin.partition("://")[2].lower() != host:
        raise Refused(f"pages of {origin[:100]} may not connect here: see allowed_origins", code=Refusal.ORIGIN)


def _name(host: str) -> str:
    """A host without its port."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
