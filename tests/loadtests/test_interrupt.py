"""Ctrl-C in a tool: no process is left, what was measured is kept, and a search goes on from there."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

DENSITY = ["density", "-d", "1x1x1", "--device", "sim:8", "-u", "10:70:30", "-s", "1", "-c", "1"]
SWARM = ["swarm", "--device", "sim:8", "--pipeline", "echo", "--sizes", "160x120", "-u", "20", "--seconds", "100"]
COMMANDS = {
    "sweep": (["sweep", "planted", "--only", "slow-device", "--seconds", "0.3"], "2/24"),
    "probe": (["probe", "--device", "sim:8", "--slots", "1,2", "--attempts", "10", "--rounds", "100"], "3/200"),
    "density": (DENSITY, "2/3 1x1x1: 70 users"),
    "swarm": (SWARM, "20 users  "),
}


def wait_for(condition, process, log, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path):
    """Starts a tool with its output in a log; one that a failed test leaves behind is ended."""
    started = []

    def begin(log, arguments):
        started.append(popen(log, arguments, tmp_path))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def popen(log, arguments, folder):
    command = [sys.executable, "-m", "framelane.server.cli", *arguments, "-o", str(folder / "out")]
    environment = {**os.environ, "COLUMNS": "120"}
    with log.open("w") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment,
            preexec_fn=hear_ctrl_c,  # noqa: PLW1509 - these tests have one thread
        )  # fmt: skip


def hear_ctrl_c():
    """A shell starts what runs in its background with Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(process, log):
    """Ctrl-C; nothing that it started may be alive a moment after its end."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, log.read_text()
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
    assert "interrupted" in log.read_text()
    assert "Traceback" not in log.read_text()


def children(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "name", ["sweep", *(pytest.param(name, marks=pytest.mark.prove) for name in ("probe", "density", "swarm"))]
)
def test_interrupted_tool_leaves_no_process_and_keeps_what_was_measured(name, start, tmp_path):
    log = tmp_path / "log"
    arguments, second = COMMANDS[name]
    process = start(log, arguments)
    wait_for(lambda: second in log.read_text(), process, log)
    wait_for(lambda: len(children(process)) > 1, process, log)
    interrupt(process, log)
    record = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert record["complete"] is False


@pytest.mark.prove
@pytest.mark.timeout(200)
def test_interrupted_density_goes_on_with_the_same_command(start, tmp_path):
    log = tmp_path / "log"
    arguments, second = COMMANDS["density"]
    process = start(log, arguments)
    wait_for(lambda: second in log.read_text(), process, log)
    interrupt(process, log)
    kept = (tmp_path / "out/density-trials.jsonl").read_bytes()
    process = start(log, arguments)
    assert process.wait(120) == 0, log.read_text()
    assert "1 runs are there already" in log.read_text()
    assert (tmp_path / "out/density-trials.jsonl").read_bytes().startswith(kept)
    assert json.loads((tmp_path / "out/density.json").read_text())["complete"] is True


@pytest.mark.prove
@pytest.mark.timeout(200)
def test_interrupted_plan_leaves_no_process_of_its_measured_replica(start, tmp_path):
    log = tmp_path / "log"
    process = start(log, ["plan", "--measure", "--serve", "--device sim:8"])
    wait_for(lambda: len(children(process)) > 3, process, log)
    interrupt(process, log)


def test_interrupted_gate_ends_though_its_prometheus_does_not_answer(start, tmp_path):
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = ["--prometheus", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        process = start(log, ["gate", "--reading", "1:1544:1", *where])
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            interrupt(process, log)
