"""How processes are born, prove themselves, fail, and are known to have ended."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from replica import HERE, alive, descriptors, until

from framelane.preprocess.children import START_FAILED, Child, StartFailed, ask, watch
from framelane.preprocess.memory import Memory
from framelane.preprocess.messages import Kind, Message, pack
from framelane.preprocess.pool import describe_pipeline
from framelane.preprocess.progress import PAGE_BYTES

WORKER = "framelane.preprocess.worker"


@pytest.fixture(autouse=True)
def test_modules_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)


@pytest.fixture
def pages() -> Memory:
    return Memory.create("pages", PAGE_BYTES)


async def test_a_pipeline_is_described_without_importing_it_here(pages: Memory) -> None:
    described = await describe_pipeline("replica_pipelines:Commands", {"greeting": "hi"}, HERE, pages)
    assert described == {
        "models": [{"name": "double", "parallel": 2}, {"name": "picky", "parallel": 1}],
        "stateful": True,
    }
    assert (await describe_pipeline("replica_pipelines:Numbers", {}, HERE, pages))["stateful"] is False


@pytest.mark.parametrize(
    ("pipeline", "options", "says"),
    [
        ("fase_mesh", {}, ["unknown pipeline 'fase_mesh'", "face_mesh, echo, reference, or module:Class"]),
        ("no_such_module:Mine", {}, ["'no_such_module:Mine' cannot be imported", "No module named 'no_such_module'"]),
        ("replica_pipelines:Mine", {}, ["'replica_pipelines:Mine' cannot be imported", "Mine"]),
        ("replica_pipelines:NoPipeline", {}, ["'replica_pipelines:NoPipeline' is not a subclass of", "Pipeline"]),
        ("replica_pipelines:NotAsync", {}, ["'replica_pipelines:NotAsync'", "must be `async def run"]),
        ("replica_pipelines:Commands", {"greting": "x"}, ["option of pipeline", "greting"]),
        ("face_mesh", {"max_faces": "many"}, ["option of pipeline 'face_mesh'", "max_faces"]),
    ],
)
async def test_a_pipeline_that_cannot_start_says_why(
    pages: Memory, pipeline: str, options: dict[str, str], says: list[str]
) -> None:
    before = descriptors()
    with pytest.raises(StartFailed) as caught:
        await describe_pipeline(pipeline, options, HERE, pages)
    assert all(part in caught.value.message for part in says), caught.value.message
    assert descriptors() == before


async def test_asking_can_be_given_up_and_leaves_nothing(pages: Memory) -> None:
    before = descriptors()
    child = Child(WORKER, "asked", {"describe": "echo", "options": {}}, pages, 0)
    asking = asyncio.create_task(ask(child))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: not alive(child.pid))
    await until(lambda: descriptors() == before)


# -- watching --------------------------------------------------------------------------------------------------------


def wait_for_the_end(child: Child) -> None:
    """Without letting the event loop turn."""
    assert select.select([child.pidfd], [], [], 20)[0]


def inherited(pid: int) -> set[str]:
    """What a process has open beside its standard streams."""
    paths = [path for path in Path(f"/proc/{pid}/fd").iterdir() if int(path.name) > 2]
    return {os.readlink(path).split(" ")[0].split(":[")[0] for path in paths}


class Watched:
    """A child and what was heard of it."""

    def __init__(self, module: str, pages: Memory, config: dict[str, object] | None = None) -> None:
        self.heard: list[Message] = []
        self.ended: list[int] = []
        self.child = Child(module, "child", config or {}, pages, 0)
        watch(self.child, self.heard.append, self.ended.append)


async def test_everything_that_a_child_wrote_is_heard_before_its_end(pages: Memory) -> None:
    """It writes a hundred messages and ends; the loop looks only when it is dead."""
    watched = Watched("child_that_talks", pages, {"messages": 100})
    wait_for_the_end(watched.child)
    await until(lambda: watched.ended)
    assert [message.request for message in watched.heard] == list(range(100))
    assert watched.ended == [0]
    watched.child.close()


async def test_a_child_that_closes_its_channel_and_lives_on_is_killed(pages: Memory) -> None:
    watched = Watched("child_that_talks", pages, {"messages": 1, "then": "close"})
    await until(lambda: watched.ended)
    assert watched.ended == [-signal.SIGKILL]
    watched.child.close()


async def test_the_end_of_a_child_is_seen_while_a_process_that_it_forked_holds_its_channel(pages: Memory) -> None:
    watched = Watched("child_that_talks", pages, {"messages": 1, "then": "fork"})
    await until(lambda: len(watched.heard) == 2)
    forked = watched.heard[1].request
    try:
        watched.child.kill()
        await until(lambda: watched.ended)
        assert watched.ended == [-signal.SIGKILL]
    finally:
        os.kill(forked, signal.SIGKILL)
    watched.child.close()


async def test_a_child_that_cannot_start_says_why_and_has_its_own_status(pages: Memory) -> None:
    watched = Watched(WORKER, pages, {"describe": "nothing:Here", "options": {}})
    await until(lambda: watched.ended)
    assert watched.ended == [START_FAILED]
    assert "nothing" in watched.child.failure().message
    watched.child.close()


async def test_a_child_that_was_told_nothing_useful_fails_with_the_key_that_is_missing(pages: Memory) -> None:
    watched = Watched(WORKER, pages, {"worker": 1})
    await until(lambda: watched.ended)
    assert watched.ended == [START_FAILED]
    assert "ValidationError" in watched.child.failure().message
    watched.child.close()


async def test_a_child_inherits_its_channel_and_two_memories_and_nothing_else(pages: Memory) -> None:
    secret = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(secret, True)
    watched = Watched("child_that_talks", pages, {"messages": 1, "then": "wait"})
    await until(lambda: watched.heard)
    assert inherited(watched.child.pid) == {"/memfd:framelane-child", "/memfd:framelane-pages", "socket"}
    os.close(secret)
    watched.child.channel.send(pack(Kind.STOP))
    await until(lambda: watched.ended)
    assert watched.ended == [0]
    watched.child.close()


async def test_a_child_leaves_no_descriptor_behind(pages: Memory) -> None:
    before = descriptors()
    watched = Watched("child_that_talks", pages, {"messages": 3})
    await until(lambda: watched.ended)
    watched.child.close()
    assert descriptors() == before


# -- the gateway's own death -----------------------------------------------------------------------------------------

GATEWAY = """
import sys, time
from framelane.preprocess.children import Child
from framelane.preprocess.memory import Memory
pages = Memory.create("pages", 64)
child = Child("child_that_talks", "child", {"messages": 1, "then": sys.argv[1]}, pages, 0)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("then", ["wait", "spin"])
def test_a_child_does_not_outlive_its_gateway(then: str) -> None:
    with subprocess.Popen([sys.executable, "-c", GATEWAY, then], stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        child = int(gateway.stdout.readline())
        pidfd = os.pidfd_open(child)
        gateway.kill()
        gateway.wait()
    started = time.monotonic()
    with contextlib.closing(_Poll(pidfd)) as poll:
        assert poll.ends_within(2.0 - (time.monotonic() - started))


class _Poll:
    def __init__(self, pidfd: int) -> None:
        self.pidfd = pidfd

    def ends_within(self, seconds: float) -> bool:
        return bool(select.select([self.pidfd], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self.pidfd)
