"""/metrics of what frames cost: time by stage, batches, processes, memory, and what limits the replica now.

Everything is read when Prometheus asks: histograms from shared memory, processor time from the kernel. Counters of a
process go on where those of its predecessor in the same place stopped, so that no sum falls when one is replaced.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from framelane.preprocess.stages import BATCH_EDGES, EDGES_S, Tally

from .diagnosis import Limit
from .watch import Watch
from .window import Reading

_PROCESS = ("kind", "id")


class ResourceCollector(Collector):
    """Stages, batches, processes and the diagnosis.

    Args:
        watch: looks at the replica.
        status: the body of /v1/status, for what is told of build and device.
    """

    def __init__(self, watch: Watch, status: Mapping[str, Any]) -> None:
        self._watch = watch
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All metrics, in the order in which /metrics shows them."""
        sample = self._watch.sample()
        stages = HistogramMetricFamily(
            "framelane_stage_seconds", "Seconds of answered frames, by stage; they add up to the age", labels=["stage"]
        )
        for stage, tally in sample.stages.items():
            stages.add_metric([stage], _buckets(EDGES_S, tally.buckets), tally.sum)
        yield stages
        yield _batches(sample.batches)
        yield from _processes(sample.processes)
        yield self._memory()
        yield self._credits()
        yield from self._diagnosis()
        yield from self._facts()
        if sample.gil is not None:
            text = "Share of the time in which the gateway's interpreter lock was taken"
            yield GaugeMetricFamily("framelane_gateway_gil_ratio", text, value=sample.gil)

    def _memory(self) -> Metric:
        text = "Proportional set size: what several processes share counts by their share"
        family = GaugeMetricFamily("framelane_process_pss_bytes", text, labels=_PROCESS)
        for process in self._watch.processes():
            if process.pid in self._watch.pss:
                family.add_metric([process.kind, process.id], self._watch.pss[process.pid])
        return family

    def _credits(self) -> Metric:
        serving = [process for process in self._watch.processes() if process.kind == "worker" and process.credits]
        used = sum(process.frames for process in serving)
        family = GaugeMetricFamily("framelane_credits", "Frames that serving workers may hold", labels=["state"])
        family.add_metric(["used"], used)
        family.add_metric(["free"], sum(process.credits for process in serving) - used)
        return family

    def _diagnosis(self) -> Iterator[Metric]:
        diagnosis = self._watch.diagnosis()
        family = GaugeMetricFamily("framelane_limited_by", "What limits this replica now: 1", labels=["limit"])
        for limit in Limit:
            family.add_metric([limit], float(limit is diagnosis.limit))
        yield family
        if diagnosis.headroom_users is not None:
            text = "How many more clients like those of now there is room for, while nothing limits"
            yield GaugeMetricFamily("framelane_headroom_users", text, value=diagnosis.headroom_users)

    def _facts(self) -> Iterator[Metric]:
        status = self._status
        build = {"version": str(status.get("version", "")), "python": platform.python_version()}
        yield _info("build", "What runs here", {**build, "pipeline": str(status.get("pipeline", ""))})


def _batches(tally: Tally) -> Metric:
    text = "Items of one run of a model, all slots"
    buckets = _buckets(BATCH_EDGES, tally.buckets)
    return HistogramMetricFamily("framelane_batch_items", text, buckets=buckets, sum_value=tally.sum)


def _processes(readings: Iterable[Reading]) -> Iterator[Metric]:
    busy, cpu, wait, done = (
        CounterMetricFamily(f"framelane_process_{name}", text, labels=_PROCESS)
        for name, text in (
            ("busy_seconds", "Seconds in which a process worked, or waited for a core to do so"),
            ("cpu_seconds", "Processor time"),
            ("core_wait_seconds", "Seconds in which a process could have run but had no core"),
            ("done", "Pieces of work that a process has finished: turns of a worker, runs of a slot"),
        )
    )
    for reading in readings:
        labels = [reading.kind, reading.id]
        busy.add_metric(labels, reading.busy_s)
        cpu.add_metric(labels, reading.cpu_s)
        wait.add_metric(labels, reading.core_wait_s)
        if reading.kind != "gateway":
            done.add_metric(labels, reading.done)
    yield from (busy, cpu, wait, done)


def _info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(f"framelane_{name}_info", text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _buckets(edges: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    names = [*(f"{edge:g}" for edge in edges), "+Inf"]
    return list(zip(names, accumulate(map(float, counts)), strict=True))
