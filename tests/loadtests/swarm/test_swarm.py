"""The command against real servers: small swarms of a few seconds."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import framelane.loadtests
from framelane.loadtests.processes import Server
from framelane.loadtests.swarm.command import VOID
from framelane.loadtests.swarm.replay import read_sessions

LOCUSTFILE = Path(framelane.loadtests.__file__).with_name("locustfile.py")
QUICK = ["--sizes", "160x120", "--fps", "5", "--seconds", "2", "--spawn-rate", "100", "--pipeline", "echo"]
QUICK += ["--device", "sim:2"]


def swarm(folder, *arguments, status=0):
    """Run it; what it printed, and its record."""
    command = [sys.executable, "-m", "framelane.server.cli", "swarm", *QUICK, *arguments, "-o", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    record = folder / "swarm.json"
    return done.stdout, json.loads(record.read_text()) if record.exists() else {}


@pytest.fixture(scope="module")
def ten_users(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swarm")
    said, record = swarm(folder, "-u", "10", "--serve", f"--record {folder / 'sessions'}")
    return folder, said, record


def test_ten_users_get_all_their_frames_through_both_doors(ten_users):
    _folder, said, record = ten_users
    data = record["data"]
    (level,) = data["levels"]
    assert data["verdict"] == "met"
    assert level["users"] == 10
    assert level["summary"]["sent"] == pytest.approx(10 * 5 * 2, abs=3)
    assert level["summary"]["delivery"] == 1
    assert {user["door"] for user in data["users"]} == {"ws", "socketio"}
    assert all(user["delivery"] == 1 and user["connect_ms"] > 0 for user in data["users"])
    assert data["failed_connects"] == data["lost_connections"] == {}
    assert "every frame has exactly one fate, at the server and at the users" in said
    assert "SIMULATED" in said


def test_report_holds_levels_users_and_the_servers_own_figures(ten_users):
    folder, _said, record = ten_users
    page = (folder / "swarm.html").read_text()
    assert page.count("<svg") >= 3
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert record["data"]["status"]["before"]["uptime_s"] < record["data"]["status"]["after"]["uptime_s"]
    assert record["data"]["server"]["delivered"] >= 100
    rows = list(csv.DictReader((folder / "swarm-users.csv").read_text().splitlines()))
    assert len(rows) == 10
    assert {"sent", "results", "delivery", "p50_ms", "p95_ms", "p99_ms", "connect_ms"} <= set(rows[0])
    assert {"generator", "gateway", "worker", "slot"} <= set(record["data"]["levels"][0]["cores"])


def test_sessions_of_the_swarm_were_recorded_and_can_be_read(ten_users):
    folder, _said, record = ten_users
    sessions = read_sessions(folder / "sessions")
    assert len(sessions) == 10
    assert sum(len(session.at_ms) for session in sessions) == sum(user["sent"] for user in record["data"]["users"])
    assert {session.door for session in sessions} == {"ws", "socketio"}
    assert all(session.bytes[0] > 1000 for session in sessions)


def test_no_process_is_left(ten_users):
    names = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [name for name in names if str(ten_users[0]) in name]


def test_server_that_is_not_there_is_an_error_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "framelane.server.cli", "swarm", "--url", "http://127.0.0.1:9", *QUICK]
    done = subprocess.run([*command, "-o", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Connection refused" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.prove
def test_objective_that_is_missed_is_its_own_status_and_so_is_a_swarm_that_must_wait(tmp_path):
    said, record = swarm(tmp_path / "a", "-u", "10", "--p50-ms", "0.001", status=1)
    assert "missed" in said
    said, record = swarm(tmp_path / "b", "-u", "10", "--serve", "--max-clients 4", status=1)
    assert "6 users were told to wait" in said
    assert "--client-fps 5" in said
    assert record["data"]["fates"]["waiting"] > 30
    _, record = swarm(tmp_path / "c", "-u", "10", "--serve", "--max-clients 4 --waiting-room 0", status=1)
    assert record["data"]["refused"]["full"] >= 6


@pytest.mark.prove
def test_nobody_sends_anything_is_void(tmp_path):
    said, _record = swarm(tmp_path, "-u", "3", "--fps", "0.05", "--seconds", "1", status=VOID)
    assert "no level was reached" in said or "not a single frame" in said


@pytest.mark.prove
def test_replayed_sessions_have_the_recorded_sizes_again(ten_users, tmp_path):
    folder = ten_users[0]
    arguments = ("--replay", str(folder / "sessions"), "--serve", f"--record {tmp_path / 'again'}")
    _, record = swarm(tmp_path / "out", "-u", "20", "--seconds", "8", *arguments)
    assert record["data"]["levels"][0]["summary"]["delivery"] > 0.99
    recorded = {size for session in read_sessions(folder / "sessions") for size in session.bytes}
    again = {size for session in read_sessions(tmp_path / "again") for size in session.bytes}
    assert again <= recorded
    assert len(again) > 20


@pytest.mark.prove
@pytest.mark.parametrize("arguments", [("--door", "stock"), ("--processes", "2"), ("--audience", "audience")])
def test_stock_users_several_processes_and_audiences_are_served_too(tmp_path, arguments):
    _, record = swarm(tmp_path, "-u", "20", "--seconds", "8", *arguments)
    assert len(record["data"]["users"]) == 20
    assert record["data"]["failed_connects"] == {}
    assert record["data"]["levels"][0]["summary"]["delivery"] > 0.95


@pytest.mark.prove
def test_honest_users_are_served_among_hostile_ones(tmp_path):
    _, record = swarm(tmp_path, "-u", "60", "--seconds", "15", "--audience", "hostile")
    (level,) = record["data"]["levels"]
    hostile = [user for user in record["data"]["users"] if user["persona"] == "deaf"]
    assert level["summary"]["delivery"] > 0.95
    assert hostile
    assert max(user["results"] for user in hostile) <= 5
    assert "By persona" in (tmp_path / "swarm.html").read_text()


@pytest.mark.prove
def test_plain_locust_runs_the_same_users(tmp_path):
    options = ["--device", "sim:2", "--pipeline", "echo", "--max-clients", "100"]
    with Server(options, tmp_path / "log") as server:
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "-u", "6", "-r", "6", "-t", "5"]
        command += ["--host", f"http://127.0.0.1:{server.port}", "--fps", "5", "--sizes", "160x120", "--only-summary"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Framelane: 100.00% of" in done.stdout
    assert "0 failed connects" in done.stdout
    assert "socketio  frame" in done.stderr + done.stdout
