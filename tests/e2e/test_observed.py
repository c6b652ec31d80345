"""What a whole server tells of itself, while processes are killed: metrics, stream, terminal, spans, logs."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.clients import connected, outcomes
from e2e.frames import signed
from e2e.servers import Serve, serving, wait_until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

PICTURE = signed(10, 10, b"a picture that nobody shall find in a log")
OPTIONS = ("--pipeline", "pipelines:Mirror", "--device", "sim:20", "--deadline-ms", "20000", "--otel-ratio", "1",
           "--workers", "2", "--active-slots", "2", "--log-level", "DEBUG", "--log-format", "json")  # fmt: skip


class Collector(http.server.ThreadingHTTPServer):
    """An OpenTelemetry collector that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        self.server.spans += [
            span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans
        ]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        """Quietly."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def server(logs: Path, collector: Collector) -> Iterator[Serve]:
    with serving(logs, *OPTIONS, "--otel-endpoint", collector.url) as server:
        yield server


def samples(server: Serve) -> dict[tuple[str, tuple[str, ...]], float]:
    text = server.request("GET", "/metrics")[1].decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), "a metric is declared twice"
    return {
        (sample.name, tuple(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


async def frames(server: Serve, clients: int, first: int, count: int) -> None:
    async with connected(server.port, clients) as crowd:
        for seq in range(first, first + count):
            await outcomes([await client.send_frame(seq, PICTURE) for client in crowd])


async def test_metrics_add_up_also_after_kills(server: Serve) -> None:
    await frames(server, 4, 0, 5)
    before = await asyncio.to_thread(samples, server)
    streaming = asyncio.create_task(frames(server, 6, 5, 40))
    await asyncio.sleep(0.3)
    for kind in ("workers", "slots"):
        os.kill(min(await asyncio.to_thread(server.active, kind)), signal.SIGKILL)
        await asyncio.sleep(0.3)
    await streaming
    books = await asyncio.to_thread(server.quiet_books)
    assert books.received == books.ended
    await asyncio.to_thread(server.wait_active, "workers", 2)
    await asyncio.to_thread(server.wait_active, "slots", 2)
    after = await asyncio.to_thread(samples, server)
    fallen = {
        key for key, value in before.items() if key[0].endswith(("_total", "_count", "_bucket")) if after[key] < value
    }
    assert not fallen, "no counter falls, whatever was replaced"
    assert after["framelane_restarts_total", ("workers",)] == after["framelane_restarts_total", ("slots",)] == 1
    answered = after["framelane_result_age_seconds_count", ()]
    assert answered == after["framelane_stage_seconds_count", ("deliver",)]
    # What a worker finished, and could not tell before it was killed, it has counted; the stages of the rest add up.
    parts = sum(value for key, value in after.items() if key[0] == "framelane_stage_seconds_sum")
    assert parts == pytest.approx(after["framelane_result_age_seconds_sum", ()], rel=0.1)
    assert after["framelane_batch_items_sum", ()] >= answered
    assert after["framelane_device_info", ("sim:20", "true", "sim:20 (SIMULATED)")] == 1


async def test_all_viewers_get_the_same_event_every_second(server: Serve) -> None:
    async def view() -> list[str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /v1/ops/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        events: list[str] = []
        while len(events) < 3:
            line = (await asyncio.wait_for(reader.readline(), 10)).decode()
            if line.startswith("data: ") and "diagnosis" in line:
                events.append(line[6:])
        writer.close()
        return events

    first, second = await asyncio.gather(view(), view())
    assert set(first[1:]) & set(second[1:]), "who came a little later has missed one"
    document = json.loads(first[-1])
    assert document["status"]["ready"]
    assert {process["kind"] for process in document["processes"]} == {"gateway", "worker", "slot"}
    history = await asyncio.to_thread(server.json, "/v1/ops/history")
    assert len({len(column) for column in history["columns"].values()}) == 1


def test_top_shows_it_once_as_plain_text(server: Serve) -> None:
    command = [sys.executable, "-m", "framelane.server.cli", "top", "--url", f"localhost:{server.port}"]
    shown = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "pipelines:Mirror on sim:20 (SIMULATED)" in shown
    assert "\x1b" not in shown
    assert all(name in shown for name in ("gateway", "worker-0", "slot-1", "goodput", "event loop"))
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(as_json)["diagnosis"]["limit"]


def test_top_without_a_server_says_how_to_get_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "framelane.server.cli", "top", "--once", "--url", f"localhost:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no server answers" in done.stderr
    assert "framelane serve" in done.stderr


def test_each_frame_is_one_tree_of_spans(server: Serve, collector: Collector) -> None:
    def whole() -> list[Any] | None:
        roots = {span.trace_id for span in collector.spans if span.name == "frame"}
        trees = [[span for span in collector.spans if span.trace_id == root] for root in roots]
        return [tree for tree in trees if len(tree) == 8] or None

    tree = wait_until(whole, "spans have been exported")[0]
    spans = {span.name: span for span in tree}
    root = spans["frame"]
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in tree)
    assert all(span.end_time_unix_nano <= root.end_time_unix_nano for span in tree)
    assert spans["run"].end_time_unix_nano - spans["run"].start_time_unix_nano >= 19e6


def test_logs_are_json_and_have_neither_pictures_nor_answers(server: Serve) -> None:
    lines = server.log().splitlines()
    events = [json.loads(line) for line in lines]
    assert {event["level"] for event in events} >= {"info", "warning"}
    assert any("ended with status" in event["message"] for event in events)
    assert "nobody shall find" not in server.log()
