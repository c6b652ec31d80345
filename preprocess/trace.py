"""A timeline of what every process does, for chrome://tracing and ui.perfetto.dev (``framelane serve --trace FILE``).

Each process writes spans to a file of its own, a few hundred at a time and a bounded number in all; when the server
ends, ``merge`` makes one file of them. All times are ``time.monotonic()``, which is one clock for all processes of a
machine. Where nothing is traced there is no ``Trace``, and a frame costs a comparison with None here and there.

    lane         gateway   a frame waits for a worker        gather   slot   inputs are copied together
    worker       worker    pipeline code up to a model call  copy     slot   to the card, or back
    postprocess  worker    from outputs to the packet        run      slot   the model
    deliver      gateway   a packet is on its way out        scatter  slot   outputs are copied apart, and told

After a crash the parts are still there: ``python -m framelane.preprocess.trace FILE.parts FILE``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_MOST_SPANS = 200_000
_AT_ONCE = 512
_ROWS = ("loop", "runs")

Span = tuple[str, float, float, int, int]


class Trace:
    """The spans of this process.

    Args:
        folder: where the parts lie.
        process: its name, as in logs.
        most: spans after which nothing more is written.
    """

    def __init__(self, folder: str, process: str, most: int = _MOST_SPANS) -> None:
        self.folder = folder
        self._path = Path(folder, f"{process}-{os.getpid()}")
        self._left = most
        self._spans: list[Span] = []
        self._head = {"process": process, "pid": os.getpid()}

    def span(self, name: str, start: float, end: float, request: int = 0, row: int = 0) -> None:
        """Something took from ``start`` to ``end``. ``row`` is 0, 1 for a second thread, -1 where spans overlap."""
        if self._left <= 0:
            return
        self._left -= 1
        self._spans.append((name, start, end, request, row))
        if len(self._spans) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what has come together."""
        if not self._spans:
            return
        spans, self._spans = self._spans, []
        lines = [*([] if self._path.exists() else [self._head]), *spans]
        with self._path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def open_trace(folder: str, process: str) -> Trace | None:
    """A trace, where a folder is given; what it has is written when this process ends by itself."""
    if not folder:
        return None
    trace = Trace(folder, process)
    atexit.register(trace.flush)
    return trace


def parts_of(file: str) -> str:
    """The folder for the parts of a trace, empty; none without a file.

    Raises:
        OSError: it cannot be made.
    """
    if not file:
        return ""
    folder = Path(f"{file}.parts").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return str(folder)


def merge(folder: str, file: str) -> int:
    """Make one timeline of the parts; how many spans it has."""
    events = [event for path in sorted(Path(folder).iterdir()) for event in _events(path)]
    text = msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})
    Path(file).write_bytes(text)
    return sum(event["ph"] in "Xb" for event in events)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """One part as events of the Trace Event Format of Chromium."""
    first, *lines = path.read_bytes().splitlines()
    head = msgspec.json.decode(first)
    pid = head["pid"]
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": head["process"]}}
    for row, name in enumerate(_ROWS):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": row, "args": {"name": name}}
    for line in lines:
        try:
            name, start, end, request, row = msgspec.json.decode(line, type=Span)
        except msgspec.DecodeError:
            continue  # the process was killed while it wrote
        event = {"name": name, "cat": "frame", "pid": pid, "tid": max(0, row), "args": {"request": request}}
        if row >= 0:
            yield {**event, "ph": "X", "ts": start * 1e6, "dur": (end - start) * 1e6}
        else:  # spans that overlap have an identity of their own
            yield {**event, "ph": "b", "ts": start * 1e6, "id": f"{name}-{request}"}
            yield {**event, "ph": "e", "ts": end * 1e6, "id": f"{name}-{request}"}


if __name__ == "__main__":
    print(f"{merge(sys.argv[1], sys.argv[2])} spans in {sys.argv[2]}")
