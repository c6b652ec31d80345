"""Logs: one line per event, no floods, and no record that makes the logging call itself fail."""

import logging
from collections.abc import Callable

import pytest

from framelane.preprocess import logs
from framelane.preprocess.logs import RepeatFilter, set_up_logs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def record(
    message: object = "it failed: %s", *args: object, level: int = logging.ERROR, error: Exception | None = None
) -> logging.LogRecord:
    info = (type(error), error, None) if error else None
    return logging.LogRecord("framelane.test", level, "file", 1, message, args, info)


def test_a_record_is_written_once_per_interval_and_then_says_how_many_were_left_out(
    clock: Callable[[float], None],
) -> None:
    repeats = RepeatFilter()
    assert [repeats.filter(record("failed: %s", number)) for number in range(4)] == [True, False, False, False]
    clock(10.0)
    later = record("failed: %s", 4)
    assert repeats.filter(later)
    assert later.getMessage() == "failed: 4 (3 more like this were left out)"
    clock(10.0)
    again = record("failed: %s", 5)
    assert repeats.filter(again)
    assert again.getMessage() == "failed: 5"


def test_records_of_other_kinds_are_not_held_back(clock: Callable[[float], None]) -> None:
    repeats = RepeatFilter()
    kinds = [record("a"), record("b"), record("a", error=ValueError()), record("a", error=KeyError())]
    assert all(repeats.filter(kind) for kind in kinds)
    assert not any(repeats.filter(kind) for kind in kinds)


def test_what_is_less_than_a_warning_is_never_held_back(clock: Callable[[float], None]) -> None:
    repeats = RepeatFilter()
    assert all(repeats.filter(record("started", level=logging.INFO)) for _ in range(10))


def test_ever_new_kinds_do_not_grow_the_memory(clock: Callable[[float], None]) -> None:
    repeats = RepeatFilter()
    for number in range(10_000):
        assert repeats.filter(record(f"kind {number}"))
    assert len(repeats._seen) <= 256


def test_a_message_that_cannot_be_hashed_is_written_all_the_same(clock: Callable[[float], None]) -> None:
    """Libraries log whatever they have; a filter that raises would make their logging call raise."""
    repeats = RepeatFilter()
    assert repeats.filter(record({"not": "hashable"}))
    assert not repeats.filter(record({"not": "hashable"}))


def test_an_exception_logged_as_message_is_not_kept_alive(clock: Callable[[float], None]) -> None:
    """It holds its traceback, whose frames hold pictures."""
    repeats = RepeatFilter()
    error = ValueError("the same text")
    assert repeats.filter(record(error))
    assert not any(part is error for kind in repeats._seen for part in kind)
    assert not repeats.filter(record(ValueError("the same text")))


def test_setting_up_writes_one_line_per_event_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        for handler in handlers:
            root.removeHandler(handler)
        set_up_logs("WARNING")
        log = logging.getLogger("framelane.test")
        log.info("not shown")
        for _ in range(3):
            log.warning("slot-%d ended", 1)
    finally:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
            handler.close()
        for handler in handlers:
            root.addHandler(handler)
        root.setLevel(level)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "WARNING" in line
    assert line.endswith("slot-1 ended")
