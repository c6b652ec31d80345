"""Going before the other programs of a machine, where that is allowed.

A frame must be sent when it is due, however busy the cores are: a generator asks for the round-robin scheduler of
``sched(7)``. It needs little time, so nobody misses it. A server on a shared machine may be given more weight than the
programs that have nothing to do with the measurement. Linux shares the cores between sessions first ("autogroups"), and
``nice`` counts only within one; each process here leads a session of its own, so it is the session's value that is set.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_NICE = -10


def run_on_time() -> None:
    """This process is run as soon as it has something to do. Without the right: nothing changes."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def take_precedence(leader: int) -> None:
    """Give weight to the session that a process leads, and to what it will start. Without the right: nothing."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, leader, _NICE)
    with contextlib.suppress(OSError):
        Path(f"/proc/{leader}/autogroup").write_text(str(_NICE), encoding="ascii")
