"""Processes that die or hang under load: slots, workers, the gateway, the whole tree."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable

from framelane.loadtests.clips import moving_face
from framelane.loadtests.figures import Figure

from .lab import Lab, Target, sharpness_options, until
from .load import SUPERSEDED, UNANSWERED, Load
from .pictures import is_right, told_apart
from .report import Report, at_most

_BEFORE_S = 3.0
_AFTER_S = 4.0
_KILLS = 5
_SLOTS = ("--active-slots", "2", "--standby-slots", "1", "--workers", "2")


async def slot_killed(lab: Lab) -> Report:
    """SIGKILL of an active slot on a simulated device: a standby takes over, and no frame is lost."""
    return await _slot_killed(lab, "slot-kill", ("--device", "sim:8", *_SLOTS), 0.95, fps=8.0)


async def slot_killed_real(lab: Lab) -> Report:
    """The same with real models on the CPU."""
    return await _slot_killed(lab, "slot-kill-real", ("--device", "cpu", *_SLOTS), 0.85, fps=4.0)


async def _slot_killed(lab: Lab, name: str, options: tuple[str, ...], goodput: float, fps: float) -> Report:
    pictures = list(moving_face(frames=16).frames)
    promotions, shares, lost, recoveries = [], [], Counter[str](), []
    async with lab.serving(*options) as target, Load(target.port, pictures, clients=12, fps=fps) as load:
        for _ in range(1 if lab.quick else _KILLS):
            await until(lambda: target.pids_of("slots", "standby"), "there is a standby", 60)
            await asyncio.sleep(_BEFORE_S)
            (victim, *_) = await asyncio.to_thread(target.pids_of, "slots", "active")
            fault = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            promotions.append(1000 * await until(_promoted(target, victim), "a standby is promoted"))
            await asyncio.sleep(_AFTER_S)
            before = load.goodput(fault - _BEFORE_S + 0.5, fault)
            shares.append(load.goodput(fault, fault + 0.5) / before)
            lost += load.lost(fault - 1, fault + _AFTER_S - 1)
            recoveries.append(load.recovered(fault, fault + _AFTER_S))
        await load.stop()
    return Report(
        fault=name,
        lost=lost,
        recover_s=max(recoveries),
        connections=load.lost_connections,
        figures=(
            at_most("frames lost", lost.total() - lost[SUPERSEDED], 0),
            Figure(name="promotion, as polls of /v1/status see it", unit="ms", rounds=tuple(promotions), bar=20),
            Figure(name="goodput of the next 0.5 s", unit="×", rounds=tuple(shares), bar=goodput, at_most=False),
        ),
    )


def _promoted(target: Target, victim: int) -> Callable[[], bool]:
    return lambda: _actives_without(target, victim) == 2


async def slot_hangs(lab: Lab) -> Report:
    """SIGSTOP of an active slot: it is found, put down and replaced; SIGCONT later finds nobody; no answer mixes."""
    options = (*sharpness_options(), "--device", "cpu", *_SLOTS, "--deadline-ms", "5000")
    pictures = told_apart(12)
    async with (
        lab.serving(*options) as target,
        Load(target.port, pictures, clients=12, fps=8.0, right=is_right) as load,
    ):
        await asyncio.sleep(_BEFORE_S)
        (victim, *_) = await asyncio.to_thread(target.pids_of, "slots", "active")
        fault = time.monotonic()
        os.kill(victim, signal.SIGSTOP)
        found = await until(lambda: _actives_without(target, victim) == 2, "the hung slot is replaced")
        _signal(victim, signal.SIGCONT)
        await asyncio.sleep(_AFTER_S)
        await load.stop()
        lost = load.lost(fault - 1, fault + _AFTER_S)
        return Report(
            fault="slot-hang",
            lost=lost,
            recover_s=load.recovered(fault, fault + _AFTER_S),
            connections=load.lost_connections,
            figures=(
                at_most("found, and another one promoted", found, 2.0 + 0.5, "s"),
                at_most("frames lost", lost.total() - lost[SUPERSEDED], 0),
                at_most("results of others", load.wrong, 0),
                at_most("hung processes left", sum(pid == victim for pid in target.living()), 0),
            ),
            note="found within 2 s; the bar leaves 0.5 s for the poll",
        )


async def worker_killed(lab: Lab) -> Report:
    """SIGKILL of a worker every 5 s: the frames that it held fail at once, and a parked one takes its place."""
    kills, pause = (3, 3.0) if lab.quick else (12, 5.0)
    options = (*sharpness_options(), "--device", "sim:8", *_SLOTS)
    pictures = told_apart(12)
    async with lab.serving(*options) as target, Load(target.port, pictures, clients=12, fps=8.0) as load:
        await asyncio.sleep(2 * _BEFORE_S + 1)
        calm = time.monotonic()
        times, strengths = [], []
        for _ in range(kills):
            (victim, *_) = await asyncio.to_thread(target.pids_of, "workers", "active")
            times.append(time.monotonic())
            os.kill(victim, signal.SIGKILL)
            strengths.append(await _full_strength(target, victim))
            await asyncio.sleep(pause)
        await load.stop()
        end = time.monotonic()
        late = [fate for fate in load.fates if fate.outcome == "failed" and not _soon_after(fate.known, times)]
        lost = load.lost(calm, end - 1)
        quiet, busy = load.percentile(0.99, calm - 2 * _BEFORE_S, calm), load.percentile(0.99, calm, end)
        return Report(
            fault="worker-kill",
            lost=lost,
            recover_s=max(strengths),
            connections=load.lost_connections,
            figures=(
                at_most("frames lost per kill", (lost.total() - lost[SUPERSEDED]) / kills, 3),
                at_most("told later than 100 ms after the kill", len(late), 0),
                at_most("full strength again", max(strengths), 0.5, "s"),
                at_most("p99 of the others", busy / quiet, 2.0, "×"),
                at_most("frames that nobody answered", lost[UNANSWERED], 0),
            ),
        )


async def replica_killed(lab: Lab) -> Report:
    """SIGKILL of the whole tree and of the gateway alone, again and again: nothing stays, and each start is good."""
    tree, gateway = (3, 2) if lab.quick else (50, 20)
    left: Counter[str] = Counter()
    slowest = 0.0
    for number in range(tree + gateway):
        target = await asyncio.to_thread(Target, (*sharpness_options(), "--device", "sim:8", *_SLOTS), lab.folder)
        try:
            async with Load(target.port, told_apart(4), clients=4, fps=20.0):
                await asyncio.sleep(0.5)
                for pid in target.living() if number < tree else [target.pid]:
                    _signal(pid, signal.SIGKILL)
                killed = time.monotonic()
            left.update(await asyncio.to_thread(target.leftovers))
            slowest = max(slowest, time.monotonic() - killed)
        finally:
            await asyncio.to_thread(target.stop)
    return Report(
        fault="replica-kill",
        leftovers=tuple(left),
        figures=(at_most("things left behind", left.total(), 0),),
        note=f"{tree} × the tree, {gateway} × the gateway alone; all gone at most {slowest:.1f} s later",
    )


async def _full_strength(target: Target, victim: int) -> float:
    return await until(lambda: _workers_without(target, victim) == 2, "two workers serve again")


def _soon_after(moment: float, times: list[float]) -> bool:
    return any(0 <= moment - kill <= 0.1 for kill in times)


def _actives_without(target: Target, victim: int) -> int:
    return sum(pid != victim for pid in target.pids_of("slots", "active"))


def _workers_without(target: Target, victim: int) -> int:
    return sum(pid != victim for pid in target.pids_of("workers", "active"))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
