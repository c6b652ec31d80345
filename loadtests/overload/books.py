"""Invariant 1: every message has exactly one fate, in the server's books, in the clients', and between the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from framelane.server.protocol import Drop

from .records import CODES, NOT_SENT, OUTCOMES, RESULT, Recorded

Metrics = Mapping[tuple[str, str], float]
"""Samples of /metrics by name and the value of their one label ("" without)."""


def parse_metrics(text: str) -> Metrics:
    """Read Prometheus' text format."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in samples}


def since(before: Metrics, after: Metrics) -> dict[tuple[str, str], float]:
    """What was counted between two readings; gauges as they are now."""
    gauge = ("framelane_frames_inside", "framelane_lanes", "framelane_mailbox_bytes")
    return {key: value if key[0] in gauge else value - before.get(key, 0.0) for key, value in after.items()}


class ServerBooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the server counted."""

    received: int
    delivered: int
    dropped: dict[str, int]
    refused: int
    left: int
    shed: int
    inside: int

    @classmethod
    def of(cls, metrics: Metrics) -> ServerBooks:
        """From the difference of two readings of /metrics."""

        def table(name: str) -> dict[str, int]:
            return {label: int(value) for (key, label), value in metrics.items() if key == f"framelane_{name}_total"}

        def total(name: str) -> int:
            return sum(table(name).values())

        return cls(
            received=total("messages_received"),
            delivered=total("results_delivered"),
            dropped={reason: count for reason, count in table("frames_dropped").items() if count},
            refused=total("messages_refused"),
            left=total("frames_left"),
            shed=total("results_shed"),
            inside=int(metrics.get(("framelane_frames_inside", ""), 0)),
        )

    @property
    def fates(self) -> int:
        """Messages that have one."""
        return self.delivered + sum(self.dropped.values()) + self.refused + self.left + self.shed


class ClientBooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients counted."""

    sent: int
    results: int
    dropped: dict[str, int]
    errors: int
    lost: int
    unanswered: int
    wrong: int
    foreign: int

    @classmethod
    def of(cls, recorded: Recorded) -> ClientBooks:
        """From everything that the generators recorded."""
        outcomes = recorded.frames.outcome
        counts = {name: int((outcomes == code).sum()) for name, code in CODES.items()}
        return cls(
            sent=len(outcomes) - sum(counts[OUTCOMES[code]] for code in NOT_SENT),
            results=counts[OUTCOMES[RESULT]],
            dropped={reason: counts[reason] for reason in Drop if counts[reason]},
            errors=counts["error"],
            lost=counts["lost"],
            unanswered=counts["unanswered"],
            wrong=recorded.totals.wrong,
            foreign=recorded.totals.foreign,
        )


def check(server: ServerBooks, clients: ClientBooks) -> list[str]:
    """What does not add up; empty when everything does.

    Frames of connections that ended may be counted on one side only: with `lost` ones the comparison allows for them.
    """
    wrong = []
    if server.received != server.fates + server.inside or server.inside:
        wrong.append(f"server: received {server.received} is not fates {server.fates}; inside {server.inside}")
    if clients.wrong or clients.foreign:
        wrong.append(f"clients: {clients.wrong} answers to nothing, {clients.foreign} of somebody else's")
    gone = clients.lost + clients.unanswered
    pairs: dict[str, tuple[int, int]] = {
        "frames": (clients.sent, server.received),
        "results": (server.delivered, clients.results),
        "errors": (server.refused, clients.errors),
    }
    for reason in {*server.dropped, *clients.dropped}:
        pairs[f"dropped: {reason}"] = (server.dropped.get(reason, 0), clients.dropped.get(reason, 0))
    for name, (above, below) in pairs.items():
        if not 0 <= above - below <= gone:
            wrong.append(f"{name}: {above} on one side, {below} on the other, {gone} frames lost with connections")
    if clients.unanswered and not clients.lost and not server.shed:
        wrong.append(f"clients: {clients.unanswered} frames without an answer")
    return wrong


def record(server: ServerBooks, clients: ClientBooks) -> dict[str, Any]:
    """For the JSON file."""
    return {
        "server": msgspec.to_builtins(server),
        "clients": msgspec.to_builtins(clients),
        "wrong": check(server, clients),
    }
