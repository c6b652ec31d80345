"""Ctrl-C in a tool: no process is left, and what was measured is kept."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

COMMANDS = {
    "sweep": ["sweep", "planted", "--only", "slow-device", "--seconds", "0.3"],
    "probe": ["probe", "--device", "sim:8", "--slots", "1,2", "--attempts", "10", "--rounds", "100"],
}


def wait_for(condition, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["sweep", pytest.param("probe", marks=pytest.mark.prove)])
def test_interrupted_tool_leaves_no_process_and_keeps_what_was_measured(name, tmp_path):
    log = tmp_path / "log"
    arguments = [sys.executable, "-m", "framelane.server.cli", *COMMANDS[name], "-o", str(tmp_path / "out")]
    with log.open("w") as output:
        process = subprocess.Popen(
            arguments, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "120"}
        )
    second = {"sweep": "2/24", "probe": "3/200"}[name]
    wait_for(lambda: second in log.read_text(), process)
    wait_for(lambda: len(psutil.Process(process.pid).children(recursive=True)) > 1, process)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, log.read_text()
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
    record = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert record["complete"] is False
    assert "interrupted" in log.read_text()
