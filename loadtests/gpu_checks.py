"""The checks of ``gpu_check``: each measures one thing and says what it should be.

A check is a function from the ``Lab`` to rows. What it needs stands beside it in ``CHECKS``: without that it is
skipped, and the report says so by name. Every bar is an aim of the project, not of this file; a row without one is
told only.

A rehearsal runs the checks of a card on the CPU, with host memory in the card's place: the same code, so that a short
time with a card is not spent on finding out that it breaks. Its figures say nothing of a card, and what only a card can
keep is told without a bar.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
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
from framelane.models.cuda import HostCard, free_memory
from framelane.models.devices import Device, parse_device
from framelane.models.errors import FramelaneError, ModelError
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
_ALONE_S = 1.0
_SHARE_OF_RAW, _BUSY, _MOST_EXTRA_MS = 0.9, 0.9, 3.0
_VARIANTS = (
    ("fp32", Tuning(precision="fp32"), 1e-3),
    ("TF32", Tuning(), 2e-2),
    ("channels last", Tuning(nhwc=True), 2e-2),
    ("fp16", Tuning(precision="fp16"), 5e-2),
)
"""Each with the largest error that is taken."""


class Row(NamedTuple):
    """One line of the report. ``good`` is None where there is no bar."""

    check: str
    case: str
    value: float
    unit: str
    bar: str = ""
    good: bool | None = None


class Skipped(NamedTuple):
    """A check, or a part of one, that was not done, and why."""

    check: str
    why: str


Report = Iterator[Row | Skipped]


class Lab(NamedTuple):
    """What the checks work with. ``device`` is the card's; in a rehearsal the CPU; None without either."""

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
    def rehearsal(self) -> bool:
        """Whether the CPU stands for the card."""
        return self.device == _CPU

    @property
    def memory(self) -> int:
        """Bytes of the card, or of the machine that stands for it."""
        if self.rehearsal:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return self.facts.driver.cards[self.card.index].memory

    def free_memory(self) -> int:
        """Bytes of it that are free now."""
        if not self.rehearsal:
            return free_memory(self.card.index)
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def session(self, spec: ModelSpec, tuning: Tuning | None = None) -> OnnxSession:
        """The model on the card."""
        return OnnxSession(spec, self.card, tuning, HostCard() if self.rehearsal else None)

    def held(self, row: Row) -> Row:
        """A row whose bar is for a card: in a rehearsal there is none."""
        return row._replace(bar="", good=None) if self.rehearsal else row

    @property
    def models(self) -> list[ModelSpec]:
        """The models to measure; on a card the reference network, too, which takes seconds on a CPU."""
        names = (*BUNDLED, "reference") if self.device and not self.rehearsal else BUNDLED
        registry = Registry()
        return [registry.get(name) for name in names]

    @property
    def heaviest(self) -> ModelSpec:
        """The one that takes longest."""
        return self.models[-1]


# -- the session, wherever it runs -----------------------------------------------------------------------------------


def session_overhead(lab: Lab) -> Report:
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


def gather_cost(_lab: Lab) -> Report:
    """Eight pictures of 128² from cells into the staging buffer, on one core."""
    for path, card in (("CPU", None), ("a card's path, copied twice in host memory", HostCard())):
        session = OnnxSession(Registry().get(BUNDLED[0]), _CPU, card=card)
        items = session.spare_items(8)
        took = 1e6 * _median(lambda s=session, i=items: s.drop(s.gather(i)))  # type: ignore[misc]
        bar = took <= 60 if card is None else None
        yield Row("gather", f"8 × 128² uint8, {path}", took, "µs", "≤ 60" if card is None else "", bar)


def batch_parity(lab: Lab) -> Report:
    """A batch gives what single runs give, also on the path that a card takes (here with host memory)."""
    for spec in (Registry().get(name) for name in BUNDLED):
        for path, card in (("CPU", None), ("host memory as card", HostCard())):
            batched, single = OnnxSession(spec, _CPU, card=card), OnnxSession(spec, _CPU)
            for size in _BATCHES:
                yield _parity(f"{spec.name}, batch {size}, {path}", spec, batched, single, size, 1e-4)
    lab.say("batches compared")


def batches(lab: Lab) -> Report:
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


def precision(lab: Lab) -> Report:
    """How far the card's answers are from the CPU's: fp32, TF32, channels last, fp16."""
    for spec in lab.models:
        single = OnnxSession(spec, _CPU)
        sizes = (1, 8) if spec.name in BUNDLED else (1,)
        for name, tuning, bar in _VARIANTS:
            try:
                own = _halved(spec, lab.folder) if tuning.precision == "fp16" else spec
            except ModelError as error:  # what converts it is no part of a bare machine
                yield Skipped(f"precision: {spec.name}, {name}", error.message)
                continue
            yield from _precise(name, spec, single, lambda o=own, t=tuning: lab.session(o, t), sizes, bar)  # type: ignore[misc]


def tensorrt(lab: Lab) -> Report:
    """The same with TensorRT, where it loads; the last check, since it builds engines for as long as it likes."""
    if why := "nothing stands for it on the CPU" if lab.rehearsal else explain(lab.facts, "tensorrt", lab.card.index):
        yield Skipped("TensorRT", why)
        return
    device, spec = parse_device(f"tensorrt:{lab.card.index}"), Registry().get(BUNDLED[-1])
    tuning = Tuning(cache=str(lab.folder))
    single = OnnxSession(spec, _CPU)
    for name in ("TensorRT, engine built", "TensorRT, engine kept"):
        yield from _precise(name, spec, single, lambda: OnnxSession(spec, device, tuning), (1, 8), 2e-2)


