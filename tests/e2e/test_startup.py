"""Starting: what cannot work ends with status 3 and one clear line; what works says how it stands."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.clients import connected, outcomes
from e2e.frames import signed
from e2e.servers import Serve, failed_start, free_port, serving, wait_until

from support import ROOT

START_FAILED, USAGE = 3, 2
FAST = ("--pipeline", "echo", "--workers", "1", "--active-slots", "1")


def only_line(log: str) -> str:
    """What a person must read: one line, and no traceback anywhere."""
    assert "Traceback" not in log, log
    lines = [line for line in log.splitlines() if line.startswith("framelane: ")]
    assert len(lines) == 1, log
    return lines[0]


# -- what cannot work ------------------------------------------------------------------------------------------------

BAD_OPTIONS = {
    "a port that is none": (["--port", "70000"], ["port", "70000", "65535"]),
    "a port that is no number": (["--port", "http"], ["port", "http", "int"]),
    "no workers": (["--workers", "0"], ["workers", "'0'", ">= 1"]),
    "an unknown pipeline": (["--pipeline", "face_mash"], ["face_mash", "face_mesh, echo, reference", "module:Class"]),
    "a module that is not there": (["--pipeline", "nowhere:Nothing"], ["nowhere:Nothing", "No module named"]),
    "a class that is not there": (["--pipeline", "pipelines:Nothing"], ["pipelines:Nothing", "Nothing"]),
    "a class that is no pipeline": (["--pipeline", "pipelines:NoPipeline"], ["NoPipeline", "subclass"]),
    "a pipeline's model that is not there": (["--pipeline", "pipelines:NoModel"], ["nobody_has_it"]),
    "an unknown option of the pipeline": (["--option", "faces=2"], ["face_mesh", "faces"]),
    "an option that is no pair": (["--option", "max_faces"], ["max_faces", "key=value"]),
    "a wrong value for the pipeline": (["--option", "max_faces=many"], ["max_faces"]),
    "a device that cannot be read": (["--device", "gpu"], ["gpu", "cuda[:N,…]"]),
    "a simulation that cannot be read": (["--device", "sim:8:batch=no"], ["sim:8:batch=no", "sim:MS"]),
    "a folder of models that is not there": (["--models", "no/such/folder"], ["no/such/folder"]),
    "a host that is not of this machine": (["--host", "192.0.2.1"], ["192.0.2.1", "listen"]),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_named_with_what_is_accepted(logs: Path, case: str) -> None:
    options, words = BAD_OPTIONS[case]
    status, log = failed_start(logs, *options)
    assert status == START_FAILED, log
    line = only_line(log)
    assert all(word in line for word in words), line


def test_a_pipeline_that_fails_is_refused_with_its_fault(logs: Path) -> None:
    status, log = failed_start(logs, "--pipeline", "pipelines:Faulty")
    assert status == START_FAILED
    assert log.splitlines()[-1].startswith("framelane: pipeline pipelines:Faulty fails on the sample picture: ValueErr")
    assert log.count("Traceback") == 1, "its author wants to see where; nobody else is to blame"


def test_an_unknown_option_is_a_usage_error(logs: Path) -> None:
    status, log = failed_start(logs, "--wrokers", "2")
    assert status == USAGE
    assert "--workers" in log, "it should suggest what was meant"


def test_a_taken_port_is_named(logs: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, log = failed_start(logs, *FAST, port=port)
    assert status == START_FAILED
    assert f"port {port}: Address already in use" in only_line(log)


@pytest.mark.parametrize("device", ["cuda:1", "tensorrt"])
def test_a_device_that_cannot_be_had_is_an_error_with_its_cure(logs: Path, device: str) -> None:
    """Never a silent fallback to the CPU."""
    status, log = failed_start(logs, "--device", device, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert status == START_FAILED, log
    line = only_line(log)
    assert device.partition(":")[0] in line.lower()
    assert "framelane[gpu]" in line or "CUDA_VISIBLE_DEVICES" in line or "driver" in line, line


CONFIGS = {
    "unknown key": ("max_client = 5", ["max_client", "max_clients"]),
    "wrong type": ('workers = "two"', ["workers", "two", "int"]),
    "out of range": ("deadline_ms = 0", ["deadline_ms", "0", ">= 1"]),
    "no TOML": ("workers = = 2", ["TOML"]),
    "bad log level": ('log_level = "LOUD"', ["log_level", "LOUD"]),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_an_error_in_the_configuration_file_names_file_and_key(logs: Path, tmp_path: Path, case: str) -> None:
    text, words = CONFIGS[case]
    config = tmp_path / "framelane.toml"
    config.write_text(text)
    status, log = failed_start(logs, "--config", str(config))
    assert status == START_FAILED
    line = only_line(log)
    assert all(word in line for word in [*words, str(config)]), line


def test_a_configuration_file_that_is_not_there(logs: Path) -> None:
    status, log = failed_start(logs, "--config", "not/there.toml")
    assert status == START_FAILED
    assert "not/there.toml: No such file" in only_line(log)


def test_a_wrong_variable_is_named(logs: Path) -> None:
    status, log = failed_start(logs, environment={"FRAMELANE_MAX_CLIENTS": "a lot"})
    assert status == START_FAILED
    assert "FRAMELANE_MAX_CLIENTS" in only_line(log)


@pytest.fixture
def own_models(tmp_path: Path) -> Path:
    """A folder with a copy of one model, that a test may damage."""
    shutil.copytree(ROOT / "models" / "weights" / "blazeface_short", tmp_path / "models" / "blazeface_short")
    return tmp_path / "models"


def test_a_model_with_the_wrong_hash_is_refused(logs: Path, own_models: Path) -> None:
    with (own_models / "blazeface_short" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    status, log = failed_start(logs, "--models", str(own_models))
    assert status == START_FAILED
    line = only_line(log)
    assert "blazeface_short" in line
    assert "sha256" in line


def test_a_model_of_another_shape_is_refused_with_both_sides(logs: Path, own_models: Path) -> None:
    description = own_models / "blazeface_short" / "model.toml"
    text = description.read_text()
    assert "shape = [128, 128, 3]" in text
    description.write_text(text.replace("shape = [128, 128, 3]", "shape = [64, 64, 3]"))
    status, log = failed_start(logs, "--models", str(own_models))
    assert status == START_FAILED
    line = only_line(log)
    assert "64" in line
    assert "128" in line


def test_a_model_without_its_file_is_refused(logs: Path, own_models: Path) -> None:
    (own_models / "blazeface_short" / "model.onnx").unlink()
    status, log = failed_start(logs, "--models", str(own_models))
    assert status == START_FAILED
    assert "model.onnx" in only_line(log)


# -- how it stands ---------------------------------------------------------------------------------------------------


def test_readiness_tells_what_is_missing_until_it_is_ready(logs: Path) -> None:
    server = Serve(logs, port=free_port())
    seen: set[str] = set()

    def ready() -> bool:
        try:
            status, body = server.request("GET", "/readyz")
        except OSError:
            return False
        answer = json.loads(body)
        assert (status == 200) == answer["ready"] == (not answer["reasons"])
        if status == 503:
            assert server.request("GET", "/livez")[0] == 200
            assert server.request("POST", "/v1/infer", b"x")[0] == 503
        seen.update(answer["reasons"])
        return answer["ready"]

    try:
        wait_until(ready, "it is ready")
        assert {"no worker is ready", "no slot is active"} & seen
        server.wait_ready()
        server.stop()
    finally:
        server.kill()


def test_status_of_a_running_server(face_server: Serve) -> None:
    status = face_server.status()
    assert status["pid"] == face_server.pid
    assert status["pipeline"] == "face_mesh"
    assert status["version"]
    assert status["device"] == {"requested": "auto", "used": status["device"]["used"], "simulated": False}
    assert status["device"]["used"] in ("cpu", "cuda:0")
    assert status["lanes"]["connected"] == 0
    assert status["draining"] is False
    for kind in ("workers", "slots"):
        pids = face_server.active(kind)
        assert pids
        assert pids <= set(face_server.pids())
    assert face_server.active("workers").isdisjoint(face_server.active("slots"))


def test_the_plan_and_the_addresses_are_printed(face_server: Serve) -> None:
    output = face_server.output()
    for word in ("face_mesh", "device", "workers", "active slots", "credits", "memory"):
        assert word in output
    assert f"http://localhost:{face_server.port}/" in output
    assert f"ws://localhost:{face_server.port}/ws" in output


def test_settings_from_file_environment_and_command_line(logs: Path, tmp_path: Path) -> None:
    """The command line goes before the environment, and that before the file."""
    config = tmp_path / "framelane.toml"
    config.write_text('pipeline = "echo"\nworkers = 1\nactive-slots = 1\nmax_clients = 7\ndeadline_ms = 700\n')
    environment = {"FRAMELANE_MAX_CLIENTS": "1", "FRAMELANE_DEADLINE_MS": "800"}
    options = ("--config", str(config), "--deadline-ms", "900")
    with serving(logs, *options, environment=environment) as server:
        status = server.status()
        assert status["pipeline"] == "echo"
        assert len(server.active("workers")) == 1


def test_pages_of_other_hosts_are_let_in_by_name(logs: Path) -> None:
    with serving(logs, *FAST, "--allowed-origins", "https://a.example/, http://localhost:5173") as server:
        statuses = [
            server.request("POST", "/v1/infer", signed(3, 4), {"origin": origin})[0]
            for origin in ("https://a.example", "http://localhost:5173", "https://b.example", "https://a.example.com")
        ]
    assert statuses == [200, 200, 403, 403]


@pytest.fixture(scope="module")
def simulated(logs: Path) -> Iterator[Serve]:
    with serving(logs, "--device", "sim:8", "--deadline-ms", "5000") as server:
        yield server


def test_a_simulated_device_says_so_everywhere(simulated: Serve) -> None:
    device = simulated.status()["device"]
    assert device["simulated"] is True
    assert "SIMULATED" in device["used"]
    assert "SIMULATED" in simulated.output()
    assert "SIMULATED" in simulated.log()


async def test_the_capacity_of_a_simulated_device_is_known(logs: Path) -> None:
    """One run of 8 ms per frame, one slot: 125 frames per second, if the machine has time for the rest."""
    options = ["--pipeline", "pipelines:Mirror", "--device", "sim:8", "--deadline-ms", "5000"]
    with serving(logs, *options) as server:
        async with connected(server.port, 9) as clients:
            started, seq = time.monotonic(), 0
            while time.monotonic() - started < 2:
                await outcomes([await client.send_frame(seq, signed(1, 1)) for client in clients])
                seq += 1
            rate = sum(client.results for client in clients) / (time.monotonic() - started)
    assert 30 < rate < 130


def test_the_same_port_can_be_used_again_at_once(logs: Path) -> None:
    port = free_port()
    with serving(logs, *FAST, port=port) as server:
        assert server.request("POST", "/v1/infer", signed(3, 4))[0] == 200
        server.signal_group(signal.SIGKILL)
        server.wait()
    with serving(logs, *FAST, port=port) as server:
        assert server.port == port
