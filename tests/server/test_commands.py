"""Commands that other packages bring: listed at once, imported when called, and clear about what is missing."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from framelane.server.cli import Elsewhere, Sections, main

BROUGHT = {name: command for name, command in main.commands.items() if isinstance(command, Elsewhere)}


def test_help_lists_them_without_importing_them():
    script = """
import json, sys
from click.testing import CliRunner
from framelane.server.cli import main
output = CliRunner().invoke(main, ["--help"]).output
print(json.dumps([output, [name for name in sys.modules if name.startswith("framelane.loadtests")]]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    output, imported = json.loads(done.stdout)
    assert imported == []
    assert all(f"  {name} " in output for name in BROUGHT)


@pytest.mark.parametrize("name", BROUGHT)
def test_each_is_there_and_explains_itself(name):
    done = CliRunner().invoke(main, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"Usage: main {name} ")
    assert len(done.output.splitlines()) > 15


def test_missing_library_is_told_with_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "simpy", None)
    monkeypatch.delitem(sys.modules, "framelane.loadtests.plan_simulation", raising=False)
    monkeypatch.delitem(sys.modules, "framelane.loadtests.plan_calibration", raising=False)
    monkeypatch.delitem(sys.modules, "framelane.loadtests.plan_command", raising=False)
    done = CliRunner().invoke(main, ["plan", "--help"])
    assert done.exit_code == 3
    assert "pip install 'framelane[loadtest]'" in done.output


def test_missing_module_of_ours_is_a_fault_and_not_an_extra():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        Elsewhere("x", "framelane.loadtests.no_such_module", "").make_context("x", [])


def test_help_lists_every_command_once_under_what_it_is_for():
    output = CliRunner().invoke(main, ["--help"]).output
    assert all(output.count(f"\n  {name} ") == 1 for name in main.commands)
    assert (
        output.index("Serve:") < output.index("  serve ") < output.index("Find the ceiling:") < output.index("  sweep ")
    )


def test_command_that_no_section_names_is_listed_all_the_same():
    group = Sections(commands={"new": click.Command("new", short_help="Something new.")})
    output = CliRunner().invoke(group, ["--help"]).output
    assert "More:\n  new  Something new.\n" in output
