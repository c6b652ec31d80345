"""`framelane config explain`: each value, where it came from, and what is wrong with it."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from framelane.server.cli import main


def explain(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, ["config", "explain", *arguments], env=variables)


def test_each_setting_has_value_origin_and_help(tmp_path: Path) -> None:
    file = tmp_path / "framelane.toml"
    file.write_text("deadline_ms = 250\nport = 1\n")
    done = explain("--config", str(file), "--port", "9000", "--json", FRAMELANE_GRACE="3")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["settings"]
    assert (told["port"]["value"], told["port"]["from"]) == (9000, "command line")
    assert (told["deadline_ms"]["value"], told["deadline_ms"]["from"]) == (250, str(file))
    assert (told["grace"]["value"], told["grace"]["from"]) == (3.0, "FRAMELANE_GRACE")
    assert told["fairness"]["from"] == "default"
    assert all(setting["help"] for setting in told.values())


def test_what_was_left_open_is_told_as_chosen_with_the_reason() -> None:
    done = explain("--device", "sim:8")
    line = next(line for line in done.output.splitlines() if line.startswith("active_slots"))
    assert line.split()[1] == "1"
    assert "chosen" in line
    assert "SIMULATED" in done.output


def test_changed_leaves_the_defaults_out() -> None:
    done = explain("--changed", "--port", "9000")
    assert "9000" in done.output
    assert "stall_limit" not in done.output


def test_secrets_are_not_shown_anywhere() -> None:
    for form in ("--all", "--json"):
        done = explain(form, FRAMELANE_ADMIN_TOKEN="open sesame")
        assert "FRAMELANE_ADMIN_TOKEN" in done.output
        assert "sesame" not in done.output


def test_what_cannot_work_is_warned_of() -> None:
    done = explain("--device", "sim:600")
    assert done.exit_code == 0
    assert "no result can be in time" in done.output


def test_what_serve_would_refuse_is_refused_here_too() -> None:
    done = explain("--credits", "64", "--workers", "200", "--max-frame-bytes", "67108864")
    assert done.exit_code == 3
    assert "refused: " in done.output
    wrong = explain("--deadline-ms", "0")
    assert (wrong.exit_code, "deadline_ms" in wrong.stderr) == (3, True)
