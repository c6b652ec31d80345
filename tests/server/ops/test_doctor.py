"""What the doctor says of machines that are not at hand, and that it looks at this one without harm."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from framelane.models.cuda import CardFacts, DriverFacts
from framelane.models.devices import parse_device
from framelane.models.gpu import GpuFacts
from framelane.server.config import Settings
from framelane.server.ops.doctor import Facts, Finding, examine
from framelane.server.ops.doctor_facts import gather, redis_problem
from framelane.server.ops.machine import Machine

GIB = 2**30
L4 = CardFacts(0, "NVIDIA L4", 24 * GIB, "0000:3b:00.0", "8.9")
GPU = GpuFacts(
    wheels={"onnxruntime-gpu": "1.31.1"},
    providers=("cuda", "tensorrt"),
    build_cuda=(13, 0),
    driver=DriverFacts((13, 0), (L4,)),
)
CPU = GpuFacts(wheels={"onnxruntime": "1.32.0"}, driver=DriverFacts(problem="libcuda.so.1 cannot be loaded"))


def facts(device: str = "auto", **changes: object) -> Facts:
    values = {"machine": Machine(4.0, "cores", 16 * GIB, "memory"), "processes": 6, "gpu": GPU, "models": ("double",)}
    return Facts(device=parse_device(device), **{**values, **changes})  # type: ignore[arg-type]


def not_fine(machine: Facts) -> list[Finding]:
    return [finding for finding in examine(machine) if finding.level != "fine"]


@pytest.mark.parametrize("gpu", [GPU, CPU])
def test_a_good_machine_has_no_complaint(gpu: GpuFacts) -> None:
    assert not_fine(facts(gpu=gpu)) == []


WRONG = [
    ({"plan_problem": "40 slots do not fit"}, "settings", "settings"),
    ({"gpu": GpuFacts(wheels={"onnxruntime": "1", "onnxruntime-gpu": "1"})}, "ONNX Runtime", "pip uninstall"),
    ({"gpu": GpuFacts()}, "ONNX Runtime", "framelane[cpu]"),
    ({"gpu": GpuFacts(wheels={"onnxruntime": "1"}, driver=GPU.driver)}, "card", "framelane[gpu]"),
    ({"mps_clients": 60}, "MPS", "gpu_density"),
    ({"mps_clients": 50, "card_slots": 11}, "MPS", "gpu_density"),
    ({"machine": Machine(0.5, "the container's cpu.max", 16 * GIB, "memory")}, "cores", "--cpus"),
    ({"machine": Machine(4, "cores", GIB // 2, "the container's memory.max")}, "memory", "half a GiB"),
    ({"files": (1024, 524288)}, "open files", "ulimit -n 65536"),
    ({"files": (1024, 2048)}, "open files", "ulimit -n 2048"),
    ({"tasks": 32}, "processes", "--pids-limit) to 64"),
    ({"clock_step_ns": 4_000_000}, "clock", "clock source"),
    ({"models_problem": "model.onnx has sha256 …"}, "models", "framelane models"),
    ({"port_problem": "cannot listen on port 80"}, "port", "--port"),
    ({"redis": "redis://r", "redis_problem": "no connection"}, "Redis", "redis://r"),
]
NOTES = [
    ({"mps_clients": 50}, "MPS", "gpu_density"),
    ({"gpu": GpuFacts(wheels=GPU.wheels, providers=("cuda",), driver=CPU.driver)}, "card", "--gpus all"),
    ({"nvml_problem": "not available"}, "GPU metrics", "nvidia-ml-py"),
    ({"throttled": 0.2}, "cores", "CPU limit"),
    ({"oom_kills": 2}, "memory", "memory.max"),
    ({"somaxconn": 128}, "connections", "somaxconn=2048"),
    ({"clock": "acpi_pm"}, "clock", "tsc"),
    ({"synchronised": False}, "clock", "chrony"),
]


@pytest.mark.parametrize(
    ("changes", "what", "cure", "level"), [(*case, "wrong") for case in WRONG] + [(*case, "note") for case in NOTES]
)
def test_each_fault_is_one_finding_with_its_cure(changes: dict[str, object], what: str, cure: str, level: str) -> None:
    complaints = [finding for finding in not_fine(facts(**changes)) if finding.what == what]
    assert [finding.level for finding in complaints] == [level]
    assert cure in complaints[0].cure


def test_a_named_card_that_is_not_there_is_wrong_and_every_card_is_looked_at() -> None:
    findings = {finding.what: finding.level for finding in examine(facts("cuda:0,3"))}
    assert (findings["card 0"], findings["card 3"]) == ("fine", "wrong")


def test_this_machine_is_looked_at_with_its_own_settings() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        here = gather(Settings(port=taken.getsockname()[1]), parse_device("cpu"), CPU, 3, "")
    assert "Address already in use" in here.port_problem
    assert here.machine.cores >= 1
    assert here.clock_step_ns is not None
    assert 0 < here.clock_step_ns < 1_000_000
    assert "face_landmark" in here.models


def test_the_password_of_redis_is_not_told() -> None:
    there = gather(Settings(redis="redis://me:secret@127.0.0.1:1/0", port=0), parse_device("cpu"), CPU, 3, "")
    assert there.redis == "redis://127.0.0.1:1"
    assert "no connection" in there.redis_problem
    assert not [finding for finding in examine(there) if "secret" in finding.found + finding.cure]


@pytest.mark.parametrize(("says", "problem"), [(b"+PONG\r\n", ""), (b"HTTP/1.1 400", "no Redis")])
def test_redis_is_asked_whether_it_is_one(says: bytes, problem: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        assert problem in redis_problem(f"redis://127.0.0.1:{port}/0")
        thread.join()
    assert "no connection" in redis_problem(f"redis://127.0.0.1:{port}")


def test_the_command_prints_json_and_its_status_says_whether_something_is_wrong(tmp_path: Path) -> None:
    environment = {**os.environ, "FRAMELANE_PORT": "0"}

    def doctor(*arguments: str) -> tuple[int, list[dict[str, str]]]:
        command = [sys.executable, "-m", "framelane.server.cli", "doctor", "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)
        return done.returncode, json.loads(done.stdout)

    status, findings = doctor("--models", str(tmp_path / "none"))
    assert status == 1
    assert [finding["what"] for finding in findings if finding["level"] == "wrong"] == ["models"]
