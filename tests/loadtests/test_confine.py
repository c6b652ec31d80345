"""A replica's part of the machine: which cores, and how its memory is limited or why not."""

import os
import subprocess
import sys

import pytest

from framelane.loadtests.confine import MemoryGroup, NotConfined, core_sets, on_cores


@pytest.mark.parametrize(
    ("cores", "replicas", "sets"),
    [
        ((0, 1), 1, [(0, 1)]),
        ((0, 1), 2, [(0,), (1,)]),
        ((0, 1), 3, [(0,), (1,), (0,)]),
        ((4, 5, 6, 7, 8), 2, [(4, 5), (6, 7, 8)]),
    ],
)
def test_cores_are_shared_out_evenly(cores, replicas, sets):
    assert core_sets(cores, replicas) == sets


def test_what_is_started_on_cores_sees_only_these_and_we_get_ours_back():
    before = os.sched_getaffinity(0)
    one = min(before)
    with on_cores([one]):
        seen = subprocess.check_output([sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"], text=True)
    assert seen.strip() == str({one})
    assert os.sched_getaffinity(0) == before


def cgroups(tmp_path, own, *files):
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    return tmp_path, tmp_path / "own"


def test_memory_is_limited_below_our_own_group_of_version_one(tmp_path):
    (tmp_path / "memory/ours").mkdir(parents=True)
    group = MemoryGroup.make("new", 64 << 20, *cgroups(tmp_path, "4:cpu:/\n3:memory:/ours\n0::/\n"))
    group.take(123)
    assert (tmp_path / "memory/ours/new/memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "memory/ours/new/cgroup.procs").read_text() == "123"


def test_memory_is_limited_in_version_two_where_the_controller_is_handed_down(tmp_path):
    root, own = cgroups(tmp_path, "0::/host/path\n", ("cgroup.subtree_control", "cpu memory\n"))
    MemoryGroup.make("new", 1 << 30, root, own)
    assert (tmp_path / "new/memory.max").read_text() == str(1 << 30)


def test_where_it_is_not_handed_down_the_reason_is_said(tmp_path):
    with pytest.raises(NotConfined, match="hands down no memory controller"):
        MemoryGroup.make("new", 1 << 30, *cgroups(tmp_path, "0::/\n", ("cgroup.subtree_control", "cpu\n")))


def test_group_that_cannot_be_made_says_why(tmp_path):
    (tmp_path / "new").write_text("in the way")
    root, own = cgroups(tmp_path, "0::/\n", ("cgroup.subtree_control", "memory\n"))
    with pytest.raises(NotConfined, match="File exists"):
        MemoryGroup.make("new", 1 << 30, root, own)
