"""/metrics: the accounts, read when Prometheus asks. Nothing is counted twice, and nothing per frame is done for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from framelane.server.lanes.accounts import AGE_BUCKETS_S, Accounts
from framelane.server.lanes.exchange import Exchange
from framelane.server.protocol import Cut, Drop, Fault, Refusal

from .processes import ProcessCollector
from .resources import ResourceCollector
from .watch import Watch


class AccountsCollector(Collector):
    """The books of one exchange as metrics: received = delivered + dropped + refused + left + shed + inside."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def collect(self) -> Iterator[Metric]:
        """All metrics, in the order in which /metrics shows them."""
        exchange, accounts = self._exchange, self._exchange.accounts
        yield _count("messages_received", "Messages of clients, frames and others", accounts.received)
        yield _count("results_delivered", "Results that the transport has accepted", accounts.delivered)
        yield _table("frames_dropped", "Frames without a result", "reason", Drop, accounts.dropped)
        yield _table("messages_refused", "Messages that were no frame", "code", Fault, accounts.refused)
        yield _count("frames_left", "Frames whose client went before its answer", accounts.left)
        yield _count("results_shed", "Results shed since their client does not read", accounts.slow_reader)
        yield _gauge("frames_inside", "Frames that have no fate yet", accounts.inside)
        yield _count("notices_shed", "Notices shed since their client does not read", accounts.notices_shed)
        yield _count("connections", "Connections that became a lane", accounts.connected)
        yield _table("connections_refused", "Connections turned away", "code", Refusal, accounts.turned_away)
        yield _table("connections_cut", "Connections ended by the server", "reason", Cut, accounts.cut)
        yield _count("received_bytes", "Bytes of frames that came", accounts.bytes_in)
        yield _count("sent_bytes", "Bytes of packets that transports have accepted", accounts.bytes_out)
        yield _count("notices_delivered", "Packets to clients that were no results", accounts.told)
        yield _count("admissions", "Places given to clients", exchange.reception.admission.taken)
        yield _gauge("clients_admitted", "Clients that have a place", exchange.reception.admission.admitted)
        yield _gauge("lanes", "Clients that are connected", len(exchange.delivery.lanes))
        yield _gauge("lanes_unread", "Clients that have not read what was last sent", exchange.delivery.blocked)
        yield _gauge("lanes_waiting", "Clients that wait for a place", exchange.reception.room.present)
        if math.isfinite(exchange.capacity.rate):
            yield _gauge("capacity_fps", "Frames per second that can be sustained, as measured", exchange.capacity.rate)
        yield _gauge("pace_seconds", "Interval that clients are asked to keep", exchange.reception.interval_ms / 1000)
        yield _gauge("inflight_limit", "Frames that may be in work at once", exchange.work_limit)
        yield _gauge("mailbox_bytes", "Bytes of frames that wait", exchange.waiting_bytes)
        yield _ages(accounts)


def render(exchange: Exchange, status: Mapping[str, Any], watch: Watch | None = None) -> bytes:
    """The text of /metrics, in Prometheus' exposition format 0.0.4.

    Args:
        exchange: the lanes.
        status: what /v1/status says.
        watch: looks at the processes, where there are some.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AccountsCollector(exchange))
    registry.register(ProcessCollector(status))
    if watch is not None:
        registry.register(ResourceCollector(watch, status))
    return generate_latest(registry)


def _count(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"framelane_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"framelane_{name}", text, value=value)


def _table(name: str, text: str, label: str, known: Iterable[StrEnum], counts: Mapping[str, int]) -> Metric:
    """One series per word of the protocol, from zero, so that a rate is defined before the first one happens."""
    family = CounterMetricFamily(f"framelane_{name}", text, labels=[label])
    for word in dict.fromkeys([*known, *counts]):
        family.add_metric([str(word)], counts.get(word, 0))
    return family


def _ages(accounts: Accounts) -> Metric:
    edges = [*(f"{edge:g}" for edge in AGE_BUCKETS_S), "+Inf"]
    buckets = list(zip(edges, accumulate(map(float, accounts.ages)), strict=True))
    text = "Seconds from the receipt of a frame to its result"
    return HistogramMetricFamily("framelane_result_age_seconds", text, buckets=buckets, sum_value=accounts.age_s)
