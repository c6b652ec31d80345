"""The timeline: bounded in each process, one clock, one file, and whole as far as a killed process has written."""

import json
from pathlib import Path

import pytest

from framelane.preprocess.trace import Trace, merge, open_trace, parts_of


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return Path(parts_of(str(tmp_path / "trace.json")))


def merged(parts: Path) -> list[dict[str, object]]:
    file = parts.with_name("out.json")
    merge(str(parts), str(file))
    return json.loads(file.read_text())["traceEvents"]


def test_spans_of_several_processes_become_one_timeline_in_microseconds(parts: Path) -> None:
    worker, slot = Trace(str(parts), "worker-0"), Trace(str(parts), "slot-0")
    worker.span("worker", 10.0, 10.001, 7)
    slot.span("run", 10.0005, 10.002, 8, 1)
    for trace in (worker, slot):
        trace.flush()
    found = {event["name"]: event for event in merged(parts) if event["ph"] == "X"}
    assert found["worker"]["ts"] == pytest.approx(10e6)
    assert found["worker"]["dur"] == pytest.approx(1000)
    assert (found["run"]["tid"], found["run"]["args"]) == (1, {"request": 8})
    names = [event["args"]["name"] for event in merged(parts) if event["name"] == "process_name"]  # type: ignore[index]
    assert sorted(names) == ["slot-0", "worker-0"]


def test_spans_that_overlap_have_an_identity_each(parts: Path) -> None:
    gateway = Trace(str(parts), "gateway")
    gateway.span("lane", 1.0, 3.0, 1, -1)
    gateway.span("lane", 2.0, 4.0, 2, -1)
    gateway.flush()
    pairs = [(event["ph"], event["id"]) for event in merged(parts) if event["ph"] in ("b", "e")]
    assert pairs == [("b", "lane-1"), ("e", "lane-1"), ("b", "lane-2"), ("e", "lane-2")]


def test_a_trace_is_bounded_and_written_a_few_hundred_spans_at_a_time(parts: Path) -> None:
    trace = Trace(str(parts), "worker-0", most=1000)
    for number in range(2000):
        trace.span("worker", number, number + 0.5)
    assert sum(event["ph"] == "X" for event in merged(parts)) == 512
    trace.flush()
    assert sum(event["ph"] == "X" for event in merged(parts)) == 1000


def test_what_a_killed_process_left_half_written_is_left_out(parts: Path) -> None:
    trace = Trace(str(parts), "slot-1")
    trace.span("run", 1.0, 2.0)
    trace.flush()
    (part,) = parts.iterdir()
    part.write_bytes(part.read_bytes() + b'["run", 3.0')
    assert sum(event["ph"] == "X" for event in merged(parts)) == 1


def test_nothing_is_made_where_no_trace_is_wanted() -> None:
    assert parts_of("") == ""
    assert open_trace("", "worker-0") is None
