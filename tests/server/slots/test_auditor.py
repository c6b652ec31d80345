"""Running long jobs: order, state, pauses, faults of single frames, and every way in which a job ends."""

import asyncio
import json
from typing import Any

import pytest
from fake_audit import Auditing, auditing, picture, zipped

from framelane.preprocess.children import StartFailed
from framelane.preprocess.clip_reader import ClipLimits
from framelane.preprocess.messages import Fate
from framelane.server.slots.audit import AuditRefused, Job, JobState, Step
from framelane.server.slots.uploads import Upload


async def add(running: Auditing, data: bytes, *steps: Step) -> Job:
    upload = Upload(1 << 20)
    await upload.append(data)
    await upload.flush()
    try:
        return running.auditor.add(upload, steps or (Step(),))
    finally:
        upload.release()


async def results(job: Job) -> list[Any]:
    return [json.loads(line) for line in await job.results.read(0, 1 << 30)] if len(job.results) else []


async def finished(running: Auditing, job: Job) -> list[Any]:
    await running.until(lambda: job.ended is not None)
    return await results(job)


async def test_frames_go_in_order_with_the_state_of_the_lane() -> None:
    async with auditing() as running:
        job = await add(running, zipped(4))
        lines = await finished(running, job)
        assert [line["frame"] for line in lines] == [0, 1, 2, 3]
        assert [line["name"] for line in lines] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
        assert [line["result"]["state"] for line in lines] == ["", ".", "..", "..."]
        assert [bytes(work.data) for work in running.workers.submitted] == [picture(number) for number in range(4)]
        assert job.describe() == {
            "id": job.id, "state": "done", "format": "zip", "results": 4, "errors": 0, "total": 4
        }  # fmt: skip


async def test_a_stateless_pipeline_gets_no_state() -> None:
    async with auditing(stateful=False) as running:
        lines = await finished(running, await add(running, zipped(3)))
        assert [line["result"]["state"] for line in lines] == ["", "", ""]


async def test_steps_pass_over_the_clip_each_with_a_fresh_state() -> None:
    async with auditing() as running:
        steps = (Step("all", last=3), Step("some", first=1, every=2), Step("none", first=50))
        job = await add(running, zipped(6), *steps)
        lines = await finished(running, job)
        assert [(line["step"], line["frame"], line["result"]["state"]) for line in lines] == [
            ("all", 0, ""), ("all", 1, "."), ("all", 2, ".."), ("some", 1, ""), ("some", 3, "."), ("some", 5, "..")
        ]  # fmt: skip
        assert (job.state, job.total) == (JobState.DONE, 6)


async def test_the_slot_is_borrowed_for_the_time_of_the_job() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        job = await add(running, zipped(1))
        await running.until(lambda: running.workers.jobs)
        assert running.slots.wanted
        assert job.state is JobState.RUNNING
        running.workers.finish(1)
        await finished(running, job)
        await running.until(lambda: not running.slots.wanted)


async def test_a_frame_waits_for_a_moment_while_clients_have_theirs_in_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framelane.server.slots.auditor._LULL_S", 3600.0)
    async with auditing() as running:
        running.workers.serves = True
        job = await add(running, zipped(3))
        await running.until(lambda: job.state is JobState.RUNNING)
        for _ in range(10):
            await asyncio.sleep(0.002)
        assert not running.workers.submitted
        running.workers.serves = False
        await finished(running, job)


async def test_a_frame_does_not_wait_for_clients_for_ever() -> None:
    async with auditing() as running:
        running.workers.serves = True
        assert len(await finished(running, await add(running, zipped(2)))) == 2


async def test_the_job_pauses_without_a_slot_and_goes_on_where_it_was() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        job = await add(running, zipped(3))
        await running.until(lambda: running.workers.jobs)
        running.slots.give(False)
        assert job.state is JobState.PAUSED
        running.workers.finish(1)  # what was in work is finished all the same
        await running.until(lambda: len(job.results) == 1)
        assert not running.workers.jobs
        running.workers.automatic = True
        running.slots.give(True)
        lines = await finished(running, job)
        assert [line["result"]["state"] for line in lines] == ["", ".", ".."]
        assert job.state is JobState.DONE


async def test_a_job_that_loses_its_slot_with_its_last_frame_is_done() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        job = await add(running, zipped(1))
        await running.until(lambda: running.workers.jobs)
        running.slots.give(False)
        running.workers.finish(1)
        await finished(running, job)
        assert job.state is JobState.DONE


