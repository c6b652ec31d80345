"""Looks at the replica once a second, keeps the last seconds and a compact quarter of an hour, and tells what it saw.

A look reads counters that exist anyway: the accounts, the progress pages, and two kernel counters per process. Windows,
diagnosis and documents are made when somebody asks, at most once per look.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from framelane.preprocess.progress import ProgressPage
from framelane.preprocess.stages import NO_BATCH, NO_STAGE, WORKER_STAGES, Stage, Tally
from framelane.server.lanes.exchange import Exchange
from framelane.server.protocol import Drop, Refusal

from . import procfs
from .diagnosis import Diagnosis, Limit, diagnose
from .gil import Gil
from .gpu import Cards
from .lag import LoopLag
from .pressure import Facts
from .window import Reading, Sample, Window, between

LIVE_S = 5
DIAGNOSIS_S = 10
HISTORY_STEP_S = 5
HISTORY_ROWS = 180
_LOOK_S = 1.0
_PSS_S = 10.0

COLUMNS = ("at", "clients", "waiting", "received_per_s", "goodput_per_s", "delivery", "p50_ms", "p95_ms", "p99_ms",
           *(f"drop_{reason}_per_s" for reason in (*Drop, "slow_reader", "left")), "gateway_busy", "workers_busy",
           "slots_busy", "cores_busy", "gpu_busy", "loop_lag_p99_ms", "capacity_fps", "limit")  # fmt: skip


class Watched(NamedTuple):
    """One process of the replica as it is now, with the frames that it holds, and may hold.

    ``kind``: "gateway", "worker", "slot" or "audit" (of long jobs).
    """

    kind: str
    id: str
    pid: int
    state: str
    page: ProgressPage | None = None
    frames: int = 0
    credits: int = 0


class Watchable(Protocol):
    """What is watched; ``app.py`` gives it."""

    def processes(self) -> list[Watched]:
        """All processes that live now."""

    def facts(self) -> Facts:
        """What the diagnosis must know of the configuration, and of the device that is used."""

    def status(self) -> dict[str, Any]:
        """The body of /v1/status, without lanes and diagnosis."""

    def ready(self) -> list[str]:
        """Why frames cannot be served now."""


class Meters:
    """Processor time of each place in the replica, over all processes that had it, so that no sum ever falls."""

    def __init__(self) -> None:
        self._now: dict[str, tuple[int, float, float]] = {}
        self._before: dict[str, tuple[float, float]] = {}

    def read(self, place: str, pid: int) -> tuple[float, float]:
        """Seconds on cores, and of waiting for one."""
        last = self._now.get(place)
        cpu, wait = self._before.get(place, (0.0, 0.0))
        if last is not None and last[0] != pid:
            self._before[place] = cpu, wait = cpu + last[1], wait + last[2]
        used, waited = procfs.cpu_seconds(pid), procfs.core_wait_seconds(pid)
        self._now[place] = (pid, used, waited)
        return cpu + used, wait + waited


class Watch:
    """The looks at one replica.

    Args:
        exchange: its lanes.
        replica: everything else of it.
        lag: of its event loop.
        cores: that it may use.
        gil: measures the interpreter's lock.
        clock: monotonic seconds.

    Attributes:
        on_look: called after each look.
        pss: bytes by pid, read every ten seconds in a thread.
        cards: where slots run on cards: what these do.
    """

    def __init__(
        self,
        exchange: Exchange,
        replica: Watchable,
        lag: LoopLag,
        cores: float,
        gil: Gil | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = exchange
        self._replica = replica
        self._lag = lag
        self._cores = cores
        self._gil = gil or Gil()
        self._gil_share: float | None = None
        self._clock = clock
        self._meters = Meters()
        self._places: dict[str, Watched] = {}
        self._proof: tuple[dict[Stage, Tally], Tally] = dict.fromkeys(Stage, NO_STAGE), NO_BATCH
        self._samples: deque[Sample] = deque(maxlen=DIAGNOSIS_S + 1)
        self._rows: deque[dict[str, Any]] = deque(maxlen=HISTORY_ROWS)
        self._row_from: Sample | None = None
        self._diagnosis: Diagnosis | None = None
        self._looked_at = self._weighed_at = float("-inf")
        self._weighing: asyncio.Future[dict[int, int]] | None = None
        self.pss: dict[int, int] = {}
        self.cards: Cards | None = None
        self.on_look: Callable[[dict[str, Any] | None], None] = lambda _row: None

    def begin(self) -> None:
        """Clients may come: what workers and slots have counted so far was the proof that they work."""
        self._notice(self._replica.processes())
        self._proof = stage_tallies(self._exchange, self._places.values()), batch_tally(self._places.values())

    # -- looking -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Look, if it is time. Call it often."""
        now = self._clock()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        self._gil_share = self._gil.read()
        self._samples.append(self.sample())
        self._diagnosis = None
        self._weigh(now)
        self.on_look(self._keep())

    def sample(self) -> Sample:
        """Everything, now."""
        exchange, accounts, watched = self._exchange, self._exchange.accounts, self._replica.processes()
        now = self._clock()
        self._notice(watched)
        places, (stages, batches) = self._places.values(), self._proof
        reception = exchange.reception
        return Sample(
            at=now,
            received=accounts.received,
            delivered=accounts.delivered,
            dropped=Counter(accounts.dropped),
            refused=accounts.refused.total(),
            left=accounts.left,
            shed=accounts.slow_reader,
            told=accounts.told,
            bytes_in=accounts.bytes_in,
            bytes_out=accounts.bytes_out,
            ages=tuple(accounts.ages),
            stages={stage: tally.since(stages[stage]) for stage, tally in stage_tallies(exchange, places).items()},
            batches=batch_tally(places).since(batches),
            lag=self._lag.counts(),
            processes=[self._read(process, now) for process in watched],
            machine_s=procfs.machine_seconds(),
            turned_away=accounts.turned_away[Refusal.FULL],
            clients=len(exchange.delivery.lanes),
            admitted=reception.admission.admitted,
            waiting=reception.room.present,
            senders=reception.senders,
            blocked=exchange.delivery.blocked,
            capacity_fps=exchange.capacity.rate,
            pace_ms=reception.interval_ms,
            held_back=reception.held_back,
            gil=self._gil_share,
            gpus=self.cards.record() if self.cards is not None else (),
        )

    def _notice(self, watched: Iterable[Watched]) -> None:
        """Remember every place: what was counted there stays, also while nobody has it."""
        self._places.update({process.id: process for process in watched})

    def _read(self, process: Watched, now: float) -> Reading:
        cpu, wait = self._meters.read(process.id, process.pid)
        if process.page is None:  # the event loop: what it does not compute or wait for a core, it sleeps
            return Reading(*process[:4], cpu + wait, cpu, wait, 0, process.frames)
        progress = process.page.read()
        return Reading(*process[:4], progress.busy_at(now), cpu, wait, progress.done, process.frames)

    def _weigh(self, now: float) -> None:
        """Have PSS read in a thread, now and then: the kernel walks all pages for it."""
        if self._weighing is not None and self._weighing.done():
            self.pss, self._weighing = self._weighing.result(), None
        if self._weighing is None and now - self._weighed_at >= _PSS_S:
            self._weighed_at = now
            pids = [process.pid for process in self._replica.processes()]
            self._weighing = asyncio.get_running_loop().run_in_executor(None, procfs.pss_bytes, pids)

    def _keep(self) -> dict[str, Any] | None:
        """A new row of the history, when it is complete."""
        last, begin = self._samples[-1], self._row_from
        if begin is None or last.at - begin.at >= HISTORY_STEP_S - _LOOK_S / 2:
            self._row_from = last
            if begin is not None:
                row = self._row(between(begin, last, self._cores))
                self._rows.append(row)
                return row
        return None

    def processes(self) -> list[Watched]:
        """All processes that live now."""
        return self._replica.processes()

    # -- telling -----------------------------------------------------------------------------------------------------

    def window(self, seconds: int) -> Window | None:
        """The last seconds, as far as they were seen; None before the second look."""
        samples = list(self._samples)[-seconds - 1 :]
        if len(samples) < 2:
            return None
        blocked = sum(sample.blocked for sample in samples) / len(samples)
        return between(samples[0], samples[-1], self._cores, blocked)

    def diagnosis(self) -> Diagnosis:
        """What limits the replica now."""
        if self._diagnosis is None:
            window, reasons = self.window(DIAGNOSIS_S), self._replica.ready()
            if window is None or reasons:
                self._diagnosis = _not_yet(reasons)
            else:
                self._diagnosis = diagnose(window, self._replica.facts())
        return self._diagnosis

    def document(self) -> dict[str, Any]:
        """The body of /v1/ops (``doors/ops.py`` says what is in it)."""
        status, reasons, window = self._replica.status(), self._replica.ready(), self.window(LIVE_S)
        exchange = self._exchange
        return {
            "at": round(time.time(), 3),
            "status": {
                **{key: status[key] for key in _STATUS if key in status},
                "ready": not reasons,
                "reasons": reasons,
                "draining": exchange.draining,
            },
            "diagnosis": self.diagnosis(),
            "live": live(window, exchange) if window else None,
            "processes": self._processes(window, status),
            "gpus": self.gpus,
        }

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """What the cards did at the last look; empty without ``cards``."""
        return list(self._samples[-1].gpus) if self._samples else []

    def history(self) -> dict[str, Any]:
        """The body of /v1/ops/history."""
        return {
            "step_s": HISTORY_STEP_S,
            "columns": {name: [row[name] for row in self._rows] for name in COLUMNS},
        }

    def _row(self, window: Window) -> dict[str, Any]:
        diagnosis = self.diagnosis()
        busy = diagnosis.evidence
        drops = {f"drop_{reason}_per_s": round(window.dropped_fps.get(reason, 0.0), 2) for reason in Drop}
        values = {
            "at": round(time.time(), 1),
            "clients": window.clients,
            "waiting": window.waiting,
            **_rates(window),
            **_percentiles(window),
            **drops,
            "drop_slow_reader_per_s": round(window.shed_fps, 2),
            "drop_left_per_s": round(window.left_fps, 2),
            "gateway_busy": busy.get("gateway", 0.0),
            "workers_busy": busy.get("workers", 0.0),
            "slots_busy": busy.get("slots", 0.0),
            "cores_busy": busy.get("cores", 0.0),
            "gpu_busy": busy.get("gpu"),
            "loop_lag_p99_ms": _ms(window.lag_s(0.99)),
            "capacity_fps": _finite(window.capacity_fps),
            "limit": diagnosis.limit,
        }
        return {name: values[name] for name in COLUMNS}

    def _processes(self, window: Window | None, status: Mapping[str, Any]) -> list[dict[str, Any]]:
        loads = {load.id: load for load in window.loads} if window else {}
        models = {slot["id"]: slot for slot in status.get("slots", ())}
        found = []
        for process in self._replica.processes():
            load, slot = loads.get(process.id), models.get(process.id, {})
            found.append(
                {
                    "kind": process.kind,
                    "id": process.id,
                    "pid": process.pid,
                    "state": process.state,
                    "busy": round(load.busy, 3) if load else 0.0,
                    "cpu": round(load.cpu, 3) if load else 0.0,
                    "core_wait": round(load.core_wait, 3) if load else 0.0,
                    "done_per_s": round(load.done_fps, 1) if load else 0.0,
                    "frames": process.frames,
                    "pss_bytes": self.pss.get(process.pid),
                    **({"device": slot["device"]} if "device" in slot else {}),
                }
            )
        return found


