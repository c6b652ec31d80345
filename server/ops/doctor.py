"""``framelane doctor``: what is wrong with this machine for serving, and how to mend it.

Each check is a function from facts (``doctor_facts.py`` gathers them) to findings, without I/O, so that machines that
nobody has at hand are tested like any other. To add one, add it to ``CHECKS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from framelane.models.devices import Device
from framelane.models.gpu import GpuFacts, explain
from framelane.models.providers import MPS_CLIENTS

from .machine import Machine

_MIN_FILES = 4096
_BACKLOG = 2048
_MIN_MEMORY = 1 << 30
_MUCH_THROTTLING = 0.05
_MUCH_MPS = 0.8
_CLOCK_STEP_NS = 1_000_000
_FAST_CLOCKS = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}
_TASKS_PER_PROCESS = 8

Level = Literal["fine", "note", "wrong"]


class Finding(msgspec.Struct, frozen=True):
    """One line of the report: ``wrong`` makes the exit status 1, ``note`` is worth a look."""

    level: Level
    what: str
    found: str
    cure: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out. Empty strings stand for "no problem", None for "could not be told" or "not asked for".

    Attributes:
        device: that is asked for.
        plan_problem: why ``serve`` would refuse these settings.
        models_problem: why a model's folder cannot be used; ``models`` says which there are.
        port_problem: why the port cannot be listened on.
        files: soft and hard limit of open descriptors.
        tasks: limit of processes and threads in this container.
        somaxconn: the kernel's limit of connections that wait to be accepted.
        clock: the kernel's clock source; ``clock_step_ns``: smallest step of the monotonic clock that was seen.
        synchronised: whether the wall clock follows a time server.
        throttled: share of periods in which the container's CPU limit stopped it.
        oom_kills: processes of this container that were killed for memory.
        card_slots: processes that ``serve`` would start on one card.
        mps_clients: processes that the MPS server of this machine serves, on all cards.
        nvml_problem: why the cards cannot be watched.
        redis_problem: why the configured Redis cannot be used.
    """

    machine: Machine
    device: Device
    processes: int
    plan_problem: str = ""
    gpu: GpuFacts | None = None
    models: tuple[str, ...] = ()
    models_problem: str = ""
    port_problem: str = ""
    files: tuple[int, int] = (1 << 20, 1 << 20)
    tasks: int | None = None
    somaxconn: int | None = None
    clock: str = ""
    clock_step_ns: int | None = None
    synchronised: bool | None = None
    throttled: float | None = None
    oom_kills: int = 0
    card_slots: int = 1
    mps_clients: int | None = None
    nvml_problem: str = ""
    redis: str = ""
    redis_problem: str = ""


def examine(facts: Facts) -> list[Finding]:
    """All findings, in the order of ``CHECKS``."""
    return [finding for check in CHECKS for finding in check(facts)]


def _settings(facts: Facts) -> Iterator[Finding]:
    if facts.plan_problem:
        yield Finding("wrong", "settings", facts.plan_problem, "change the settings that it names")
    else:
        yield Finding("fine", "settings", f"`serve` would start {facts.processes} processes")


def _onnxruntime(facts: Facts) -> Iterator[Finding]:
    gpu = facts.gpu
    if gpu is None:
        return
    shown = ", ".join(f"{name} {version}" for name, version in gpu.wheels.items())
    if not gpu.wheels:
        yield Finding("wrong", "ONNX Runtime", "not installed", "pip install 'framelane[cpu]' or 'framelane[gpu]'")
    elif len(gpu.wheels) > 1:
        yield Finding("wrong", "ONNX Runtime", f"two builds overwrite each other: {shown}", explain(gpu, "cuda", 0))
    else:
        yield Finding(
            "fine", "ONNX Runtime", f"{shown}, for the CPU{''.join(f' and {kind}' for kind in gpu.providers)}"
        )


def _card(facts: Facts) -> Iterator[Finding]:
    gpu, device = facts.gpu, facts.device
    if gpu is None or device.kind not in ("auto", "cuda", "tensorrt"):
        return
    kind = "cuda" if device.kind == "auto" else device.kind
    for index in device.cards or (device.index,):
        why = explain(gpu, kind, index)
        if not why:
            card = gpu.driver.cards[index]
            yield Finding(
                "fine", f"card {index}", f"{card.name}, {card.memory / 2**30:.1f} GiB, compute {card.capability}"
            )
        elif device.kind == "auto" and not gpu.driver.cards:
            wanted = bool(gpu.providers)  # a build that costs 1.5 GB of libraries is not installed by chance
            yield Finding("note" if wanted else "fine", "card", "none; models run on the CPU", why if wanted else "")
        elif device.kind == "auto":
            yield Finding("wrong", "card", "there is one, but it cannot be used, and models would run on the CPU", why)
        else:
            yield Finding("wrong", f"card {index}", f"{device.name} cannot be used", why)
    if not gpu.driver.problem:
        release = f"{gpu.driver.release}, " if gpu.driver.release else ""
        yield Finding("fine", "driver", f"{release}runs CUDA up to {gpu.driver.version[0]}.{gpu.driver.version[1]}")


