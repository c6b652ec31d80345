"""Long jobs over HTTP: what is taken, what is streamed, how to come back, and what is refused by which name."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fake_audit import Auditing, auditing, zipped
from starlette.applications import Starlette

from framelane.server.doors.audit import AuditDoor
from framelane.server.lanes.limits import Limits
from framelane.server.lanes.passes import Passes
from framelane.server.slots.audit import JobState


class Readiness:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def ready(self) -> list[str]:
        return self.reasons


class House:
    """The door, its auditor, and a client in front of it."""

    def __init__(self, running: Auditing, http: httpx.AsyncClient, readiness: Readiness) -> None:
        self.running = running
        self.http = http
        self.readiness = readiness

    async def post(self, data: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("/v1/audit", content=data, headers=named)

    async def begun(self, data: bytes) -> str:
        """Begin a job without waiting for it; its id."""
        answer = await self.post(data, accept="application/json")
        assert answer.status_code == 202
        return answer.json()["id"]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with house_with() as house:
        yield house


def house_with(token: str | None = None, **config: Any) -> Any:
    import contextlib

    @contextlib.asynccontextmanager
    async def build() -> AsyncIterator[House]:
        async with auditing(**config) as running:
            readiness = Readiness()
            door = AuditDoor(running.auditor, readiness, Limits(pipeline="echo"), Passes(token, None, lambda: 0.0))
            transport = httpx.ASGITransport(Starlette(routes=door.routes()))
            async with httpx.AsyncClient(transport=transport, base_url="http://here", timeout=30) as http:
                yield House(running, http, readiness)

    return build()


def lines(answer: httpx.Response) -> list[Any]:
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_clip_is_answered_with_its_results_as_they_come(house: House) -> None:
    answer = await house.post(zipped(3))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    said = lines(answer)
    assert said[0]["job"]["state"] == "waiting"
    found = [line for line in said if "result" in line]
    assert [(line["n"], line["result"]["frame"]) for line in found] == [(0, 0), (1, 1), (2, 2)]
    assert said[-1]["end"] == {**said[-1]["end"], "state": "done", "results": 3, "errors": 0}
    assert answer.headers["location"] == f"/v1/audit/{said[0]['job']['id']}"


async def test_server_sent_events_if_asked_for(house: House) -> None:
    answer = await house.post(zipped(2), accept="text/event-stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [event.split("\n") for event in answer.text.strip().split("\n\n")]
    assert [event[0] for event in events if "job" not in event[0]] == [
        "event: result", "event: result", "event: end"
    ]  # fmt: skip
    results = [event for event in events if event[0] == "event: result"]
    assert [event[1] for event in results] == ["id: 0", "id: 1"]
    assert json.loads(results[1][2].removeprefix("data: "))["frame"] == 1


async def test_json_is_the_state_alone(house: House) -> None:
    number = await house.begun(zipped(2))
    await house.running.until(lambda: house.running.auditor.ledger.find(number).ended)
    answer = await house.http.get(f"/v1/audit/{number}", headers={"accept": "application/json"})
    assert answer.json() == {
        "id": number, "state": "done", "format": "zip", "results": 2, "errors": 0, "total": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [("", {}, [0, 1, 2, 3]), ("?from=2", {}, [2, 3]), ("?from=9", {}, []), ("", {"last-event-id": "1"}, [2, 3])],
)
async def test_results_can_be_had_again_from_any_on(
    house: House, query: str, headers: dict[str, str], expected: list[int]
) -> None:
    number = await house.begun(zipped(4))
    answer = await house.http.get(f"/v1/audit/{number}{query}", headers=headers)
    assert [line["n"] for line in lines(answer) if "result" in line] == expected
    assert lines(answer)[-1]["end"]["state"] == "done"


async def test_a_client_that_goes_leaves_its_job_running(house: House) -> None:
    house.running.workers.automatic = False
    asking = asyncio.create_task(house.post(zipped(2)))
    await house.running.until(lambda: house.running.workers.jobs)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    (job,) = house.running.auditor.ledger.jobs.values()
    await house.running.until(lambda: not job.listeners)
    house.running.workers.automatic = True
    house.running.workers.finish(1)
    answer = await house.http.get(f"/v1/audit/{job.id}")
    assert [line["n"] for line in lines(answer) if "result" in line] == [0, 1]


async def test_steps_over_the_clip_of_an_earlier_job(house: House) -> None:
    number = await house.begun(zipped(6))
    body = {"clip": number, "steps": [{"name": "start", "last": 2}, {"first": 1, "every": 3}]}
    answer = await house.post(json.dumps(body), content_type="application/json; charset=utf-8")
    found = [line["result"] for line in lines(answer) if "result" in line]
    assert [(line.get("step"), line["frame"]) for line in found] == [("start", 0), ("start", 1), (None, 1), (None, 4)]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ("{", 400, "the body is not"),
        ("[]", 400, "the body is not"),
        ('{"clip": "x"}', 400, "steps"),
        ('{"clip": "x", "steps": []}', 400, "at least one step"),
        ('{"clip": "x", "steps": [{"every": 0}]}', 400, ">= 1"),
        ('{"clip": "x", "steps": [{"evry": 1}]}', 400, "evry"),
        ('{"clip": "nobody", "steps": [{}]}', 404, "no such job"),
        ('"' + "x" * 70_000 + '"', 413, "65536 bytes"),
    ],
)
async def test_steps_that_cannot_be_read_are_refused(house: House, body: str, status: int, word: str) -> None:
    answer = await house.post(body, content_type="application/json")
    assert answer.status_code == status
    assert word in answer.json()["message"]


async def test_cancelling_keeps_what_is_there(house: House) -> None:
    house.running.workers.automatic = False
    number = await house.begun(zipped(3))
    await house.running.until(lambda: house.running.workers.jobs)
    house.running.workers.finish(1)
    await house.running.until(lambda: house.running.workers.jobs)
    answer = await house.http.delete(f"/v1/audit/{number}")
    assert answer.json() == {**answer.json(), "state": "cancelled", "results": 1}
    again = await house.http.get(f"/v1/audit/{number}")
    assert [next(iter(line)) for line in lines(again)] == ["job", "result", "end"]
    assert (await house.http.delete(f"/v1/audit/{number}")).json()["state"] == "cancelled"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_unknown_jobs_are_404(house: House, method: str) -> None:
    answer = await house.http.request(method, "/v1/audit/nobody")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")


async def test_from_must_be_a_number(house: House) -> None:
    number = await house.begun(zipped(1))
    for wrong in ("-1", "x", "1" * 30):
        answer = await house.http.get(f"/v1/audit/{number}?from={wrong}")
        assert answer.status_code == 400


async def test_a_clip_beyond_the_limit_is_413_whether_declared_or_not() -> None:
    async with house_with(clip_bytes=1000) as house:
        declared = await house.post(bytes(1001))

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield bytes(100)

        chunked = await house.post(pieces())
        assert [answer.status_code for answer in (declared, chunked)] == [413, 413]
        assert "audit_bytes" in declared.json()["message"]
        assert not house.running.auditor.ledger.jobs


async def test_an_empty_clip_is_400(house: House) -> None:
    answer = await house.post(b"")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


async def test_too_many_waiting_jobs_are_503_with_a_time_to_come_back() -> None:
    async with house_with(waiting=1) as house:
        house.running.slots.available = False
        await house.begun(zipped(1))
        answer = await house.post(zipped(1))
        assert (answer.status_code, answer.json()["code"]) == (503, "full")
        assert answer.headers["retry-after"] == "5"


async def test_without_a_slot_for_long_jobs_it_is_503_by_name(house: House) -> None:
    house.running.slots.can_audit = False
    answer = await house.post(zipped(1))
    assert (answer.status_code, answer.json()["code"]) == (503, "no_audit_slot")
    assert "--standby-slots 1" in answer.json()["message"]


async def test_a_server_that_is_not_ready_is_503(house: House) -> None:
    house.readiness.reasons = ["no slot is active"]
    answer = await house.post(zipped(1))
    assert (answer.status_code, answer.json()["message"]) == (503, "no slot is active")


async def test_the_clients_token_is_needed_here_too() -> None:
    async with house_with(token="secret") as house:
        assert (await house.post(zipped(1))).status_code == 401
        assert (await house.post(zipped(1), authorization="Bearer wrong")).status_code == 401
        number = (await house.post(zipped(1), authorization="Bearer secret")).headers["location"]
        assert (await house.http.get(number)).status_code == 401
        assert (await house.http.delete(number)).status_code == 401


async def test_pages_of_others_may_not_audit(house: House) -> None:
    answer = await house.post(zipped(1), origin="https://evil.example")
    assert (answer.status_code, answer.json()["code"]) == (403, "origin")


async def test_a_job_that_fails_says_why_at_its_end(house: House) -> None:
    end = lines(await house.post(b"no clip at all"))[-1]["end"]
    assert (end["state"], end["error"]["code"]) == ("failed", "bad_clip")


async def test_whoever_reads_is_told_when_the_server_goes_away(house: House) -> None:
    house.running.workers.automatic = False
    asking = asyncio.create_task(house.post(zipped(1)))
    await house.running.until(lambda: house.running.workers.jobs)
    await house.running.auditor.stop()
    end = lines(await asking)[-1]["end"]
    assert (end["state"], end["error"]["code"]) == (JobState.CANCELLED, "draining")
    assert (await house.post(zipped(1))).json()["code"] == "draining"


async def test_too_many_readers_are_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framelane.server.doors.audit._READERS_AT_ONCE", 0)
    assert (await house.post(zipped(1))).status_code == 503
