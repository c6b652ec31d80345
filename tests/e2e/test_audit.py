"""Long jobs on real servers: the results that clients get, on a slot that clients can have back at any time."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.clients import Client, bystander
from e2e.frames import is_answer_to, signed
from e2e.servers import Serve, serving, wait_until

from framelane.loadtests.clips import moving_face

MIRROR = ("--pipeline", "pipelines:Mirror", "--device", "sim:20", "--deadline-ms", "30000", "--workers", "1")
ONE_EACH = ("--active-slots", "1", "--standby-slots", "1")


def zipped(pictures: list[bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for number, picture in enumerate(pictures):
            archive.writestr(f"{number}.img", picture)
    return data.getvalue()


def begin(server: Serve, clip: bytes) -> str:
    """Begin a job; its id."""
    status, body = server.request("POST", "/v1/audit", clip, {"accept": "application/json"})
    assert status == 202, body
    return json.loads(body)["id"]


def state(server: Serve, job: str) -> dict[str, Any]:
    return json.loads(server.request("GET", f"/v1/audit/{job}", headers={"accept": "application/json"})[1])


def stream(server: Serve, job: str, first: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Its results from one on, and its end."""
    lines = [json.loads(line) for line in server.request("GET", f"/v1/audit/{job}?from={first}")[1].splitlines()]
    return [line["result"] for line in lines if "result" in line], lines[-1]["end"]


def wait_for_results(server: Serve, job: str, count: int) -> None:
    wait_until(lambda: state(server, job)["results"] >= count, f"{count} results")


def slots(server: Serve) -> dict[str, str]:
    return {slot["id"]: slot["state"] for slot in server.status()["slots"]}


def pid_of(server: Serve, kind: str, wanted: str) -> int:
    """The process of the only slot or worker in a state."""
    (pid,) = [entry["pid"] for entry in server.status()[kind] if entry["state"] == wanted]
    return int(pid)


def samples(server: Serve, prefix: str) -> dict[str, float]:
    text = server.request("GET", "/metrics")[1].decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(prefix)]
    return {name: float(value) for name, _, value in lines}


PICTURES = [signed(7, number) for number in range(120)]


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Serve]:
    with serving(logs, *MIRROR, *ONE_EACH) as server:
        yield server


@pytest.fixture
def settled(server: Serve) -> Serve:
    """The server, once every slot has its place again."""
    wait_until(lambda: sorted(slots(server).values()) == ["active", "standby"], "a slot is active and one is standby")
    return server


def assert_all_answered(found: list[Any], end: dict[str, Any]) -> None:
    assert (end["state"], end["results"], end["errors"]) == ("done", len(PICTURES), 0)
    assert [line["frame"] for line in found] == list(range(len(PICTURES)))
    assert all(is_answer_to(line["result"], 7, line["frame"], PICTURES[line["frame"]]) for line in found)


async def test_results_are_those_that_clients_get(face_server_with_standby: Serve) -> None:
    server = face_server_with_standby
    frames = list(moving_face(frames=12).frames)
    async with Client(server.port) as client:
        live = [(await client.ask(seq, frame)).fields for seq, frame in enumerate(frames)]
    job = await asyncio.to_thread(begin, server, b"".join(frames))
    found, end = await asyncio.to_thread(stream, server, job)
    assert (end["state"], end["format"], len(found)) == ("done", "mjpeg", 12)
    for line, fields in zip(found, live, strict=True):
        ours, theirs = line["result"]["faces"], fields["faces"]
        assert [face["box"] for face in ours] == [face["box"] for face in theirs]
        assert len(ours) == 1
        landmarks = np.frombuffer(theirs[0]["landmarks"], "<f4").reshape(468, 3)
        assert np.array_equal(np.array(ours[0]["landmarks"], np.float32), landmarks)


@pytest.fixture(scope="module")
def face_server_with_standby(logs: Path) -> Iterator[Serve]:
    options = ("--option", "tracking=true", "--deadline-ms", "30000", "--workers", "1")
    with serving(logs, *options, *ONE_EACH) as server:
        yield server


async def test_a_standby_is_borrowed_and_given_back(settled: Serve) -> None:
    job = await asyncio.to_thread(begin, settled, zipped(PICTURES))
    await asyncio.to_thread(wait_for_results, settled, job, 1)
    assert sorted((await asyncio.to_thread(slots, settled)).values()) == ["active", "audit"]
    assert (await asyncio.to_thread(settled.status))["audit"]["jobs"]["running"] == 1
    assert (await asyncio.to_thread(samples, settled, "framelane_audit_jobs{"))[
        'framelane_audit_jobs{state="running"}'
    ] == 1
    assert_all_answered(*await asyncio.to_thread(stream, settled, job))
    await asyncio.to_thread(wait_until, lambda: "standby" in slots(settled).values(), "the standby is given back")
    again, _ = await asyncio.to_thread(stream, settled, job, 118)
    assert [line["frame"] for line in again] == [118, 119]


