"""Who hangs, and who is merely busy."""

import os
import subprocess
import sys

from framelane.preprocess.health import Heartbeat, waited_for_cpu


def never_waited() -> float:
    return 0.0


def test_a_process_that_turns_its_loop_never_hangs() -> None:
    heartbeat = Heartbeat(1.5, 0.0, never_waited)
    assert not any(heartbeat.hangs(loops, loops * 1.4) for loops in range(1000))


def test_a_process_that_does_not_turn_hangs_after_its_limit_and_not_before() -> None:
    heartbeat = Heartbeat(1.5, 0.0, never_waited)
    assert not heartbeat.hangs(7, 10.0)
    assert not heartbeat.hangs(7, 11.4)
    assert heartbeat.hangs(7, 11.6)


def test_silence_counts_from_the_last_turn_that_was_seen() -> None:
    heartbeat = Heartbeat(1.5, 0.0, never_waited)
    assert heartbeat.silent(1, 5.0) == 0.0
    assert heartbeat.silent(1, 5.7) == 5.7 - 5.0
    assert heartbeat.silent(2, 5.8) == 0.0


def test_time_without_a_core_does_not_count() -> None:
    """Half of the silence it would have run, had there been a core: it hangs at twice the limit."""
    now = 10.0
    heartbeat = Heartbeat(2.0, 0.0, lambda: now / 2)
    heartbeat.hangs(1, 10.0)
    seen = {}
    for step in range(1, 50):
        now = 10.0 + step / 10
        seen[step / 10] = heartbeat.hangs(1, now)
    first = min(after for after, hangs in seen.items() if hangs)
    assert 2.9 < first < 4.1


def test_a_core_that_comes_late_does_not_excuse_what_came_after() -> None:
    waited = 0.0
    heartbeat = Heartbeat(2.0, 0.0, lambda: waited)
    heartbeat.hangs(1, 10.0)
    heartbeat.hangs(1, 11.5)
    waited = 1.0
    assert not heartbeat.hangs(1, 12.5)
    assert heartbeat.hangs(1, 13.5)


def test_the_kernel_tells_how_long_a_process_waited_for_a_core() -> None:
    assert waited_for_cpu(os.getpid()) >= 0.0
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert waited_for_cpu(ended.pid) == 0.0
