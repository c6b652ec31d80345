"""OpenTelemetry: one span tree per sampled frame, across the processes that it went through. Off unless configured.

    frame                       received → answered: lane, seq, request, fate
      ├─ queue                  in its mailbox
      ├─ worker                 from when its worker began to when it finished
      │    ├─ preprocess        ┐ sums over the frame, laid out one after another: a pipeline may
      │    ├─ slot_wait         │ call several models, and their runs and waits take turns
      │    ├─ run               │
      │    └─ postprocess       ┘
      └─ deliver                from there to the transport

The times travel with the result anyway (``preprocess/messages.py``). For a sampled frame the event loop puts one tuple
into a queue; spans are made and exported by threads. What does not fit the queue is counted and left out.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from framelane.preprocess.pool import Done
from framelane.server.config import ConfigError

log = logging.getLogger(__name__)

_MOST_WAITING = 1000
_JOIN_S = 3.0
_SPREAD = 2654435761  # Knuth's multiplicative hash: neighbours fall far apart


class Traced(Protocol):
    """Where frames end (``preprocess/pool.py``)."""

    on_done: Callable[[Done], None]


class Part(NamedTuple):
    """One span: name, begin and end on the monotonic clock, and the spans within it."""

    name: str
    begin: float
    end: float
    within: tuple[Part, ...] = ()


def tree(done: Done, now: float) -> Part:
    """The spans of a frame that has ended ``now``."""
    job, report = done.job, done.report
    submitted = job.submitted or job.received
    queued = Part("queue", job.received, submitted)
    if report is None:
        return Part("frame", job.received, now, (queued,))
    ran, after = report.epoch / 1e6, report.generation / 1e6
    stages = [("preprocess", report.f0 - after), ("slot_wait", report.f1 - ran), ("run", ran), ("postprocess", after)]
    worker = Part("worker", report.t1, report.t0, tuple(_laid_out(stages, report.t1, report.t0)))
    return Part("frame", job.received, now, (queued, worker, Part("deliver", report.t0, now)))


def sampled(request: int, ratio: float) -> bool:
    """Whether a frame is one of those that are traced: the same for the same request."""
    return request * _SPREAD % 2**32 < ratio * 2**32


class Tracer:
    """Sees frames end, and exports those that are sampled.

    Args:
        ratio: the share of the frames that are traced.
        provider: OpenTelemetry's tracer provider (``open_provider``).
        clock: seconds on the clock of the frames' times.

    Attributes:
        missed: sampled frames that did not fit the queue.
    """

    def __init__(self, ratio: float, provider: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.missed = 0
        self._ratio = ratio
        self._provider = provider
        self._clock = clock
        self._ended: queue.SimpleQueue[tuple[Done, float, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._export, name="tracing", daemon=True)

    def start(self, pool: Traced) -> None:
        """From now on see what ends there."""
        others = pool.on_done

        def on_done(done: Done) -> None:
            others(done)
            if sampled(done.request, self._ratio):
                self._note(done)

        pool.on_done = on_done
        self._thread.start()

    def stop(self) -> None:
        """Export what waits."""
        self._ended.put(None)
        self._thread.join(_JOIN_S)
        if self.missed:
            log.warning("%d sampled frames were not traced: the exporter is too slow, or not there", self.missed)

    def _note(self, done: Done) -> None:
        if self._ended.qsize() >= _MOST_WAITING:
            self.missed += 1
            return
        lane = getattr(done.job.owner, "id", "")
        # Neither picture nor packet shall live as long as the exporter takes.
        self._ended.put((done._replace(packet=b"", state=b""), self._clock(), lane))
        done.job.data = b""

    def _export(self) -> None:
        tracer = self._provider.get_tracer("framelane")
        offset = time.time() - self._clock()
        while (ended := self._ended.get()) is not None:
            try:
                self._span(tracer, *ended, offset)
            except Exception:
                log.exception("a frame could not be traced")
        self._provider.shutdown()

    def _span(self, tracer: Any, done: Done, now: float, lane: str, offset: float) -> None:
        from opentelemetry.trace import StatusCode

        attributes = {"framelane.lane": lane, "framelane.seq": done.job.seq, "framelane.request": done.request}
        root = _emit(tracer, tree(done, now), offset, {**attributes, "framelane.fate": done.fate.name.lower()})
        if done.message:
            root.set_status(StatusCode.ERROR, done.message)
        root.end(_ns(now + offset))


def open_provider(endpoint: str, version: str) -> Any:
    """OpenTelemetry's provider, which exports to ``endpoint`` (an OTLP collector's HTTP port) in a thread of its own.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        text = f"otel_endpoint needs {error.name}, which is not installed: pip install 'framelane[otel]'"
        raise ConfigError(text) from None
    resource = Resource.create({"service.name": "framelane", "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return provider


def _laid_out(stages: list[tuple[str, float]], begin: float, end: float) -> Iterator[Part]:
    """Durations, one after another, within the whole; those of nothing are left out."""
    stops = itertools.accumulate((max(0.0, seconds) for _name, seconds in stages), initial=begin)
    for (name, seconds), (start, stop) in zip(stages, itertools.pairwise(stops), strict=True):
        if seconds > 0:
            yield Part(name, min(start, end), min(stop, end))


def _emit(tracer: Any, part: Part, offset: float, attributes: dict[str, Any], parent: Any = None) -> Any:
    """Make a span and those within it; the outermost one is returned open."""
    from opentelemetry.trace import set_span_in_context

    context = set_span_in_context(parent) if parent is not None else None
    span = tracer.start_span(part.name, context=context, start_time=_ns(part.begin + offset), attributes=attributes)
    for inner in part.within:
        _emit(tracer, inner, offset, {}, span)
    if parent is not None:
        span.end(_ns(part.end + offset))
    return span


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
