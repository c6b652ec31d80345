"""How far ``face_mesh`` with tracking and scaled decoding lies from the plain pipeline, frame by frame, as JSON.

``python -m framelane.loadtests.legacy.agreement`` runs both over clips of a moving face. The error of a frame is the
mean distance of its 468 landmarks (x and y), over the width of the face: that of the plain landmarks' bounds. A frame
counts as tracked when the detector was not asked for it.
"""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from framelane.loadtests.clips import moving_face
from framelane.loadtests.legacy.bare import inline

Floats = npt.NDArray[np.float32]


def error_percent(plain: Floats, tracked: Floats) -> float:
    """The error of one face: landmarks [468, 3] against landmarks, in percent of the face's width."""
    width = plain[:, 0].max() - plain[:, 0].min()
    return float(100 * np.linalg.norm(plain[:, :2] - tracked[:, :2], axis=1).mean() / width)


def compare(seeds: int, frames: int, fps: float, motion: float) -> dict[str, Any]:
    """Run both pipelines over clips of these seeds, at this rate, and sum up."""
    plain = inline("face_mesh", {"tracking": False, "scaled_decoding": False})
    tracked = inline("face_mesh", {"tracking": True, "scaled_decoding": True})
    errors: list[float] = []
    differing = skipped = count = 0
    for seed in range(seeds):
        clip = moving_face(frames=frames, fps=fps, seed=seed, motion=motion)
        state = b""
        for data in clip.frames:
            expected, (found, state) = plain(data)[0]["faces"], tracked(data, state)
            faces = found["faces"]
            skipped += any(face["tracked"] for face in faces)
            differing += len(faces) != len(expected)
            pairs = zip(expected, faces, strict=False)  # of frames with another number, those that both have
            errors += [error_percent(one["landmarks"], other["landmarks"]) for one, other in pairs]
            count += 1
    return {
        "frames": count,
        "fps": fps,
        "mean_error_percent": round(float(np.mean(errors)), 3),
        "p95_error_percent": round(float(np.percentile(errors, 95)), 3),
        "max_error_percent": round(float(np.max(errors)), 3),
        "differing_percent": round(100 * differing / count, 2),
        "tracked_percent": round(100 * skipped / count, 2),
    }


@click.command(help=__doc__)
@click.option("--clips", default=4, show_default=True, help="how many, each with its own motion and background")
@click.option("--frames", default=150, show_default=True, help="of each clip")
@click.option("--fps", default=30.0, show_default=True, help="frames per second of the camera")
@click.option("--motion", default=1.0, show_default=True, help="0 holds still, 1 talks and moves, 2 is restless")
def main(clips: int, frames: int, fps: float, motion: float) -> None:
    """Entry point of the process."""
    print(json.dumps(compare(clips, frames, fps, motion)))


if __name__ == "__main__":
    main()
