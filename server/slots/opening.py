"""How a slot begins: its configuration, and its models opened, warmed and measured on its device."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from framelane.models.cuda import read_driver
from framelane.models.devices import Device
from framelane.models.providers import Tuning
from framelane.models.registry import ModelSpec
from framelane.models.session import Session, open_session
from framelane.preprocess.memory import ModelCells
from framelane.preprocess.trace import Trace

from .cards import cpus_near
from .overlap import WORTHWHILE, gain

log = logging.getLogger("framelane.slot")

_LOW_PRIORITY = 15


class SlotConfig(msgspec.Struct, frozen=True):
    """What the supervisor tells a slot at its birth. ``quietly``: start at low priority, others are serving."""

    slot: int
    device: Device
    models: list[ModelSpec]
    cells: list[ModelCells]
    permits: int = 0
    quietly: bool = False
    tuning: Tuning = Tuning()
    trace: str = ""
    log_level: str = "INFO"


def open_sessions(config: SlotConfig, trace: Trace | None = None) -> tuple[list[Session], dict[str, Any]]:
    """Open and warm up every model; the report names the device that is truly used, and what was measured.

    While others are serving this is done at low priority, on a thread of its own: a process may not raise its own
    priority again later.

    Raises:
        ModelError, DeviceError: see ``open_session``.
    """
    if not config.quietly:
        return _open(config, trace)
    with ThreadPoolExecutor(1, initializer=lower_priority, initargs=(_LOW_PRIORITY,)) as executor:
        return executor.submit(_open, config, trace).result()


def _open(config: SlotConfig, trace: Trace | None) -> tuple[list[Session], dict[str, Any]]:
    sessions: list[Session] = []
    report: dict[str, Any] = {"pid": os.getpid(), "device": config.device.name, "models": {}, "overlap": False}
    if config.device.is_card:
        report |= _stay_near(config.device)
    for spec in config.models:
        session = open_session(spec, config.device, config.tuning)
        if trace is not None:
            session.watch_copies(lambda start, end, row: trace.span("copy", start, end, 0, row))
        timings = session.warm_up()
        sessions.append(session)
        report["device"] = session.device
        report["models"][spec.name] = {
            "best_batch": session.best_batch,
            "run_ms": {str(batch): round(milliseconds, 3) for batch, milliseconds in timings.items()},
            **(facts := session.facts()),
        }
        if session.overlaps:
            report["models"][spec.name]["overlap_gain"] = faster = round(gain(session, timings[session.best_batch]), 3)
            report["overlap"] |= faster >= WORTHWHILE
        if facts.get("on_cpu"):
            log.warning("model %s: not all of it runs on the card; on the CPU are %s", spec.name, facts["on_cpu"])
    return sessions, report


def _stay_near(device: Device) -> dict[str, Any]:
    """Keep this process on the cores of its card's side of the machine; what the driver calls the card."""
    cards = read_driver().cards
    if device.index >= len(cards):
        return {}  # opening the first model says what is wrong
    card = cards[device.index]
    with contextlib.suppress(OSError):
        local = Path(f"/sys/bus/pci/devices/{card.bus}/local_cpulist").read_text()
        os.sched_setaffinity(0, cpus_near(local, os.sched_getaffinity(0)))
    return {"card": card.name, "bus": card.bus}


def take_what_is_left() -> None:
    """This thread runs where nobody else does: whoever serves clients is woken on its core at once."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def lower_priority(nice: int) -> None:
    """Of this thread alone."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