async def test_the_slot_is_given_back_when_an_active_one_dies_and_the_job_goes_on(settled: Serve) -> None:
    promotions = (await asyncio.to_thread(settled.status))["promotions"]
    job = await asyncio.to_thread(begin, settled, zipped(PICTURES))
    await asyncio.to_thread(wait_for_results, settled, job, 3)
    borrowed = await asyncio.to_thread(pid_of, settled, "slots", "audit")
    async with bystander(settled.port, PICTURES[0]):
        os.kill(await asyncio.to_thread(pid_of, settled, "slots", "active"), signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: settled.active("slots") == {borrowed}, "it serves clients")
        assert_all_answered(*await asyncio.to_thread(stream, settled, job))
    status = await asyncio.to_thread(settled.status)
    assert status["promotions"] == promotions + 1
    assert "pauses" in settled.log()


async def test_a_worker_and_a_slot_that_die_under_a_job_cost_it_nothing(settled: Serve) -> None:
    job = await asyncio.to_thread(begin, settled, zipped(PICTURES))
    for kind, results in (("workers", 5), ("slots", 20), ("workers", 40)):
        await asyncio.to_thread(wait_for_results, settled, job, results)
        found = [entry["pid"] for entry in (await asyncio.to_thread(settled.status))[kind] if entry["state"] == "audit"]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    assert_all_answered(*await asyncio.to_thread(stream, settled, job))


async def test_the_audit_worker_is_of_low_priority_and_serves_no_client(settled: Serve) -> None:
    job = await asyncio.to_thread(begin, settled, zipped(PICTURES[:2]))
    await asyncio.to_thread(stream, settled, job)
    pid = await asyncio.to_thread(pid_of, settled, "workers", "audit")
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    async with Client(settled.port) as client:
        assert (await client.ask(0, PICTURES[0])).name == "result"
    workers = (await asyncio.to_thread(settled.status))["workers"]
    assert [worker["frames"] for worker in workers if worker["state"] == "audit"] == [0]


def test_cancelling_a_job_gives_the_slot_back(settled: Serve) -> None:
    job = begin(settled, zipped(PICTURES))
    wait_for_results(settled, job, 1)
    status, body = settled.request("DELETE", f"/v1/audit/{job}")
    assert (status, json.loads(body)["state"]) == (200, "cancelled")
    wait_until(lambda: "standby" in slots(settled).values(), "the standby is given back")
    _, end = stream(settled, job)
    assert end["state"] == "cancelled"


def test_a_picture_that_cannot_be_used_is_one_error(settled: Serve) -> None:
    found, end = stream(settled, begin(settled, zipped([PICTURES[0], b"no picture", PICTURES[2]])))
    assert (end["state"], end["errors"]) == ("done", 1)
    assert ["error" in line for line in found] == [False, True, False]
    assert found[1]["error"]["code"] == "invalid"


def test_without_a_slot_for_it_a_job_is_refused(mirror_server: Serve) -> None:
    status, body = mirror_server.request("POST", "/v1/audit", b"x")
    assert (status, json.loads(body)["code"]) == (503, "no_audit_slot")


def test_an_audit_slot_is_reserved_from_the_start(logs: Path) -> None:
    with serving(logs, *MIRROR, "--active-slots", "1", "--audit-slots", "1") as server:
        wait_until(lambda: sorted(slots(server).values()) == ["active", "audit"], "both have their places")
        assert_all_answered(*stream(server, begin(server, zipped(PICTURES))))
        assert sorted(slots(server).values()) == ["active", "audit"]


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_server_that_ends_under_a_job_leaves_nothing(logs: Path, tmp_path: Path, how: str) -> None:
    server = Serve(logs, *MIRROR, *ONE_EACH, environment={"TMPDIR": str(tmp_path)})
    try:
        server.wait_ready()
        job = begin(server, zipped(PICTURES))
        wait_for_results(server, job, 1)
        server.note_memory()
        ends: list[dict[str, Any]] = []
        if how == "SIGTERM":
            reader = threading.Thread(target=lambda: ends.append(stream(server, job)[1]))
            reader.start()
            wait_until(lambda: server.status()["audit"]["jobs"]["running"], "the job runs")
            server.signal(signal.SIGTERM)
            assert server.wait() == 0, server.log()
            reader.join(30)
            assert ends == [] or (ends[0]["state"], ends[0]["error"]["code"]) == ("cancelled", "draining")
            assert "Traceback" not in server.log()
        else:
            server.signal(signal.SIGKILL)
            server.wait()
        server.assert_nothing_left()
        assert not [path for path in tmp_path.iterdir() if not path.name.startswith("framelane-")]
    finally:
        server.kill()
