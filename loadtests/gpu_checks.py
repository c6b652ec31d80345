"""The checks of ``gpu_check``: each measures one thing and says what it should be.

A check is a function from the ``Lab`` to rows. What it needs stands beside it in ``CHECKS``: without that it is
skipped, and the report says so by name. Every bar is an aim of the project, not of this file; a row without one is
told only.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from framelane.loadtests.clips import moving_face
from framelane.loadtests.generator import FrameFile
from framelane.loadtests.processes import Process
from framelane.loadtests.stage import Effort, Stage, wait_for
from framelane.loadtests.tally import Tally
from framelane.loadtests.windows import measure
from framelane.models import runtime
from framelane.models.checking import check_model, relative_error
from framelane.models.cuda import Card, HostCard
from framelane.models.devices import Device, DeviceError, parse_device
from framelane.models.errors import FramelaneError
from framelane.models.gpu import GpuFacts, explain
from framelane.models.onnx_file import constant, model, node, tensor
from framelane.models.providers import Tuning, arena_budget
from framelane.models.registry import ModelSpec, Registry, TensorSpec
from framelane.models.session import OnnxSession, sample
from framelane.server.slots.overlap import run_overlapped

BUNDLED = ("blazeface_short", "face_landmark")
_CPU = parse_device("cpu")
_BATCHES = (1, 2, 4, 8)
_SLOTS = (1, 2, 4, 8)
_REPEATS = 300
_OVERLAPPED = 60
_WINDOW_S = 4.0


class Row(NamedTuple):
    """One line of the report. ``good`` is None where there is no bar."""

    check: str
    case: str
    value: float
    unit: str
    bar: str = ""
    good: bool | None = None


class Lab(NamedTuple):
    """What the checks work with. ``device`` is the card's, None without one; ``tensorrt`` where that loads."""

    facts: GpuFacts
    device: Device | None
    folder: Path
    say: Callable[[str], None]

    @property
    def card(self) -> Device:
        """The card's device; only checks that need a card ask."""
        assert self.device is not None
        return self.device

    @property
    def models(self) -> list[ModelSpec]:
        """The models to measure; on a card the reference network, too."""
        names = (*BUNDLED, "reference") if self.device else BUNDLED
        registry = Registry()
        return [registry.get(name) for name in names]

    @property
    def heaviest(self) -> ModelSpec:
        """The one that takes longest."""
        return self.models[-1]


# -- the session, wherever it runs -----------------------------------------------------------------------------------


def session_overhead(lab: Lab) -> Iterator[Row]:
    """One item on the CPU: what a run of our session costs beside ONNX Runtime's own `run`, alternating."""
    for name, spec in (("a model of one multiplication", _tiny(lab.folder)), (BUNDLED[0], Registry().get(BUNDLED[0]))):
        session = OnnxSession(spec, _CPU)
        (item,) = session.spare_items(1)
        feed = {wanted.name: array for wanted, array in zip(spec.inputs, item.inputs, strict=True)}
        plain = session.onnx.run
        ours, theirs = _interleaved(lambda s=session, i=item: s.run([i]), lambda p=plain, f=feed: p(None, f))  # type: ignore[misc]
        yield Row("session", f"{name}: ours ÷ plain run", ours / theirs, "×", "≤ 1.02", ours / theirs <= 1.02)
        if spec.name == "tiny":
            yield Row("session", f"{name}: ours", ours * 1e6, "µs", "≤ 10", ours * 1e6 <= 10)


def gather_cost(_lab: Lab) -> Iterator[Row]:
    """Eight pictures of 128² from cells into the staging buffer, on one core."""
    for path, card in (("CPU", None), ("a card's path, copied twice in host memory", HostCard())):
        session = OnnxSession(Registry().get(BUNDLED[0]), _CPU, card=card)
        items = session.spare_items(8)
        took = 1e6 * _median(lambda s=session, i=items: s.drop(s.gather(i)))  # type: ignore[misc]
        bar = took <= 60 if card is None else None
        yield Row("gather", f"8 × 128² uint8, {path}", took, "µs", "≤ 60" if card is None else "", bar)


def batch_parity(lab: Lab) -> Iterator[Row]:
    """A batch gives what single runs give, also on the path that a card takes (here with host memory)."""
    for spec in (Registry().get(name) for name in BUNDLED):
        for path, card in (("CPU", None), ("host memory as card", HostCard())):
            batched, single = OnnxSession(spec, _CPU, card=card), OnnxSession(spec, _CPU)
            for size in _BATCHES:
                yield _parity(f"{spec.name}, batch {size}, {path}", spec, batched, single, size, 1e-4)
    lab.say("batches compared")


def batches(lab: Lab) -> Iterator[Row]:
    """Latency and throughput of each batch size."""
    device = lab.device or _CPU
    for spec in lab.models:
        report = check_model(spec.path, device, max_batch=min(16, spec.max_batch))
        for size, milliseconds in report.run_ms.items():
            case = f"{spec.name}, batch {size}, {device.name}"
            yield Row("batches", case, milliseconds, "ms")
            yield Row("batches", case, 1000 * size / milliseconds, "items/s")
        for operator, count in report.on_cpu.items():
            yield Row("batches", f"{spec.name}: {operator} fell to the CPU", count, "nodes")
        lab.say(f"{spec.name}: batches of {report.best}")


