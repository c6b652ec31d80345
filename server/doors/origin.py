"""Which web pages may connect. Only browsers send an Origin, and only they can be misused by a foreign page."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from framelane.server.errors import Refused
from framelane.server.protocol import Refusal


def check_origin(headers: Iterable[tuple[bytes, bytes]], allowed: Collection[str]) -> None:
    """Let in whoever sends no Origin, a page of this host, and the origins in `allowed` ("*" is all).

    Raises:
        Refused: the page is a foreign one.
    """
    found = dict(headers)  # names are lower case in ASGI
    origin = found.get(b"origin", b"").decode("latin-1")
    if not origin or "*" in allowed or origin in allowed:
        return
    if origin.partition("://")[2].encode("latin-1") != found.get(b"host"):
        raise Refused(f"pages of {origin[:100]} may not connect here: see allowed_origins", code=Refusal.ORIGIN)
