"""Spans of frames, from times that are made up to what OpenTelemetry would export."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framelane.preprocess.messages import Fate, Kind, pack_done, unpack
from framelane.preprocess.pool import Done, Job
from framelane.server.ops.tracing import Tracer, sampled, tree


def ended(request: int = 1, fate: Fate = Fate.OK, message: str = "") -> Done:
    """A frame that came at 10.0, was taken at 10.1, began at 10.2 and was finished at 10.7."""
    job = Job(b"a picture", b"", 5, 0, 10.0, 10.5, None)
    job.submitted = 10.1
    (report,) = unpack(pack_done(request, 0, fate, 9, 0, 0.2, 0.3, False, 10.7, 10.2, 250_000, 50_000))
    assert report.kind == Kind.DONE
    given = report if fate is Fate.OK else None
    return Done(request, job, fate, b"a packet", b"state", message, 0.2, 0.3, report=given)


class Pool:
    def __init__(self) -> None:
        self.seen: list[Done] = []
        self.on_done: Any = self.seen.append


def spans_of(*frames: Done, ratio: float = 1.0) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer, pool = Tracer(ratio, provider, clock=lambda: 10.8), Pool()
    tracer.start(pool)
    for frame in frames:
        pool.on_done(frame)
    tracer.stop()
    assert pool.seen == list(frames)
    return list(exporter.get_finished_spans())


def test_stages_lie_one_after_another_within_their_worker() -> None:
    frame = tree(ended(), 10.8)
    assert (frame.begin, frame.end) == (10.0, 10.8)
    queue, worker, deliver = frame.within
    assert (queue.begin, queue.end, worker.begin, worker.end) == (10.0, 10.1, 10.2, 10.7)
    assert (deliver.begin, deliver.end) == (10.7, 10.8)
    assert [part.name for part in worker.within] == ["preprocess", "slot_wait", "run", "postprocess"]
    assert [part.end - part.begin for part in worker.within] == pytest.approx([0.15, 0.05, 0.25, 0.05])
    assert worker.within[-1].end == pytest.approx(10.7)


def test_a_frame_without_a_result_has_what_is_known_of_it() -> None:
    frame = tree(ended(fate=Fate.FAILED), 10.8)
    assert [part.name for part in frame.within] == ["queue"]


def test_spans_form_one_tree() -> None:
    spans = {span.name: span for span in spans_of(ended())}
    assert len(spans) == 8
    assert len({span.context.trace_id for span in spans.values()}) == 1
    parents = {name: span.parent.span_id if span.parent else None for name, span in spans.items()}
    assert parents["frame"] is None
    assert parents["queue"] == parents["worker"] == parents["deliver"] == spans["frame"].context.span_id
    assert parents["run"] == spans["worker"].context.span_id
    root = spans["frame"]
    assert root.attributes["framelane.seq"] == 5
    assert root.attributes["framelane.fate"] == "ok"
    assert (root.end_time - root.start_time) / 1e9 == pytest.approx(0.8, abs=1e-3)


def test_a_frame_that_failed_says_why() -> None:
    root = next(span for span in spans_of(ended(fate=Fate.FAILED, message="its worker died")) if span.name == "frame")
    assert not root.status.is_ok
    assert root.status.description == "its worker died"


def test_nothing_of_a_picture_waits_for_the_exporter() -> None:
    frame = ended()
    spans_of(frame)
    assert frame.job.data == b""


def test_the_share_of_frames_that_are_sampled_is_what_was_asked_for() -> None:
    counts = {ratio: sum(sampled(request, ratio) for request in range(20_000)) for ratio in (0.0, 0.01, 0.5, 1.0)}
    assert counts[0.0] == 0
    assert counts[1.0] == 20_000
    assert counts[0.01] == pytest.approx(200, rel=0.1)
    assert counts[0.5] == pytest.approx(10_000, rel=0.02)
    assert spans_of(*(ended(request) for request in range(1, 50)), ratio=0.0) == []
