"""``gpu_check`` on a machine without a card, and the card's checks with host memory in its place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from framelane.loadtests import gpu_check, gpu_checks, stage
from framelane.loadtests.gpu_check import Skipped, main
from framelane.loadtests.gpu_checks import Check, Lab, Row
from framelane.models.cuda import CardFacts, DriverFacts, HostCard
from framelane.models.devices import parse_device
from framelane.models.gpu import GpuFacts
from framelane.models.registry import ModelSpec, Registry
from framelane.models.session import OnnxSession

CPU = parse_device("cpu")
QUIET = Console(quiet=True)


def fine(_lab: Lab) -> Iterator[Row]:
    yield Row("fine", "case", 1.0, "ms")


def broken(_lab: Lab) -> Iterator[Row]:
    yield Row("broken", "first", 1.0, "ms")
    raise ValueError("no such thing")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    card = CardFacts(0, "host memory", 24 * 2**30, "0000:00:00.0", "8.9")
    return Lab(GpuFacts(driver=DriverFacts((13, 0), (card,))), CPU, tmp_path, lambda _text: None)


def test_what_cannot_be_done_is_named_with_its_reason_and_what_breaks_is_a_miss(lab: Lab) -> None:
    checks = [Check("one", "card", fine), Check("two", "cpu", broken), Check("three", "cpu", fine)]
    skipped, first, miss, last = gpu_check._run(checks, lab, "no card", QUIET)
    assert skipped == Skipped("one", "no card")
    assert (first.check, last.check) == ("broken", "fine")  # type: ignore[union-attr]
    assert isinstance(miss, Row)
    assert miss.good is False
    assert "ValueError: no such thing" in miss.case


def test_no_check_begins_when_the_time_is_over(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "_LIMIT_S", 30.0)
    checks = [Check("long", "cpu", fine, 60.0), Check("short", "cpu", fine, 10.0)]
    skipped, done = gpu_check._run(checks, lab, "", QUIET)
    assert isinstance(skipped, Skipped)
    assert skipped.check == "long"
    assert "no time left" in skipped.why
    assert isinstance(done, Row)
    monkeypatch.setattr(gpu_check, "_LIMIT_S", -1.0)
    (late,) = gpu_check._run([Check("late", "cpu", fine)], lab, "", QUIET)
    assert isinstance(late, Skipped)


def test_all_checks_of_a_card_fit_into_the_six_minutes() -> None:
    assert sum(check.seconds for check in gpu_checks.CHECKS if check.name != "TensorRT") < gpu_check._LIMIT_S < 360


def test_the_command_compares_batches_and_says_what_it_left_out(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    arguments = ["--device", "cuda:99", "--only", "parity of batches", "--only", "slots", "-o", str(file)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert len(report["rows"]) == 16
    assert all(row["good"] for row in report["rows"])
    assert [check["check"] for check in report["skipped"]] == ["slots"]
    assert report["card_used"] is False


def test_a_rehearsal_goes_through_every_check_of_a_card_and_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lab, "models", property(lambda _lab: [Registry().get("blazeface_short")]))
    for module, name, value in (
        (gpu_checks, "_SLOTS", (1, 2)),
        (gpu_checks, "_REPEATS", 5),
        (gpu_checks, "_OVERLAPPED", 5),
        (gpu_checks, "_WINDOW_S", 0.4),
        (gpu_checks, "_ALONE_S", 0.2),
        (stage, "WARM_UP_S", 0.2),
    ):
        monkeypatch.setattr(module, name, value)
    names = [check.name for check in gpu_checks.CHECKS if check.needs == "card"]
    file = tmp_path / "out.json"
    only = [argument for name in names for argument in ("--only", name)]
    done = CliRunner().invoke(main, ["--device", "cpu", *only, "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert "REHEARSAL on the CPU: no card was used" in done.output
    report = json.loads(file.read_text())
    assert (report["rehearsal"], report["card_used"]) == (True, False)
    assert {row["check"] for row in report["rows"]} == {*names, "parity"} - {"TensorRT"}
    assert {row["case"]: row["value"] for row in report["rows"]}["device used: cpu"] == 1
    assert [row for row in report["rows"] if "≥ 0.9" in row["bar"]] == []
    assert [check["check"] for check in report["skipped"]] == ["server: card busy under load", "TensorRT"]


class Stand(OnnxSession):
    """A session whose card is host memory."""

    def __init__(self, spec: ModelSpec, device: Any, tuning: Any = None, card: Any = None) -> None:
        super().__init__(spec, CPU, tuning, card or HostCard())


@pytest.mark.parametrize("name", ["precision", "graphs", "overlap"])
def test_the_checks_of_a_card_run_through(name: str, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "OnnxSession", Stand)
    monkeypatch.setattr(Lab, "models", property(lambda _lab: [Registry().get("blazeface_short")]))
    monkeypatch.setattr(gpu_checks, "_OVERLAPPED", 5)
    monkeypatch.setattr(gpu_checks, "_REPEATS", 5)
    rows = list(next(check for check in gpu_checks.CHECKS if check.name == name).run(lab))
    assert rows
    assert not [row for row in rows if row.good is False]


def test_a_batch_that_is_wrong_misses_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Stand):
        def scatter(self, batch: Any) -> None:
            super().scatter(batch)
            batch.items[-1].outputs[0][...] += 1

    spec = Registry().get("blazeface_short")
    row = gpu_checks._parity("case", spec, Wrong(spec, CPU), OnnxSession(spec, CPU), 2, 1e-4)
    assert row.good is False
