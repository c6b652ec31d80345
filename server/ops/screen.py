"""What `framelane top` shows of a document of /v1/ops (``doors/ops.py``): rich renderables, and no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR = 16
_NARROW = 90
_WARM, _HOT = 0.7, 0.87
_JOINED = "\u00a0"
_KINDS = {"gateway": 0, "worker": 1, "audit": 2, "slot": 3}
_STATE_STYLES = {"active": "green", "standby": "cyan", "parked": "cyan", "audit": "magenta", "starting": "yellow",
                 "draining": "yellow", "failed": "bold red"}  # fmt: skip
_CHARTS = (
    ("goodput_per_s", "goodput", "/s", None),
    ("p95_ms", "p95", "ms", None),
    ("delivery", "delivery", "%", 1.0),
    ("slots_busy", "slots", "%", 1.0),
    ("workers_busy", "workers", "%", 1.0),
    ("gateway_busy", "event loop", "%", 1.0),
)

Document = Mapping[str, Any]


def screen(document: Document, columns: Mapping[str, Sequence[Any]], url: str, width: int) -> RenderableType:
    """The whole screen.

    Args:
        document: of /v1/ops.
        columns: of /v1/ops/history.
        url: of the server.
        width: of the terminal, in characters.
    """
    return Group(
        _head(document, url),
        _diagnosis(document),
        _figures(document["live"]),
        _processes(document["processes"], width),
        _charts(columns, document["live"], width),
    )


def bar(share: float, cells: int = _BAR) -> Text:
    """A share as a bar: green, and yellow or red where it gets tight."""
    share = min(1.0, max(0.0, share))
    eighths = round(share * cells * 8)
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[rest] if rest else "")
    style = "red" if share >= _HOT else "yellow" if share >= _WARM else "green"
    return Text.assemble((filled, style), ("·" * (cells - len(filled)), "bright_black"), f" {100 * share:3.0f} %")


def sparkline(values: Sequence[float | None], cells: int, top: float | None = None) -> str:
    """The last values as blocks, from 0 to ``top`` (or the largest of them); a gap where there is none."""
    shown = list(values)[-cells:]
    highest = top or max((value for value in shown if value is not None), default=0.0) or 1.0
    steps = len(_BLOCKS) - 1
    blocks = [" " if value is None else _BLOCKS[round(min(1.0, value / highest) * steps)] for value in shown]
    return "".join(blocks).rjust(cells)


def _head(document: Document, url: str) -> RenderableType:
    status, table = document["status"], Table.grid(expand=True)
    table.add_column(ratio=1)
    table.add_column(justify="right")
    device = status["device"]
    left = Text.assemble(("Framelane ", "bold"), (str(status["version"]), "bright_black"), "  ", status["pipeline"])
    left.append(f" on {device['used']}", "yellow" if device["simulated"] else "")
    right = Text(f"{url}  up {duration(status['uptime_s'])}", "bright_black")
    table.add_row(left, right)
    return table


def _diagnosis(document: Document) -> RenderableType:
    found, status = document["diagnosis"], document["status"]
    style = "green" if found["limit"] == "idle" and status["ready"] else "yellow" if status["ready"] else "red"
    lines = [Text(found["sentence"], "bold")]
    if found["advice"]:
        lines.append(Text(f"→ {found['advice']}", style))
    if status["draining"]:
        lines.append(Text("This replica is draining.", "bold red"))
    lines += [Text(f"{place} is given up: {why}", "bold red") for place, why in status["given_up"].items()]
    return Panel(Group(*lines), border_style=style, padding=(0, 1))


def _figures(live: Document | None) -> RenderableType:
    if live is None:
        return Text("Nothing has been measured yet.", "bright_black")
    waiting = f" + {live['waiting']} waiting" if live["waiting"] else ""
    pairs = [
        ("clients", f"{live['clients']}{waiting}"),
        ("received", f"{live['received_per_s']:.0f}/s"),
        ("goodput", f"{live['goodput_per_s']:.0f}/s"),
        ("delivery", percent(live["delivery"])),
        ("p50", milliseconds(live["p50_ms"])),
        ("p95", milliseconds(live["p95_ms"])),
        ("p99", milliseconds(live["p99_ms"])),
        ("loop lag p99", milliseconds(live["loop_lag_ms"]["p99"])),
    ]
    text = Text(" ")
    for name, value in pairs:
        text.append(f"{name}{_JOINED}", "bright_black").append(value.replace(" ", _JOINED), "bold").append("   ")
    stages = [(stage, value) for stage, value in live["stages_ms"].items() if value is not None]
    lines = [text, _line("time", [(stage.replace("_", " "), milliseconds(value)) for stage, value in stages])]
    drops = [(reason.replace("_", " "), f"{rate:.1f}/s") for reason, rate in live["drops_per_s"].items() if rate]
    lines.append(_line("drops", drops or [("none", "")], "yellow" if drops else ""))
    return Group(*lines)


def _line(name: str, pairs: Sequence[tuple[str, str]], style: str = "") -> Text:
    text = Text.assemble(" ", (f"{name}: ", "bright_black"))
    for index, (label, value) in enumerate(pairs):
        text.append("  ·  " if index else "", "bright_black").append(
            f"{label} {value}".rstrip().replace(" ", _JOINED), style
        )
    return text


def _processes(processes: Sequence[Document], width: int) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="bright_black", expand=False)
    narrow = width < _NARROW
    for name in ("process", "state", "busy"):
        table.add_column(name)
    for name in ("cores", "frames") if narrow else ("cores", "waits for a core", "turns", "frames", "memory"):
        table.add_column(name, justify="right")
    for process in sorted(processes, key=_order):
        row: list[RenderableType] = [
            process["id"],
            Text(process["state"], _STATE_STYLES.get(process["state"], "")),
            bar(process["busy"]),
            f"{process['cpu']:.2f}",
        ]
        if not narrow:
            row += [percent(process["core_wait"]), f"{process['done_per_s']:.0f}/s"]
        row.append(str(process["frames"]))
        if not narrow:
            row.append(mebibytes(process["pss_bytes"]))
        table.add_row(*row)
    return table


def _order(process: Document) -> tuple[int, str]:
    return _KINDS.get(process["kind"], len(_KINDS)), process["id"]


def _charts(columns: Mapping[str, Sequence[Any]], live: Document | None, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    cells = max(10, min(120, width - 26))
    for column, name, unit, top in _CHARTS:
        values = list(columns.get(column, ()))
        last = next((value for value in reversed(values) if value is not None), None)
        scaled = "–" if last is None else f"{100 * last:.0f} %" if unit == "%" else f"{last:.0f} {unit}"
        table.add_row(Text(f" {name}", "bright_black"), Text(sparkline(values, cells, top), "cyan"), f"{scaled:>8}")
    minutes = Text(f" the last {len(columns.get('at', ())) * 5 / 60:.0f} minutes, newest right", "bright_black")
    return Group(Text(""), table, minutes)


def duration(seconds: float) -> str:
    """ "3 h 12 min", "4 min", "12 s"."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 48:
        return f"{hours // 24} d"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


def percent(share: float | None) -> str:
    """A share for people."""
    return "–" if share is None else f"{100 * share:.1f} %" if share > 0.9 else f"{100 * share:.0f} %"


def milliseconds(value: float | None) -> str:
    """Milliseconds for people."""
    return "–" if value is None else f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


def mebibytes(value: int | None) -> str:
    """Memory for people."""
    return "–" if value is None else f"{value / 2**20:.0f} MiB"
