"""Long jobs: their states, the ledger, and where results and clips are kept."""

import asyncio
import itertools
import os
import threading

import pytest
from replica import descriptors, until

from framelane.server.slots.audit import FOLLOWERS, AuditRefused, Job, JobState, Ledger, Step
from framelane.server.slots.nameless import FileClosed
from framelane.server.slots.spool import Spool, SpoolFull
from framelane.server.slots.uploads import Upload, UploadFailed
from framelane.server.transitions import IllegalTransition

OVER = [JobState.DONE, JobState.FAILED, JobState.CANCELLED]


class FakeClip:
    def __init__(self) -> None:
        self.size = 10
        self.held = 0

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1


def new_job(now: float = 0.0) -> Job:
    return Job(FakeClip(), Spool(1 << 20), (Step(),), now)


def ended(ledger: Ledger, now: float, state: JobState = JobState.CANCELLED) -> Job:
    job = new_job()
    ledger.add(job)
    ledger.end(job, state, now)
    return job


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), list(itertools.product(JobState, JobState)))
def test_a_job_changes_as_the_table_says_or_raises(old: JobState, new: JobState) -> None:
    job = new_job()
    job.state = old
    if new in FOLLOWERS[old]:
        job.become(new, 5.0)
        assert (job.state, job.ended) == (new, 5.0 if new in OVER else None)
    else:
        with pytest.raises(IllegalTransition, match=f"{old} cannot become {new}"):
            job.become(new, 5.0)
        assert job.state is old


@pytest.mark.parametrize("state", OVER)
def test_nothing_follows_an_end(state: JobState) -> None:
    assert not FOLLOWERS[state]


def test_listeners_hear_of_every_change_and_may_leave_meanwhile() -> None:
    job, heard = new_job(), []

    def listener() -> None:
        heard.append(job.state)
        job.listeners.discard(listener)

    job.listeners |= {listener, lambda: heard.append("always")}
    job.become(JobState.RUNNING, 1.0)
    job.become(JobState.DONE, 2.0)
    assert sorted(heard) == ["always", "always", "running"]


def test_a_job_tells_why_it_failed() -> None:
    job = new_job()
    assert "error" not in job.describe()
    job.become(JobState.FAILED, 1.0, {"code": "bad_clip", "message": "no"})
    assert job.describe()["error"] == {"code": "bad_clip", "message": "no"}


# -- ledger ----------------------------------------------------------------------------------------------------------


def test_jobs_take_turns_in_the_order_they_came() -> None:
    ledger = Ledger()
    jobs = [new_job() for _ in range(3)]
    for job in jobs:
        ledger.add(job)
    assert ledger.next() is jobs[0]
    ledger.end(jobs[0], JobState.CANCELLED, 1.0)
    assert ledger.next() is jobs[1]


def test_too_many_waiting_jobs_are_refused_by_name() -> None:
    ledger = Ledger(waiting=2)
    first = new_job()
    ledger.add(first)
    ledger.add(new_job())
    with pytest.raises(AuditRefused, match="2 jobs are waiting") as refused:
        ledger.add(new_job())
    assert (refused.value.code, refused.value.retryable) == ("full", True)
    first.become(JobState.RUNNING, 1.0)
    ledger.add(new_job())


def test_ended_jobs_are_forgotten_after_their_time_and_give_everything_back() -> None:
    ledger = Ledger(retention_s=10)
    job = ended(ledger, now=100.0)
    ledger.expire(109.0)
    assert ledger.find(job.id) is job
    ledger.expire(111.0)
    with pytest.raises(AuditRefused, match="not kept") as refused:
        ledger.find(job.id)
    assert refused.value.code == "unknown_job"
    assert job.clip.held == 0
    assert job.results.closed


def test_only_the_last_of_many_ended_jobs_are_kept() -> None:
    ledger = Ledger(kept=2)
    jobs = [ended(ledger, now) for now in (3.0, 1.0, 2.0)]
    waiting = new_job()
    ledger.add(waiting)
    ledger.expire(4.0)
    assert list(ledger.jobs.values()) == [jobs[0], jobs[2], waiting]


