"""Logs: one line per event, no floods, and no record that makes the logging call itself fail."""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator

import pytest

from framelane.preprocess import logs
from framelane.preprocess.logs import LEVELS_PATTERN, RepeatFilter, set_up_logs


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


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    """Lines on stderr; the logs of the test run are put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for handler in handlers:
        root.removeHandler(handler)

    def lines() -> list[str]:
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()

    yield lines
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    for name in ("framelane.lanes", "framelane.server.lanes", "lanes", "framelane.preprocess.lanes", "websockets"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_setting_up_writes_one_line_per_event_on_stderr(written: Callable[[], list[str]]) -> None:
    set_up_logs("WARNING;text")
    log = logging.getLogger("framelane.test")
    log.info("not shown")
    for _ in range(3):
        log.warning("slot-%d ended", 1)
    (line,) = written()
    assert "WARNING" in line
    assert line.endswith("slot-1 ended")


def test_where_no_terminal_is_a_line_is_a_json_object(written: Callable[[], list[str]]) -> None:
    set_up_logs("INFO;auto")
    log = logging.getLogger("framelane.test")
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        log.exception("frame of %s failed", "Zoë", extra={"lane": "abc", "seq": 7})
    (line,) = written()
    event = json.loads(line)
    assert (event["level"], event["logger"], event["message"]) == ("error", "framelane.test", "frame of Zoë failed")
    assert (event["lane"], event["seq"], event["pid"]) == ("abc", 7, os.getpid())
    assert "ValueError: of two\nlines" in event["exception"]
    assert event["time"].endswith("Z")
    assert "Zoë" in line, "grep shall find what people read"


def test_ids_of_a_frame_are_in_the_text_too(written: Callable[[], list[str]]) -> None:
    set_up_logs("INFO;text")
    logging.getLogger("framelane.test").warning("it failed", extra={"request": 3, "seq": 7})
    assert written()[0].endswith("it failed [seq=7 request=3]")


def test_levels_are_set_module_by_module(written: Callable[[], list[str]]) -> None:
    set_up_logs("WARNING,lanes=DEBUG;text")
    logging.getLogger("framelane.server.lanes.exchange").debug("shown")
    logging.getLogger("framelane.pool").info("not shown")
    (line,) = written()
    assert line.endswith("shown")


def test_libraries_do_not_write_what_they_send_unless_they_are_asked(written: Callable[[], list[str]]) -> None:
    set_up_logs("DEBUG;text")
    logging.getLogger("websockets.server").debug("> BINARY 00 01 02")
    assert written() == []
    set_up_logs("DEBUG,websockets=DEBUG;text")
    logging.getLogger("websockets.server").debug("> BINARY 00 01 02")
    assert len(written()) == 1


@pytest.mark.parametrize("text", ["INFO", "DEBUG,lanes=INFO", "ERROR,lanes=DEBUG,server.doors=WARNING"])
def test_levels_that_can_be_given(text: str) -> None:
    assert re.search(LEVELS_PATTERN, text)


@pytest.mark.parametrize(
    "text", ["", "LOUD", "info", "lanes=DEBUG", "INFO,lanes", "INFO,lanes=LOUD", "INFO,=DEBUG", "INFO;json"]
)
def test_levels_that_cannot(text: str) -> None:
    assert not re.search(LEVELS_PATTERN, text)
