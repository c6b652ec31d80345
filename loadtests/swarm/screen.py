"""How a run goes, for who watches: one line that is renewed, or one every ten seconds where there is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .run import Progress
from .shapes import Stage

_EVERY_S = 10.0
_LOCUSTS_S = 3.0  # what a level takes besides: Locust looks once a second, and greetings settle


@contextlib.contextmanager
def line_of_progress(out: Console, whole: float, fps: float) -> Iterator[Callable[[Progress], None]]:
    """Yields what is to be told, about twice a second; ``whole`` are the seconds that it will take."""
    hint = _Hint(out, fps)
    if out.is_terminal:
        with Live(Text(""), console=out, transient=True, refresh_per_second=4) as live:

            def show(progress: Progress) -> None:
                live.update(Text(line(progress, whole)))
                hint.look(progress)

            yield show
        return
    printed_at = 0.0

    def write(progress: Progress) -> None:
        nonlocal printed_at
        if progress.elapsed - printed_at >= _EVERY_S:
            printed_at = progress.elapsed
            out.print(f"[dim]{line(progress, whole)}[/]")
        hint.look(progress)

    yield write


class _Hint:
    """Says once that users wait for a place, while there is still time to start the server anew."""

    def __init__(self, out: Console, fps: float) -> None:
        self._out = out
        self._fps = fps
        self._said = False

    def look(self, progress: Progress) -> None:
        if progress.waiting and not self._said:
            self._said = True
            cure = f"start the server with --client-fps {self._fps:g} or --max-clients"
            self._out.print(f"[yellow]{progress.waiting} users are told to wait for a place: {cure}[/]")


def line(progress: Progress, whole: float) -> str:
    """One moment."""
    counts = progress.counts
    waiting = f"  {progress.waiting} waiting" if progress.waiting else ""
    return (
        f"{progress.elapsed:4.0f} of about {whole:.0f} s  {progress.users or '…'} users{waiting}  "
        f"{progress.rate:5.0f} results/s  p50 {progress.p50_ms:4.0f} ms  p95 {progress.p95_ms:4.0f} ms  "
        f"dropped {counts.dropped}  errors {counts.errors}"
    )


def described(stages: Sequence[Stage]) -> str:
    """What is going to be done."""
    return "levels: " + ", ".join(f"{stage.users} users for {stage.seconds:g} s" for stage in stages)


def expected_s(stages: Sequence[Stage]) -> float:
    """About how many seconds it will take."""
    before, seconds = 0, 0.0
    for stage in stages:
        seconds += abs(stage.users - before) / stage.rate + stage.seconds + _LOCUSTS_S
        before = stage.users
    return seconds
