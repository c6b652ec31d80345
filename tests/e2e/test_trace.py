"""``serve --trace FILE``: one frame's way through all processes, on one clock."""

import json
from pathlib import Path
from typing import Any

from e2e.servers import Serve

from support import ROOT

SAMPLE = (ROOT / "models" / "samples" / "astronaut.jpg").read_bytes()


def test_the_timeline_of_a_frame_runs_through_every_process(logs: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    server = Serve(logs, "--trace", str(file), "--workers", "1", "--device", "sim:5")
    try:
        server.wait_ready()
        status, _ = server.request("POST", "/v1/infer", SAMPLE)
        assert status == 200
        server.stop()
    finally:
        server.kill()
    events = json.loads(file.read_text())["traceEvents"]
    assert not file.with_name("trace.json.parts").exists()

    def spans(name: str) -> list[dict[str, Any]]:
        return [event for event in events if event["name"] == name]

    delivered = spans("deliver")[-1]
    request = delivered["args"]["request"]
    mine = [event for event in events if event.get("args", {}).get("request") == request]
    lane_begin, lane_end = (event["ts"] for event in mine if event["name"] == "lane")
    worker = next(event for event in mine if event["name"] == "worker")
    (postprocess,) = (event for event in mine if event["name"] == "postprocess")
    runs = [run for run in spans("run") if worker["ts"] < run["ts"] < postprocess["ts"]]
    assert lane_begin <= lane_end <= worker["ts"]
    assert runs
    assert all(run["dur"] >= 5000 for run in runs)
    assert len({event["pid"] for event in (delivered, worker, runs[0])}) == 3
    assert delivered["ts"] <= postprocess["ts"] + postprocess["dur"] + 1e5
    assert spans("gather")
    assert spans("scatter")
