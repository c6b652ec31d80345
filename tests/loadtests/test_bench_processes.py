"""Processes that the bench starts, measures and ends."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from framelane.loadtests.processes import (
    Diagnosis,
    Process,
    StartFailed,
    clean_environment,
    cpu_seconds,
    free_port,
    memory,
    switches,
)
from framelane.loadtests.tally import Counts
from framelane.loadtests.windows import Use, Vanished, Window, measure, undisturbed

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, flush=True)
time.sleep(100)
"""
BUSY = "while True: pass"


def wait_for(condition):
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def window(foreign=0.0, latencies=(), results=10):
    return Window(2.0, Counts(results, 0, 0), latencies, {"server": Use(0.05, 20, 1)}, foreign)


def test_stop_ends_the_whole_tree_even_if_it_ignores_sigterm(tmp_path):
    process = Process(["-c", STUBBORN], tmp_path / "log")
    wait_for(lambda: (tmp_path / "log").read_text().endswith("\n"))
    child = int((tmp_path / "log").read_text())
    assert set(process.pids()) == {process.pid, child}
    process.stop(patience=0.2)
    wait_for(lambda: not alive(child))
    assert not alive(process.pid)


def test_process_dies_with_the_one_that_started_it(tmp_path):
    script = f"""
import pathlib, time
from framelane.loadtests.processes import Process
process = Process(["-c", "import time; time.sleep(100)"], pathlib.Path({str(tmp_path / "log")!r}))
print(process.pid, flush=True)
time.sleep(100)
"""
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with starter:
        pid = int(starter.stdout.readline())
        assert alive(pid)
        starter.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(pid))


def test_process_that_ended_is_told_with_its_last_words(tmp_path):
    with Process(["-c", "raise SystemExit('no such model')"], tmp_path / "log") as process:
        process.popen.wait()
        with pytest.raises(StartFailed, match="no such model"):
            process.check()


def test_cpu_of_another_process_is_read_and_of_none_is_none(tmp_path):
    with Process(["-c", BUSY], tmp_path / "log") as process:
        wait_for(lambda: cpu_seconds(process.pid) > 0.05)
    assert cpu_seconds(process.pid) is None


def test_memory_and_switches_of_this_process():
    found = memory(os.getpid())
    assert found.own > 5e6
    assert found.shared == 0
    assert switches(os.getpid())[0] >= 0


def test_memory_files_count_as_shared(tmp_path):
    script = "import mmap, os, time; f = os.memfd_create('x'); os.ftruncate(f, 8 << 20)\n"
    script += "m = mmap.mmap(f, 8 << 20); m[:] = bytes(8 << 20); print('done', flush=True); time.sleep(100)"
    with Process(["-c", script], tmp_path / "log") as process:
        wait_for((tmp_path / "log").read_text)
        assert memory(process.pid).shared == 8 << 20


def test_environment_of_measured_processes_has_no_settings(monkeypatch):
    monkeypatch.setenv("FRAMELANE_WORKERS", "7")
    assert "FRAMELANE_WORKERS" not in clean_environment()


def test_free_port_can_be_listened_on():
    assert 0 < free_port() < 65536


def test_window_counts_processor_time_by_group(tmp_path):
    with Process(["-c", BUSY], tmp_path / "log") as process:
        found = measure({"busy": [process.pid]}, [], 0.1)
        assert found.use["busy"].cpu > 0
    with pytest.raises(Vanished):
        measure({"busy": [process.pid]}, [], 0.01)


def test_window_per_frame():
    found = window(latencies=[float(ms) for ms in range(100)])
    assert found.fps == 5.0
    assert found.cpu_ms("server") == 5.0
    assert found.percentile(50) == 50.0
    assert found.record()["switches_per_frame"] == {"server": [2.0, 0.1]}


def test_disturbed_window_is_taken_again_when_it_is_calm_and_the_least_disturbed_counts():
    windows = iter([window(foreign=1.0), window(foreign=0.9), window(foreign=0.0), window(foreign=0.5)])
    lengths = []

    def take(seconds):
        lengths.append(seconds)
        return next(windows)

    assert undisturbed(take, 8.0, 1, lambda text: None).foreign == 0.5
    assert lengths == [8.0, 1.0, 1.0, 8.0]


def test_undisturbed_window_is_taken_once():
    windows = iter([window(foreign=0.0)])
    assert undisturbed(lambda seconds: next(windows), 8.0, 2, lambda text: None).foreign == 0.0


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"diagnosis": {"limit": "slots", "sentence": "Full.", "advice": "Add one."}}, ("Full.", "Add one.")),
        ({"diagnosis": {"limit": "gateway"}}, ("gateway", "")),
        ({"diagnosis": {"limit": "idle", "sentence": "Nothing."}}, ("", "")),
        ({"diagnosis": None}, ("", "")),
        ({}, ("", "")),
        (None, ("", "")),
    ],
)  # fmt: skip
def test_diagnosis_is_taken_where_there_is_one(status, said):
    assert Diagnosis.of(status) == said