# -- on a card -------------------------------------------------------------------------------------------------------


def precision(lab: Lab) -> Iterator[Row]:
    """How far the card's answers are from the CPU's: fp32, TF32, fp16, TensorRT."""
    variants = [
        ("fp32", lab.card, Tuning(precision="fp32"), 1e-3),
        ("TF32", lab.card, Tuning(), 2e-2),
        ("channels last", lab.card, Tuning(nhwc=True), 2e-2),
        ("fp16", lab.card, Tuning(precision="fp16"), 5e-2),
    ]
    if not explain(lab.facts, "tensorrt", lab.card.index):
        tensorrt = parse_device(f"tensorrt:{lab.card.index}")
        variants.append(("TensorRT", tensorrt, Tuning(cache=str(lab.folder)), 2e-2))
    for spec in lab.models:
        single = OnnxSession(spec, _CPU)
        for name, device, tuning, bar in variants:
            try:
                session = OnnxSession(_halved(spec, lab.folder) if name == "fp16" else spec, device, tuning)
                for size in (1, 8) if spec.name in BUNDLED else (1,):
                    yield _parity(f"{spec.name}, batch {size}, {name}", spec, session, single, size, bar)
                yield Row("precision", f"{spec.name}, {name}", session.time(1), "ms")
                session.close()
            except FramelaneError as error:
                lab.say(f"{spec.name}, {name}: {error.message}")
                yield Row("precision", f"{spec.name}, {name}: {error.message}", float("nan"), "", "it runs", False)


def graphs(lab: Lab) -> Iterator[Row]:
    """CUDA graphs against launching kernel by kernel; a session with graphs proves itself when it is warmed."""
    for spec in lab.models:
        plain = OnnxSession(spec, lab.card, Tuning())
        yield Row("graphs", f"{spec.name}, off", plain.time(1), "ms")
        plain.close()
        try:
            recorded = OnnxSession(spec, lab.card, Tuning(graphs=True))
            recorded.warm_up()
            yield Row("graphs", f"{spec.name}, on", recorded.time(1), "ms", "follows its inputs", True)
            recorded.close()
        except (FramelaneError, DeviceError) as error:
            yield Row("graphs", f"{spec.name}: {error.message}", float("nan"), "", "follows its inputs", False)


def overlap(lab: Lab) -> Iterator[Row]:
    """Gathering the next batch while one runs, against one after the other; a slot takes the faster."""
    for spec in lab.models:
        session = OnnxSession(spec, lab.card)
        session.warm_up()
        items = session.spare_items(session.best_batch)
        one_by_one = _OVERLAPPED / _seconds(lambda s=session, i=items: [s.run(i) for _ in range(_OVERLAPPED)])  # type: ignore[misc]
        overlapped = _OVERLAPPED / run_overlapped(session, items, _OVERLAPPED)
        gather = 1e6 * _median(lambda s=session, i=items: s.drop(s.gather(i)))  # type: ignore[misc]
        case = f"{spec.name}, batch {len(items)}"
        yield Row("overlap", f"{case}: gather and copy", gather, "µs")
        yield Row("overlap", f"{case}: one after the other", one_by_one * len(items), "items/s")
        gain = overlapped / one_by_one
        yield Row("overlap", f"{case}: overlapped ÷ one after the other", gain, "×")
        session.close()


def slots(lab: Lab) -> Iterator[Row]:
    """1, 2, 4, 8 processes on the card: throughput of all, p95 of a run, memory of each."""
    spec, card = lab.heaviest, lab.facts.driver.cards[lab.card.index]
    for count in _SLOTS:
        budget = arena_budget(card.memory, count, 1)
        before, _ = Card(lab.card.index).free_memory()
        with _loops(lab, spec, count, budget) as tallies:
            window = measure({}, tallies, _WINDOW_S)
            after, _ = Card(lab.card.index).free_memory()
        case = f"{spec.name}, {count} slot(s)"
        yield Row("slots", case, window.fps, "runs/s")
        yield Row("slots", case, window.percentile(95), "ms p95")
        yield Row("slots", case, (before - after) / 2**20 / count, "MiB each")
        lab.say(f"{case}: {window.fps:.0f} runs/s")