async def test_a_frame_that_fails_is_a_result_with_an_error() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        job = await add(running, zipped(3))
        for request, fate in enumerate((Fate.INVALID, Fate.FAILED, Fate.OK), start=1):
            await running.until(lambda request=request: request in running.workers.jobs)
            running.workers.finish(request, fate, "why")
        lines = await finished(running, job)
        assert [line.get("error", {}).get("code") for line in lines] == ["invalid", "failed", None]
        assert lines[0]["error"]["message"] == "why"
        assert (job.state, job.invalid) == (JobState.DONE, 2)


async def test_a_frame_whose_worker_died_is_tried_once_more() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        job = await add(running, zipped(2))
        for request, lost in enumerate((True, False, True, True), start=1):
            await running.until(lambda request=request: request in running.workers.jobs)
            running.workers.finish(request, Fate.FAILED if lost else Fate.OK, "its worker died", lost=lost)
        lines = await finished(running, job)
        assert ["error" in line for line in lines] == [False, True]
        assert [work.seq for work in running.workers.submitted] == [0, 0, 1, 1]


async def test_jobs_run_one_after_another() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        first, second = await add(running, zipped(1)), await add(running, zipped(1))
        await running.until(lambda: running.workers.jobs)
        assert (first.state, second.state) == (JobState.RUNNING, JobState.WAITING)
        running.workers.finish(1)
        await running.until(lambda: running.workers.jobs)
        assert (first.state, second.state) == (JobState.DONE, JobState.RUNNING)
        running.workers.finish(2)
        await finished(running, second)


async def test_cancelling_a_running_and_a_waiting_job() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        first, second, third = [await add(running, zipped(2)) for _ in range(3)]
        await running.until(lambda: running.workers.jobs)
        running.auditor.cancel(second)
        running.auditor.cancel(first)
        running.auditor.cancel(first)
        await finished(running, first)
        assert (first.state, second.state) == (JobState.CANCELLED, JobState.CANCELLED)
        assert running.workers.cancelled == [1]
        running.workers.finish(1, Fate.LEFT)  # belongs to nobody now
        running.workers.automatic = True
        assert len(await finished(running, third)) == 2
        running.auditor.cancel(third)
        assert third.state is JobState.DONE


async def test_cancelling_a_paused_job() -> None:
    async with auditing() as running:
        running.slots.available = False
        job = await add(running, zipped(2))
        await running.until(lambda: running.slots.wanted)
        running.auditor.cancel(job)
        await finished(running, job)
        assert job.state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("data", "config", "code"),
    [
        (b"no clip", {}, "bad_clip"),
        (zipped(9), {"clip": ClipLimits(frame_bytes=1 << 16, max_pixels=1, max_frames=8)}, "bad_clip"),
        (zipped(9), {"result_bytes": 100}, "results_too_large"),
        (zipped(9), {"job_limit_s": 0.0}, "timeout"),
    ],
)
async def test_a_job_fails_by_name(data: bytes, config: dict[str, Any], code: str) -> None:
    async with auditing(**config) as running:
        job = await add(running, data)
        await finished(running, job)
        assert job.state is JobState.FAILED
        assert job.error is not None
        assert job.error["code"] == code
        good = await add(running, picture(1))
        await running.until(lambda: good.ended is not None)


async def test_a_worker_that_cannot_start_fails_the_job_and_not_the_next() -> None:
    async with auditing() as running:
        running.workers.start_error = StartFailed("worker-3: no memory")
        job = await add(running, zipped(1))
        await finished(running, job)
        assert job.error == {"code": "start_failed", "message": "worker-3: no memory"}
        running.workers.start_error = None
        assert len(await finished(running, await add(running, zipped(1)))) == 1


async def test_without_a_slot_to_have_or_to_borrow_a_job_is_refused() -> None:
    async with auditing() as running:
        running.slots.can_audit = False
        with pytest.raises(AuditRefused, match="--audit-slots 1 or --standby-slots 1") as refused:
            await add(running, zipped(1))
        assert refused.value.code == "no_audit_slot"


async def test_stopping_ends_every_job_and_says_why() -> None:
    async with auditing() as running:
        running.workers.automatic = False
        jobs = [await add(running, zipped(1)) for _ in range(2)]
        await running.until(lambda: running.workers.jobs)
        await running.auditor.stop()
        assert [job.error["code"] if job.error else "" for job in jobs] == ["draining", "draining"]
        with pytest.raises(AuditRefused) as refused:
            running.auditor.check()
        assert refused.value.code == "draining"
