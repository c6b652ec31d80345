"""Run by hand: what each stage of face_mesh costs, and how far reduced decoding and tracking move the landmarks.

python tests/models/measure_face_mesh.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np

from framelane.loadtests.clips import Clip, moving_face
from framelane.models.blazeface import find_faces
from framelane.models.face_mesh import FaceMesh, View, _ahead, _square
from framelane.models.images import crop, letterbox, uncrop
from framelane.models.inline import Inline
from framelane.models.pipeline import Frame, load_pipeline
from framelane.models.registry import Registry
from framelane.models.tracking import Place, Track, recall, remember
from framelane.preprocess.decode import ImageDecoder

DECODER = ImageDecoder()
SIZES = ((640, 480), (1280, 720), (320, 240))


def runner(**options: Any) -> Inline:
    return Inline(load_pipeline("face_mesh", options), Registry([]), DECODER)


def answers(run: Inline, frames: tuple[bytes, ...]) -> Iterator[tuple[np.ndarray, bytes]]:
    """Landmarks of each frame, NaN where no face was found, and the lane's state after it."""
    state = b""
    for data in frames:
        result, state = run(data, state)
        faces = result["faces"]
        yield (faces[0]["landmarks"] if faces else np.full((468, 3), np.nan)), state


def errors(run: Inline, clip: Clip, plain: list[np.ndarray], step: int = 1) -> str:
    """Distances to ``plain`` in percent of the face's width: mean, 95th percentile, worst frame's mean; misses."""
    frames, truth = clip.frames[::step], plain[::step]
    found = [landmarks for landmarks, _ in answers(run, frames)]
    width = [np.ptp(points[:, 0]) for points in truth]
    off = [100 * np.hypot(*(a - b)[:, :2].T) / w for a, b, w in zip(found, truth, width, strict=True)]
    missed = sum(bool(np.isnan(one).any()) for one in off)
    seen = np.array([one for one in off if not np.isnan(one).any()])
    worst = seen.mean(axis=1).max()
    return f"mean {seen.mean():.2f} %, p95 {np.percentile(seen, 95):.2f} %, worst frame {worst:.2f} %, {missed} missed"


def measure_accuracy() -> None:
    print("distance to plain (full decoding, no tracking) in % of the face's width")
    plain, reduced = runner(scaled_decoding=False), runner()
    tracked, both = runner(scaled_decoding=False, tracking=True), runner(tracking=True)
    for size in SIZES:
        for seed, motion in ((0, 1.0), (1, 2.0)):
            clip = moving_face(*size, seed=seed, motion=motion)
            truth = [landmarks for landmarks, _ in answers(plain, clip.frames)]
            print(f"{size[0]}x{size[1]} motion {motion}")
            print("  reduced          ", errors(reduced, clip, truth))
            for step in (1, 3):
                print(f"  tracked  {30 // step} fps  ", errors(tracked, clip, truth, step))
            print("  both     30 fps  ", errors(both, clip, truth))


def micros(work: Callable[[], Any], times: int = 300) -> float:
    """Median microseconds."""
    work()
    taken = []
    for _ in range(times):
        start = time.perf_counter_ns()
        work()
        taken.append(time.perf_counter_ns() - start)
    return float(np.median(taken)) / 1e3


def measure_stages() -> None:
    clip = moving_face()
    data = memoryview(clip.frames[0])
    run = runner()
    detector, mesh = run.models
    frame = Frame(data, 0, DECODER)
    view = View(frame, True)
    view.open()
    out, face = np.zeros((128, 128, 3), np.uint8), np.zeros((192, 192, 3), np.uint8)
    port: Any = detector._bound()
    port.stage(0, (letterbox(view.image, out),))
    scores, boxes = port.run((0,))[0]
    row, score = find_faces(scores, boxes, 0.0, 1)[0]
    square = _square(row, view)
    crop(view.image, square.scaled(1 / view.factor), face)
    landmarks_port: Any = mesh._bound()
    landmarks_port.stage(0, (face,))
    points, _ = landmarks_port.run((0,))[0]
    place = Place(square, score)
    state = remember(Track((640, 480), 0, [place]))
    nobody = np.full_like(scores, -9)
    print("microseconds, median, 640x480, one core")
    for name, work in {
        "header": lambda: DECODER.size(data),
        "decode full": lambda: DECODER.decode(data),
        "decode 1/2": lambda: DECODER.decode(data, (320, 240)),
        "letterbox 128": lambda: letterbox(view.image, out),
        "BlazeFace": lambda: port.run((0,)),
        "find_faces, one face": lambda: find_faces(scores, boxes, 0.0, 1),
        "find_faces, nobody": lambda: find_faces(nobody, boxes, 0.0, 1),
        "square of a row": lambda: _square(row, view),
        "crop 192": lambda: crop(view.image, square.scaled(1 / view.factor), face),
        "landmarks": lambda: landmarks_port.run((0,)),
        "uncrop": lambda: uncrop(points, square, 192),
        "next square": lambda: _ahead(place, points),
        "state": lambda: recall(remember(Track((640, 480), 0, [place])), (640, 480)),
    }.items():
        print(f"  {name:22}{micros(work):8.1f}")
    print(f"  {len(state)} bytes of state")


def measure_whole() -> None:
    frames = moving_face().frames
    print("whole pipeline in this process, frames per second")
    for name, options in {
        "full decoding": {"scaled_decoding": False},
        "default": {},
        "tracking": {"tracking": True},
        "echo": None,
    }.items():
        run = runner(**options) if options is not None else Inline(load_pipeline("echo"), Registry([]), DECODER)
        _ = [run(data) for data in frames[:10]]
        state, start = b"", time.perf_counter()
        for data in frames * 3:
            _, state = run(data, state)
        print(f"  {name:16}{3 * len(frames) / (time.perf_counter() - start):8.0f}")


if __name__ == "__main__":
    cv2.setNumThreads(1)
    assert FaceMesh.models()
    measure_stages()
    measure_whole()
    measure_accuracy()
