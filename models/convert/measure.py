"""Measures the ways to write the graphs, side by side on one core: makes the tables of EVIDENCE.md.

    taskset -c 1 python models/convert/measure.py [--wheel FILE] [--rounds 200]

Every variant of a model is timed in every round, a few runs each, in rotating order, so that a busy moment of the
machine hits all alike. Figures are medians over the rounds. Every variant is held to the plain one's outputs first.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from converter import PLAIN, Variant, convert
from reference import Original, crops
from sources import MODELS, FaceModel, originals
from tflite_reader import read

RUNS_PER_ROUND = 10
SHIPPED = Variant()

VARIANTS = {
    "blazeface_short": {
        "plain: as the original, transposed": PLAIN,
        "shipped": SHIPPED,
        "shipped, but Pad before a residual Add": replace(SHIPPED, residual="pad"),
        "shipped, but channels to a multiple of 8": replace(SHIPPED, channels_multiple=8),
        "shipped, but the picture transposed first": replace(SHIPPED, stem="transpose"),
    },
    "face_landmark": {
        "plain: as the original, transposed": PLAIN,
        "plain, but PRelu as two depthwise 1x1": replace(PLAIN, prelu="two_depthwise"),
        "shipped: PRelu as y + (1 - s) Relu(-y)": SHIPPED,
        "shipped, but PRelu as two depthwise 1x1": replace(SHIPPED, prelu="two_depthwise"),
        "shipped, but PRelu as y + Relu((s - 1) y) where s <= 1": replace(SHIPPED, prelu="relu_add"),
        "shipped, but PRelu nodes": replace(SHIPPED, prelu="node"),
        "shipped, but Pad before a residual Add": replace(SHIPPED, residual="pad"),
        "shipped, but the picture transposed first": replace(SHIPPED, stem="transpose"),
    },
}


def main() -> None:
    """Parse the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print(f"onnxruntime {onnxruntime.__version__}, {options.rounds} rounds of {RUNS_PER_ROUND} runs\n")
    for name, data in originals(options.wheel).items():
        _measure(next(model for model in MODELS if model.name == name), data, options.rounds)


def _measure(model: FaceModel, data: bytes, rounds: int) -> None:
    original = Original(model, data)
    image = crops(model.name, original.side)[:1]
    graph = read(data)
    graphs = {
        label: convert(graph, model.source, variant).SerializeToString()
        for label, variant in VARIANTS[model.name].items()
    }
    sessions = {label: _session(onnx) for label, onnx in graphs.items()}
    _check_equal(sessions, image)
    runs: dict[str, Callable[[], object]] = {
        label: lambda session=session: session.run(None, {"image": image}) for label, session in sessions.items()
    }
    original.run(image[0])
    runs["LiteRT with XNNPACK, from scaled float32"] = original.interpreter.invoke
    _print_times(model.name, _race(runs, rounds))
    shipped = next(label for label, variant in VARIANTS[model.name].items() if variant == SHIPPED)
    plain = next(label for label, variant in VARIANTS[model.name].items() if variant == PLAIN)
    _print_profiles(_profile(graphs[plain], image), _profile(graphs[shipped], image))


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return options


def _session(onnx: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(onnx, _options(), providers=["CPUExecutionProvider"])


def _check_equal(sessions: dict[str, onnxruntime.InferenceSession], image: np.ndarray) -> None:
    results = {label: session.run(None, {"image": image}) for label, session in sessions.items()}
    first = next(iter(results.values()))
    for label, outputs in results.items():
        for found, expected in zip(outputs, first, strict=True):
            if not np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max():
                raise SystemExit(f"{label} computes something else")


def _race(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds per run of each."""
    times: dict[str, list[float]] = defaultdict(list)
    labels = list(runs)
    for label in labels:
        _time(runs[label])
    for turn in range(rounds):
        shift = turn % len(labels)
        for label in labels[shift:] + labels[:shift]:
            times[label].append(_time(runs[label]))
    return {label: statistics.median(times[label]) * 1e3 for label in labels}


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(RUNS_PER_ROUND):
        run()
    return (time.perf_counter() - start) / RUNS_PER_ROUND


def _print_times(name: str, medians: dict[str, float]) -> None:
    print(f"| {name} | ms |\n|---|---|")
    for label, milliseconds in medians.items():
        print(f"| {label} | {milliseconds:.3f} |")
    print()


def _profile(onnx: bytes, image: np.ndarray, runs: int = 100) -> dict[str, tuple[int, float]]:
    """Nodes and microseconds per run, by operator, of the graph that ONNX Runtime makes of this one."""
    options = _options()
    options.enable_profiling = True
    nodes: dict[str, list[int]] = defaultdict(list)
    kinds: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        for _ in range(runs):
            session.run(None, {"image": image})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            nodes[event["name"]].append(event["dur"])
            kinds[event["name"]] = event["args"]["op_name"]
    table: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for node, durations in nodes.items():
        count, total = table[kinds[node]]
        table[kinds[node]] = (count + 1, total + statistics.median(durations))
    return dict(table)


def _print_profiles(plain: dict[str, tuple[int, float]], shipped: dict[str, tuple[int, float]]) -> None:
    print("| operator as run | plain: nodes | µs | shipped: nodes | µs |\n|---|---|---|---|---|")
    for operator in sorted(plain | shipped, key=lambda operator: -plain.get(operator, (0, 0.0))[1]):
        (before, before_us), (after, after_us) = plain.get(operator, (0, 0.0)), shipped.get(operator, (0, 0.0))
        print(f"| {operator} | {before} | {before_us:.0f} | {after} | {after_us:.0f} |")
    print()


if __name__ == "__main__":
    main()
