"""What the terminal shows, from a document that was made up."""

import io

from rich.console import Console

from framelane.server.ops.screen import bar, duration, screen, sparkline

LIVE = {
    "clients": 3, "waiting": 2, "received_per_s": 30.0, "goodput_per_s": 29.0, "delivery": 0.967, "p50_ms": 9.2,
    "p95_ms": 21.0, "p99_ms": None, "loop_lag_ms": {"p50": 0.4, "p99": 3.0}, "stages_ms": {"queue": 1.0, "run": None},
    "drops_per_s": {"superseded": 1.0, "slow_reader": 0.0},
}  # fmt: skip
DOCUMENT = {
    "status": {
        "version": "1.2", "uptime_s": 4000, "pipeline": "face_mesh", "draining": False, "ready": True,
        "device": {"used": "sim:8 (SIMULATED)", "simulated": True}, "given_up": {"slot-3": "no such device"},
    },
    "diagnosis": {"limit": "slots", "sentence": "slot-bound: the active slot is 98 % busy", "advice": "another slot"},
    "live": LIVE,
    "processes": [
        {"kind": "slot", "id": "slot-0", "state": "active", "busy": 0.98, "cpu": 0.5, "core_wait": 0.0,
         "done_per_s": 29.0, "frames": 2, "pss_bytes": 64 << 20},
        {"kind": "gateway", "id": "gateway", "state": "active", "busy": 0.1, "cpu": 0.1, "core_wait": 0.0,
         "done_per_s": 0.0, "frames": 0, "pss_bytes": None},
    ],
}  # fmt: skip


def drawn(width: int, document: object = DOCUMENT) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    columns = {"at": [1, 2], "goodput_per_s": [10.0, 20.0], "p95_ms": [None, 8.0]}
    console.print(screen(document, columns, "http://localhost:8000", width))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_sentence_advice_figures_and_processes_are_there() -> None:
    text = drawn(120).replace("\u00a0", " ")
    for words in ("slot-bound: the active slot is 98 % busy", "another slot", "3 + 2 waiting", "96.7 %", "SIMULATED",
                  "superseded 1.0/s", "slot-3 is given up: no such device", "64 MiB", "up 1 h 6 min"):  # fmt: skip
        assert words in text, words
    assert text.index("gateway") < text.index("slot-0 "), "in the order of the path"


def test_no_line_is_wider_than_a_narrow_terminal() -> None:
    assert max(map(len, drawn(60).splitlines())) <= 60


def test_before_the_first_figures_it_says_so() -> None:
    assert "Nothing has been measured yet" in drawn(100, {**DOCUMENT, "live": None})


def test_a_bar_is_full_only_at_the_whole() -> None:
    assert bar(0.0, 4).plain == "····   0 %"
    assert bar(0.5, 4).plain == "██··  50 %"
    assert bar(2.0, 4).plain == "████ 100 %"
    assert {bar(share).spans[0].style for share in (0.1, 0.75, 0.95)} == {"green", "yellow", "red"}


def test_a_sparkline_shows_the_newest_values_and_gaps() -> None:
    assert sparkline([9.0, 0.0, 4.0, None, 8.0], 4) == "▁▅ █"
    assert sparkline([0.5], 3, 1.0) == "  ▅"
    assert sparkline([], 3) == "   "


def test_durations_are_short() -> None:
    assert [duration(seconds) for seconds in (12, 300, 3900, 200_000)] == ["12 s", "5 min", "1 h 5 min", "2 d"]
