"""Sample pictures before clients come: whether it works, how long one takes, and how many go through."""

import asyncio
import math
from typing import Any

import pytest
from fake_pool import FakePool

from framelane.preprocess.children import StartFailed
from framelane.preprocess.messages import Fate
from framelane.preprocess.pool import Done, Job
from framelane.server.proof import Proof


class OneServer(FakePool):
    """Works on one frame after the other, 5 ms each."""

    def __init__(self, credits: int, fate: Fate = Fate.OK) -> None:
        super().__init__(credits)
        self.fate = fate
        self.free_at = 0.0

    def submit(self, job: Any) -> int:
        request, loop = super().submit(job), asyncio.get_running_loop()
        self.free_at = max(self.free_at, loop.time()) + 0.005
        loop.call_at(self.free_at, self.finish, request, self.fate)
        return request


async def test_time_alone_and_rate_are_measured() -> None:
    pool = OneServer(credits=6)
    proven = await Proof(pool, b"picture").run()  # type: ignore[arg-type]
    assert 0.004 < proven.alone_s < 0.05
    assert 60 < proven.rate < 210
    assert not pool.jobs


async def test_pipeline_that_fails_on_the_picture_is_told() -> None:
    with pytest.raises(StartFailed, match="fails on the sample picture"):
        await Proof(OneServer(2, Fate.FAILED), b"picture").run()  # type: ignore[arg-type]


async def test_pipeline_that_does_not_want_the_picture_works_but_tells_no_rate() -> None:
    proven = await Proof(OneServer(2, Fate.INVALID), b"picture").run()  # type: ignore[arg-type]
    assert math.isinf(proven.rate)


async def test_frames_of_clients_are_not_its_business() -> None:
    pool, heard = OneServer(credits=3), []
    pool.on_done = heard.append
    proving = asyncio.create_task(Proof(pool, b"picture").run())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    job = Job(b"mine", b"", 0, 0, 0.0, 9e9, None)
    pool.submit(job)
    await proving
    assert [done.job for done in heard] == [job]
    assert pool.on_done == heard.append


async def test_rate_is_unknown_when_clients_have_every_credit() -> None:
    pool = OneServer(credits=1)
    proof = Proof(pool, b"picture")  # type: ignore[arg-type]
    taken: list[Done] = []
    pool.on_done = taken.append
    assert (await proof.run()).rate > 0
