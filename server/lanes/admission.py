"""Who may come in. First form: a token, a pipeline that is the one served, and a largest number of clients."""

from __future__ import annotations

import hmac

from framelane.server.errors import Refused
from framelane.server.protocol import Hello, Refusal

from .limits import Limits


class Admission:
    """Decides about connections; it holds no state of its own yet.

    Args:
        limits: see ``Limits``.
    """

    __slots__ = ("_limits",)

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def check(self, hello: Hello, connected: int, draining: bool) -> None:
        """Decide about a client that has said hello while `connected` others are here.

        Raises:
            Refused: with a code of ``Refusal``, and a time after which it may try again if that can help.
        """
        limits = self._limits
        if draining:
            raise Refused("this server is going away", code=Refusal.DRAINING, retry_after_ms=limits.retry_after_ms)
        if limits.token is not None and not _same(hello.token or "", limits.token):
            raise Refused("a valid token is needed", code=Refusal.UNAUTHORIZED)
        if hello.pipeline is not None and hello.pipeline != limits.pipeline:
            raise Refused(f"this server runs the pipeline {limits.pipeline!r}", code=Refusal.BAD_REQUEST)
        if connected >= limits.max_clients:
            raise Refused("all places are taken", code=Refusal.FULL, retry_after_ms=limits.retry_after_ms)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