def server(lab: Lab) -> Iterator[Row]:
    """The whole server under closed-loop clients against the raw loop, both with two processes on the card."""
    spec = lab.heaviest
    best = max(1, check_model(spec.path, lab.card, max_batch=8).best)
    with _loops(lab, spec, 2, 0, batch=best) as tallies:
        raw = measure({}, tallies, _WINDOW_S).fps * best
    pipeline = "reference" if spec.name == "reference" else "face_mesh"
    serve = ("--device", lab.card.name, "--pipeline", pipeline, "--deadline-ms", "2000", "--active-slots", "2")
    effort = Effort(seconds=_WINDOW_S, clients=8 * best + 16, patience=0, serve=serve)
    clip = moving_face(width=256, height=256, frames=30)
    stage = Stage(lab.folder, FrameFile(clip.fps, list(clip.frames)), effort, lab.say)
    with stage.server(arguments=["--hang-limit", "10"]) as running:
        loaded = stage.load_window(running)
        busy = [card["utilisation"] for card in running.get_json("/v1/status")["gpus"] if "utilisation" in card]
        alone = stage.load_window(running, clients=1, pause_ms=20)
    with _loops(lab, spec, 1, 0) as tallies:
        raw_alone = measure({}, tallies, 1.0).percentile(50)
    share = loaded.fps / raw
    yield Row("server", f"raw loop, two processes, batch {best}", raw, "items/s")
    yield Row("server", "through the server", loaded.fps, "fps")
    yield Row("server", "server ÷ raw loop", share, "×", "≥ 0.9, or the CPU is the limit", share >= 0.9)
    if busy:  # as of the last second of the load
        yield Row("server", "card busy under load", max(busy), "of the time", "≥ 0.9", max(busy) >= 0.9)
    for group in ("gateway", "worker", "slot", "generator"):
        if group in loaded.use:
            yield Row("server", f"cores used by {group}", loaded.use[group].cpu / loaded.seconds, "cores")
    extra = alone.percentile(50) - raw_alone
    yield Row("server", "one client alone, p50 above the raw loop's", extra, "ms", "≤ 3", extra <= 3)


class Check(NamedTuple):
    """A check by name; ``needs`` is "cpu" or "card"."""

    name: str
    needs: str
    run: Callable[[Lab], Iterator[Row]]


CHECKS = (
    Check("session", "cpu", session_overhead),
    Check("gather", "cpu", gather_cost),
    Check("parity of batches", "cpu", batch_parity),
    Check("precision", "card", precision),
    Check("batches", "cpu", batches),
    Check("graphs", "card", graphs),
    Check("overlap", "card", overlap),
    Check("slots", "card", slots),
    Check("server", "card", server),
)


# -- helpers ---------------------------------------------------------------------------------------------------------


def _parity(case: str, spec: ModelSpec, one: OnnxSession, single: OnnxSession, size: int, bar: float) -> Row:
    random = np.random.default_rng(size)
    items, alone = one.spare_items(size), single.spare_items(size)
    for item, other in zip(items, alone, strict=True):
        for wanted, mine, theirs in zip(spec.inputs, item.inputs, other.inputs, strict=True):
            mine[0] = theirs[0] = sample(random, wanted)
    one.run(items)
    for item in alone:
        single.run([item])
    pairs = [
        pair for item, other in zip(items, alone, strict=True) for pair in zip(item.outputs, other.outputs, strict=True)
    ]
    worst = max(relative_error(mine, theirs) for mine, theirs in pairs)
    return Row("parity", case, worst, "relative", f"≤ {bar:g}", worst <= bar)


def _tiny(folder: Path) -> ModelSpec:
    """``y = 2 x`` of four numbers: what a run costs when the model costs nothing."""
    path = folder / "tiny.onnx"
    data = model(
        "tiny",
        [node("Mul", ["x", "two"], ["y"])],
        [tensor("x", "float32", (4,))],
        [tensor("y", "float32", (4,))],
        [constant("two", np.array([2], np.float32))],
    )
    path.write_bytes(data)
    (x,), (y,) = (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),)
    return ModelSpec("tiny", path, "", "", "", (x,), (y,), 8)


def _halved(spec: ModelSpec, folder: Path) -> ModelSpec:
    """A copy of the model with its half-precision file beside it. Raises ModelError without onnx."""
    home = folder / spec.name
    home.mkdir(exist_ok=True)
    path = home / "model.onnx"
    if not path.exists():
        path.write_bytes(spec.path.read_bytes())
        runtime.write_half(path, home / "model.fp16.onnx")
    return msgspec.structs.replace(spec, path=path)


@contextlib.contextmanager
def _loops(lab: Lab, spec: ModelSpec, count: int, memory: int, batch: int = 1) -> Iterator[list[Tally]]:
    """Raw loops at work on the card."""
    arguments = ["-m", "framelane.loadtests.gpu_loop", "--device", lab.card.name, "--model", spec.name]
    arguments += ["--batch", str(batch), "--memory", str(memory)]
    with contextlib.ExitStack() as stack:
        tallies = [Tally.create(lab.folder / f"loop-{count}-{batch}-{number}.tally") for number in range(count)]
        processes = []
        for number, tally in enumerate(tallies):
            log = lab.folder / f"loop-{number}.log"
            processes.append(stack.enter_context(Process([*arguments, "--tally", str(tally.path)], log)))
        wait_for(processes, tallies)
        time.sleep(0.5)
        yield tallies


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _median(work: Callable[[], Any]) -> float:
    return statistics.median(_seconds(work) for _ in range(_REPEATS))


def _interleaved(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of both, measured in turns, so that whatever drifts meets both."""
    pairs = [(_seconds(one), _seconds(other)) for _ in range(_REPEATS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)
