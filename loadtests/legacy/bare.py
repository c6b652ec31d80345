"""The bare loop: a pipeline run in this very process on the bench's frames, without a server.

``python -m framelane.loadtests.legacy.bare --frames FILE --tally FILE`` is one of several such processes, one per core
(``bench`` starts them). What a server needs beyond this is its own cost. One process serves several lanes in turns, so
that a pipeline with state works as it does in a server.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import click
import cv2

from framelane.loadtests.generator import FrameFile
from framelane.loadtests.tally import Tally
from framelane.models.inline import Inline
from framelane.models.pipeline import load_pipeline
from framelane.models.registry import Registry
from framelane.preprocess.decode import ImageDecoder


class Lanes:
    """The clients that one bare loop serves: where each is in the clip, and its state.

    Args:
        clip: the frames.
        count: how many lanes.
        real_time: give each lane the frame that a camera would see now, rather than the clip's next.
    """

    def __init__(self, clip: FrameFile, count: int, real_time: bool) -> None:
        self._frames = clip.frames
        self._fps = clip.fps if real_time else 0.0
        self._offsets = [number * len(clip.frames) // count for number in range(count)]
        self.states = [b""] * count

    def frame(self, turn: int) -> tuple[int, bytes]:
        """The lane of a turn, and its frame."""
        lane = turn % len(self.states)
        place = int(time.perf_counter() * self._fps) if self._fps else turn // len(self.states)
        return lane, self._frames[(place + self._offsets[lane]) % len(self._frames)]


def loop(run: Inline, lanes: Lanes, tally: Tally, pause: float) -> None:
    """Run frames until the process is stopped."""
    clock, turn = time.perf_counter, 0
    tally.ready()
    while True:
        lane, data = lanes.frame(turn)
        started = clock()
        _, lanes.states[lane] = run(data, lanes.states[lane], turn)
        tally.result(clock() - started)
        turn += 1
        if pause:
            time.sleep(pause)


def inline(pipeline: str, options: dict[str, Any]) -> Inline:
    """A pipeline on the CPU with the libraries set as in the server's workers."""
    cv2.setNumThreads(1)
    return Inline(load_pipeline(pipeline, options), Registry(), ImageDecoder())


@click.command(help=__doc__)
@click.option("--pipeline", default="face_mesh", show_default=True)
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="setting of the pipeline")
@click.option("--frames", type=click.Path(exists=True, path_type=Path), required=True, help="a saved FrameFile")
@click.option("--tally", type=click.Path(exists=True, path_type=Path), required=True, help="where to count")
@click.option("--lanes", default=8, show_default=True, help="clients that this process serves in turns")
@click.option("--pause-ms", default=0.0, show_default=True, help="between a result and the next frame")
@click.option("--real-time", is_flag=True, help="take the frame that a camera would see now")
def main(
    pipeline: str, options: tuple[str, ...], frames: Path, tally: Path, lanes: int, pause_ms: float, real_time: bool
) -> None:
    """Entry point of the process."""
    run = inline(pipeline, dict(option.split("=", 1) for option in options))
    clip = FrameFile.load(frames)
    gc.freeze()
    loop(run, Lanes(clip, lanes, real_time), Tally(tally), pause_ms / 1000)


if __name__ == "__main__":
    main()