def test_counts_are_of_now_and_of_all_that_ended() -> None:
    ledger = Ledger(retention_s=1)
    ended(ledger, 0.0)
    ended(ledger, 0.0, JobState.FAILED)
    ledger.add(new_job())
    ledger.expire(50.0)
    assert ledger.counts() == {"waiting": 1, "running": 0, "paused": 0, "done": 0, "failed": 1, "cancelled": 1}


def test_clearing_forgets_all() -> None:
    ledger = Ledger()
    jobs = [ended(ledger, 1.0), new_job()]
    ledger.add(jobs[1])
    ledger.clear()
    assert not ledger.jobs
    assert [job.clip.held for job in jobs] == [0, 0]


# -- results ---------------------------------------------------------------------------------------------------------


async def test_results_are_read_as_they_were_kept_in_memory_and_beyond() -> None:
    spool = Spool(1 << 20, in_memory=100)
    kept = [bytes([number]) * (number * 7) for number in range(30)]
    for number, data in enumerate(kept):
        await spool.append(data)
        assert await spool.read(number, 1) == [data]
    assert await spool.read(0, 1 << 20) == kept
    assert await spool.read(3, 100) == kept[3:6]
    assert spool.size == sum(map(len, kept))
    with pytest.raises(IndexError):
        await spool.read(30, 100)
    spool.close()
    for number in (0, 29):
        with pytest.raises(IndexError):
            await spool.read(number, 1)
    spool.close()


async def test_a_small_result_after_the_memory_was_full_stays_in_order() -> None:
    spool = Spool(1 << 20, in_memory=10)
    for data in (b"12345678", b"abcdefgh", b"x"):
        await spool.append(data)
    assert await spool.read(0, 100) == [b"12345678", b"abcdefgh", b"x"]
    spool.close()


async def test_results_have_a_bound() -> None:
    spool = Spool(100)
    await spool.append(bytes(100))
    with pytest.raises(SpoolFull) as full:
        await spool.append(b"x")
    assert full.value.code == "results_too_large"
    assert len(spool) == 1
    spool.close()


async def test_a_full_disk_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    spool, upload = Spool(1000, in_memory=0), Upload(1000)
    monkeypatch.setattr("os.pwrite", no_space)
    with pytest.raises(SpoolFull, match="No space left") as full:
        await spool.append(b"x")
    assert full.value.code == "no_space"
    await upload.append(b"x")
    with pytest.raises(UploadFailed, match="No space left") as failed:
        await upload.flush()
    assert failed.value.code == "no_space"
    upload.release()
    spool.close()


async def test_a_disk_that_makes_its_writers_wait_stops_nobody_else_and_keeps_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pwrite, blocked, written = os.pwrite, threading.Event(), []

    def slow(fd: int, data: memoryview, at: int) -> int:
        blocked.wait(20)
        written.append(pwrite(fd, data, at))
        return written[-1]

    monkeypatch.setattr("os.pwrite", slow)
    before = descriptors()
    spool = Spool(1000, in_memory=0)
    writing = asyncio.create_task(spool.append(b"1234"))
    await until(lambda: descriptors() == before + 1)
    writing.cancel()
    spool.close()  # its job was cancelled meanwhile
    assert descriptors() == before + 1  # nobody else may get its number while it is written to
    blocked.set()
    await until(lambda: descriptors() == before)
    assert written == [4]


# -- clips -----------------------------------------------------------------------------------------------------------


async def test_a_clip_is_kept_whole_and_has_no_name(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    upload = Upload(10 << 20)
    for _ in range(5):
        await upload.append(b"0123456789" * 70_000)
    await upload.flush()
    assert upload.size == 3_500_000
    assert os.pread(upload.fd, 10_000_000, 0) == b"0123456789" * 350_000
    assert not list(tmp_path.iterdir())
    upload.release()


async def test_a_clip_that_grows_too_large_is_refused() -> None:
    upload = Upload(1000)
    await upload.append(bytes(1000))
    with pytest.raises(UploadFailed, match="1000 bytes") as refused:
        await upload.append(b"x")
    assert refused.value.code == "too_large"
    upload.release()


async def test_a_clip_is_closed_by_the_last_who_holds_it() -> None:
    upload = Upload(1000)
    await upload.append(b"x")
    await upload.flush()
    upload.hold()
    upload.release()
    assert upload.fd > 0
    upload.release()
    with pytest.raises(FileClosed):
        assert upload.fd
    await asyncio.sleep(0)