_STATUS = ("version", "pid", "uptime_s", "pipeline", "device", "restarts", "hangs", "promotions", "given_up")


def stage_tallies(exchange: Exchange, processes: Iterable[Watched]) -> dict[Stage, Tally]:
    """All stages of the frames of clients, over all processes."""
    accounts = exchange.accounts
    pages = [process.page.stages for process in processes if process.kind == "worker" and process.page is not None]
    return {
        Stage.QUEUE: Tally(tuple(accounts.queues), accounts.queue_s),
        **{stage: sum((page.stage(stage) for page in pages), NO_STAGE) for stage in WORKER_STAGES},
        Stage.DELIVER: Tally(tuple(accounts.handovers), accounts.handover_s),
    }


def batch_tally(processes: Iterable[Watched]) -> Tally:
    """The runs of all slots by the number of their items."""
    pages = [process.page.stages for process in processes if process.kind == "slot" and process.page is not None]
    return sum((page.batches() for page in pages), NO_BATCH)


def live(window: Window, exchange: Exchange) -> dict[str, Any]:
    """The figures of the last seconds."""
    rates = {str(reason): round(window.dropped_fps.get(reason, 0.0), 2) for reason in Drop}
    return {
        "window_s": round(window.seconds, 1),
        "clients": window.clients,
        "admitted": window.admitted,
        "waiting": window.waiting,
        "sending": window.senders,
        "not_reading": exchange.delivery.blocked,
        **_rates(window),
        **_percentiles(window),
        "drops_per_s": {**rates, "slow_reader": round(window.shed_fps, 2), "left": round(window.left_fps, 2)},
        "refused_per_s": round(window.refused_fps, 2),
        "stages_ms": {str(stage): _ms(window.stages.get(stage)) for stage in Stage},
        "batch_mean": None if window.batch is None else round(window.batch, 2),
        "bytes_in_per_s": round(window.bytes_in),
        "bytes_out_per_s": round(window.bytes_out),
        "inside": exchange.accounts.inside,
        "inflight_limit": exchange.work_limit,
        "mailbox_bytes": exchange.waiting_bytes,
        "capacity_fps": _finite(window.capacity_fps),
        "pace_ms": window.pace_ms,
        "loop_lag_ms": {"p50": _ms(window.lag_s(0.5)), "p99": _ms(window.lag_s(0.99))},
        "gil": window.gil,
        "cores": window.cores,
        "cores_used": round(sum(load.cpu for load in window.loads), 3),
        "cores_used_by_others": round(window.others, 3),
    }


def encode(document: Any) -> bytes:
    """A document as JSON."""
    return msgspec.json.encode(document)


def _not_yet(reasons: list[str]) -> Diagnosis:
    sentence = f"not serving: {', '.join(reasons)}" if reasons else "nothing has been measured yet"
    advice = "wait, or look at the log" if reasons else "ask again in a few seconds"
    return Diagnosis(limit=Limit.IDLE, sentence=sentence, advice=advice, evidence={}, window_s=0.0)


def _rates(window: Window) -> dict[str, Any]:
    delivery = window.delivery
    return {
        "received_per_s": round(window.received_fps, 2),
        "goodput_per_s": round(window.delivered_fps, 2),
        "delivery": None if delivery is None else round(delivery, 4),
    }


def _percentiles(window: Window) -> dict[str, Any]:
    return {f"p{percent}_ms": _ms(window.age_s(percent / 100)) for percent in (50, 95, 99)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)


def _finite(value: float) -> float | None:
    return None if value == float("inf") else round(value, 1)
