"""/metrics of the processes, the event loop and the long jobs, read off what /v1/status says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from framelane.server.slots.audit import FOLLOWERS, JobState
from framelane.server.slots.states import State

_WORKER_STATES = ("starting", "parked", "active", "audit")


class ProcessCollector(Collector):
    """Workers and slots by state, and what happened to them; long jobs by state.

    Args:
        status: the body of /v1/status, as ``app.py`` tells it; parts that it lacks are left out.
    """

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All metrics, in the order in which /metrics shows them."""
        status = self._status
        yield self._states("slots", "Slots", [state.value for state in State])
        yield self._states("workers", "Workers", _WORKER_STATES)
        if "promotions" in status:
            promotions = "Slots that took another one's place"
            yield CounterMetricFamily("framelane_promotions", promotions, value=status["promotions"])
        yield from self._device()
        yield from self._gpus()
        yield from self._events("restarts", "Processes that were started again")
        yield from self._events("hangs", "Processes that were put down since they made no progress")
        if "tasks" in status:
            tasks = "Tasks of the gateway's event loop"
            yield GaugeMetricFamily("framelane_event_loop_tasks", tasks, value=status["tasks"])
        yield from self._loop_lag()
        yield from self._jobs()

    def _device(self) -> Iterator[Metric]:
        """What was asked for and what a run has proven; 1 as long as slots serve there."""
        device = self._status.get("device")
        if device:
            labels = ["requested", "used", "simulated"]
            family = GaugeMetricFamily(
                "framelane_device_info", "Device as asked for and as proven by runs", labels=labels
            )
            simulated = str(device["simulated"]).lower()
            family.add_metric([device["requested"], device["used"], simulated], device["used"] != "none yet")
            yield family

    def _gpus(self) -> Iterator[Metric]:
        """The cards, where NVML tells of them; memory of our own slots by name."""
        gpus = self._status.get("gpus")
        if not gpus:
            return
        used = GaugeMetricFamily("framelane_gpu_utilisation", "Share of time in which a kernel ran", labels=["gpu"])
        memory = GaugeMetricFamily("framelane_gpu_memory_bytes", "Memory of the card", labels=["gpu", "kind"])
        ours = GaugeMetricFamily("framelane_gpu_slot_memory_bytes", "Memory of a slot there", labels=["gpu", "slot"])
        names = {entry["pid"]: entry["id"] for entry in self._status.get("slots", ())}
        for card in gpus:
            index = str(card["index"])
            if "utilisation" in card:
                used.add_metric([index], card["utilisation"])
            memory.add_metric([index, "used"], card["memory_used"])
            memory.add_metric([index, "total"], card["memory_total"])
            for pid, taken in card["processes"].items():
                if pid in names:
                    ours.add_metric([index, names[pid]], taken)
        yield from (used, memory, ours)

    def _states(self, kind: str, text: str, states: Any) -> Metric:
        family = GaugeMetricFamily(f"framelane_{kind}", f"{text} by state", labels=["state"])
        counts = Counter(entry["state"] for entry in self._status.get(kind, ()))
        for state in dict.fromkeys([*states, *counts]):
            family.add_metric([state], counts[state])
        return family

    def _events(self, name: str, text: str) -> Iterator[Metric]:
        if name in self._status:
            family = CounterMetricFamily(f"framelane_{name}", text, labels=["kind"])
            for kind, count in self._status[name].items():
                family.add_metric([kind], count)
            yield family

    def _loop_lag(self) -> Iterator[Metric]:
        lag = self._status.get("loop_lag")
        if lag:
            buckets = [(edge, float(count)) for edge, count in lag["buckets"].items()]
            text = "Seconds by which timers of the gateway's event loop were late"
            yield HistogramMetricFamily(
                "framelane_event_loop_lag_seconds", text, buckets=buckets, sum_value=lag["sum_s"]
            )

    def _jobs(self) -> Iterator[Metric]:
        jobs = self._status.get("audit", {}).get("jobs")
        if not jobs:
            return
        now = GaugeMetricFamily("framelane_audit_jobs", "Long jobs that have not ended, by state", labels=["state"])
        ended = CounterMetricFamily("framelane_audit_jobs_ended", "Long jobs that have ended", labels=["state"])
        for state in JobState:
            (now if FOLLOWERS[state] else ended).add_metric([state.value], jobs[state.value])
        yield now
        yield ended
