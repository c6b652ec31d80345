"""What it costs the gateway to be watched."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from e2e.servers import Serve, serving

pytestmark = [pytest.mark.prove, pytest.mark.timeout(120)]

VIEWERS = 20
SECONDS = 10.0
ROUNDS = 3
MOST_PER_VIEWER = 0.005  # of a core


def test_viewer_costs_the_gateway_half_a_percent_at_most(tmp_path: Path) -> None:
    with serving(tmp_path, "--device", "sim:8", "--active-slots", "4") as server:
        costs = []
        for _ in range(ROUNDS):
            alone = cpu_share(server)
            with watched(server):
                costs.append((cpu_share(server) - alone) / VIEWERS)
    print(f"one viewer costs {', '.join(f'{100 * cost:.3f} %' for cost in costs)} of a core")
    assert min(costs) <= MOST_PER_VIEWER


def cpu_share(server: Serve) -> float:
    """Of one core, by the gateway."""
    gateway = psutil.Process(server.pid)
    before = gateway.cpu_times()
    time.sleep(SECONDS)
    after = gateway.cpu_times()
    return (after.user + after.system - before.user - before.system) / SECONDS


@contextlib.contextmanager
def watched(server: Serve) -> Iterator[None]:
    """By so many, as the page does it; each must have got an event every second."""
    seen = [0] * VIEWERS
    over = threading.Event()

    def watch(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/v1/ops/stream")
        stream = connection.getresponse()
        while not over.is_set():
            seen[number] += stream.readline() == b"event: ops\n"
        connection.close()

    threads = [threading.Thread(target=watch, args=(number,)) for number in range(VIEWERS)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    yield
    assert min(seen) >= 0.7 * SECONDS
    over.set()
    for thread in threads:
        thread.join()