def _precise(
    name: str,
    spec: ModelSpec,
    single: OnnxSession,
    opened: Callable[[], OnnxSession],
    sizes: Sequence[int],
    bar: float,
) -> Report:
    """The error of one variant, and how long it takes to open and to run."""
    start = time.perf_counter()
    try:
        session = opened()
        yield Row("precision", f"{spec.name}, {name}: to open", time.perf_counter() - start, "s")
        for size in sizes:
            yield _parity(f"{spec.name}, batch {size}, {name}", spec, session, single, size, bar)
        yield Row("precision", f"{spec.name}, {name}", session.time(1), "ms")
        session.close()
    except FramelaneError as error:
        yield Row("precision", f"{spec.name}, {name}: {error.message}", float("nan"), "", "it runs", False)


def graphs(lab: Lab) -> Report:
    """CUDA graphs against launching kernel by kernel; a session with graphs proves itself when it is warmed."""
    for spec in lab.models:
        plain = lab.session(spec)
        yield Row("graphs", f"{spec.name}, off", plain.time(1), "ms")
        plain.close()
        try:
            recorded = lab.session(spec, Tuning(graphs=True))
            recorded.warm_up()
            yield Row("graphs", f"{spec.name}, on", recorded.time(1), "ms", "follows its inputs", True)
            recorded.close()
        except FramelaneError as error:
            yield Row("graphs", f"{spec.name}: {error.message}", float("nan"), "", "follows its inputs", False)


def overlap(lab: Lab) -> Report:
    """Gathering the next batch while one runs, against one after the other; a slot takes the faster."""
    for spec in lab.models:
        session = lab.session(spec)
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


def slots(lab: Lab) -> Report:
    """1, 2, 4, 8 processes on the card: throughput of all, p95 of a run, memory of each."""
    spec = lab.heaviest
    for count in _SLOTS:
        budget = arena_budget(lab.memory, count, 1)
        before = lab.free_memory()
        with _loops(lab, spec, count, budget) as tallies:
            window = measure({}, tallies, _WINDOW_S)
            after = lab.free_memory()
        case = f"{spec.name}, {count} slot(s)"
        yield Row("slots", case, window.fps, "runs/s")
        yield Row("slots", case, window.percentile(95), "ms p95")
        yield Row("slots", case, (before - after) / 2**20 / count, "MiB each")
        lab.say(f"{case}: {window.fps:.0f} runs/s")


def server(lab: Lab) -> Report:
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
        status = running.get_json("/v1/status")
        alone = stage.load_window(running, clients=1, pause_ms=20)
    with _loops(lab, spec, 1, 0) as tallies:
        raw_alone = measure({}, tallies, _ALONE_S).percentile(50)
    used, share = status["device"]["used"], loaded.fps / raw
    yield Row("server", f"device used: {used}", float(used == lab.card.name), "", "as asked for", used == lab.card.name)
    yield Row("server", f"raw loop, two processes, batch {best}", raw, "items/s")
    yield Row("server", f"through the server, {pipeline}", loaded.fps, "fps", "> 0", loaded.fps > 0)
    yield lab.held(
        Row("server", "server ÷ raw loop", share, "×", "≥ 0.9, or the CPU is the limit", share >= _SHARE_OF_RAW)
    )
    seen = {card["index"]: card.get("utilisation") for card in status["gpus"]}  # as of the last second of the load
    if (busy := seen.get(lab.card.index)) is None:
        yield Skipped("server: card busy under load", "no card" if lab.rehearsal else "NVML does not tell it")
    else:
        yield Row("server", "card busy under load", busy, "of the time", "≥ 0.9", busy >= _BUSY)
    for group in ("gateway", "worker", "slot", "generator"):
        if group in loaded.use:
            yield Row("server", f"cores used by {group}", loaded.use[group].cpu / loaded.seconds, "cores")
    extra = alone.percentile(50) - raw_alone
    yield lab.held(
        Row("server", "one client alone, p50 above the raw loop's", extra, "ms", "≤ 3", extra <= _MOST_EXTRA_MS)
    )


class Check(NamedTuple):
    """A check by name; ``needs`` is "cpu" or "card". With less than ``seconds`` left, an estimate, it is not begun."""

    name: str
    needs: str
    run: Callable[[Lab], Report]
    seconds: float = 0.0


CHECKS = (
    Check("session", "cpu", session_overhead),
    Check("gather", "cpu", gather_cost),
    Check("parity of batches", "cpu", batch_parity),
    Check("precision", "card", precision, 60),
    Check("batches", "cpu", batches, 40),
    Check("graphs", "card", graphs, 30),
    Check("overlap", "card", overlap, 20),
    Check("slots", "card", slots, 80),
    Check("server", "card", server, 60),
    Check("TensorRT", "card", tensorrt, 90),
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
    """The model in half precision. Raises ModelError without onnx."""
    path = folder / spec.name / "model.fp16.onnx"
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        runtime.write_half(spec.path, path)
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