def _mps(facts: Facts) -> Iterator[Finding]:
    clients = facts.mps_clients
    if clients is None:
        return
    most = MPS_CLIENTS * max(1, len(facts.gpu.driver.cards) if facts.gpu else 1)  # which card a client has is not told
    then = clients + facts.card_slots
    level: Level = "wrong" if then > most else "note" if then > _MUCH_MPS * most else "fine"
    cure = "end other processes, or lower active_slots, standby_slots or gpu_density" if level != "fine" else ""
    yield Finding(level, "MPS", f"{clients} of {most} clients; `serve` would add {facts.card_slots} on a card", cure)


def _nvml(facts: Facts) -> Iterator[Finding]:
    if facts.gpu is not None and facts.gpu.driver.cards and facts.nvml_problem:
        cure = "pip install nvidia-ml-py; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield Finding("note", "GPU metrics", facts.nvml_problem, cure)


def _cores(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    found = f"{machine.cores:g} ({machine.cores_from})"
    if machine.cores < 1:
        yield Finding(
            "wrong", "cores", found, "give the container at least one whole core: cpu.max, --cpus, limits.cpu"
        )
    else:
        yield Finding("fine", "cores", found)
    if facts.throttled is not None and facts.throttled > _MUCH_THROTTLING:
        text = f"the limit stopped this container in {facts.throttled:.0%} of its periods"
        yield Finding("note", "cores", text, "raise the CPU limit, or lower --workers: a stopped period is 100 ms late")


def _memory(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    found = f"{machine.memory / 2**30:.1f} GiB ({machine.memory_from})"
    if machine.memory < _MIN_MEMORY:
        yield Finding(
            "wrong", "memory", found, "a replica with one worker and one slot takes about half a GiB; give it 1"
        )
    else:
        yield Finding("fine", "memory", found)
    if facts.oom_kills:
        text = f"{facts.oom_kills} process(es) of this container were killed for memory"
        yield Finding("note", "memory", text, "raise memory.max, or lower workers, credits or mailbox_bytes")


def _files(facts: Facts) -> Iterator[Finding]:
    soft, hard = facts.files
    if soft < _MIN_FILES:
        cure = f"ulimit -n {min(hard, 65536)}, LimitNOFILE= in the unit, or --ulimit nofile=65536 for the container"
        yield Finding("wrong", "open files", f"at most {soft}; each client is one", cure)
    else:
        yield Finding("fine", "open files", f"up to {soft}")


def _tasks(facts: Facts) -> Iterator[Finding]:
    needed = facts.processes * _TASKS_PER_PROCESS
    if facts.tasks is not None and facts.tasks < needed:
        cure = f"raise pids.max (--pids-limit) to {2 ** math.ceil(math.log2(needed))}"
        yield Finding(
            "wrong", "processes", f"at most {facts.tasks} processes and threads; {needed} may be needed", cure
        )


def _backlog(facts: Facts) -> Iterator[Finding]:
    if facts.somaxconn is not None and facts.somaxconn < _BACKLOG:
        text = f"only {facts.somaxconn} connections may wait to be accepted"
        cure = f"sysctl net.core.somaxconn={_BACKLOG}, so that a crowd that reconnects at once is not refused"
        yield Finding("note", "connections", text, cure)


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.clock and facts.clock not in _FAST_CLOCKS:
        text = f"the kernel reads {facts.clock}, a system call of microseconds for every look"
        yield Finding("note", "clock", text, "boot with clocksource=tsc where the processor allows it")
    if facts.clock_step_ns is not None and facts.clock_step_ns > _CLOCK_STEP_NS:
        text = f"the monotonic clock moves in steps of {facts.clock_step_ns / 1e6:.1f} ms"
        yield Finding("wrong", "clock", text, "latencies cannot be measured here; use another clock source or host")
    if facts.synchronised is False:
        text = "the wall clock follows no time server; tokens and logs go by it, latencies and deadlines do not"
        yield Finding("note", "clock", text, "run chrony or systemd-timesyncd on the host")
    elif facts.synchronised:
        yield Finding("fine", "clock", f"synchronised{', ' + facts.clock if facts.clock else ''}")


def _models(facts: Facts) -> Iterator[Finding]:
    if facts.models_problem:
        yield Finding("wrong", "models", facts.models_problem, "`framelane models` lists what there is")
    else:
        yield Finding("fine", "models", f"{', '.join(facts.models)}: files are whole")


def _port(facts: Facts) -> Iterator[Finding]:
    if facts.port_problem:
        yield Finding("wrong", "port", facts.port_problem, "choose another one with --port, or end what listens there")
    else:
        yield Finding("fine", "port", "free")


def _redis(facts: Facts) -> Iterator[Finding]:
    if not facts.redis:
        return
    if facts.redis_problem:
        yield Finding("wrong", "Redis", facts.redis_problem, f"check that {facts.redis} can be reached from here")
    else:
        yield Finding("fine", "Redis", f"{facts.redis} answers")


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _settings,
    _onnxruntime,
    _card,
    _mps,
    _nvml,
    _cores,
    _memory,
    _files,
    _tasks,
    _backlog,
    _clock,
    _models,
    _port,
    _redis,
)
