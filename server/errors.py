"""The errors of the server, below the tree of ``framelane.models.errors``.

FramelaneError           code              retryable
├── BadMessage           bad_message …     no    a client's message that is no frame: answered with `error`
├── Refused              full …            some  a connection that is not taken: `connect_error`, or `refused`
└── DeliveryError        delivery          no    a bug: an event with no target, or with one of another server
"""

from __future__ import annotations

from framelane.models.errors import FramelaneError


class BadMessage(FramelaneError):
    """A message that is no frame. `code` is one of ``protocol.Fault``, the message says what was wrong with it."""

    code = "bad_message"


class Refused(FramelaneError):
    """A connection that is not taken. `code` is one of ``protocol.Refusal``.

    `retry_after_ms` says when it may be worth trying again; without it, the same attempt will be refused again.
    """

    code = "bad_request"

    def __init__(self, message: str, *, code: str, retry_after_ms: int | None = None) -> None:
        super().__init__(message, code=code, retryable=retry_after_ms is not None)
        self.retry_after_ms = retry_after_ms


class DeliveryError(FramelaneError):
    """An event without a target, or for a lane that is not (or no longer) connected here. Nobody received it."""

    code = "delivery"


__all__ = ["BadMessage", "DeliveryError", "FramelaneError", "Refused"]
