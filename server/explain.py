"""``framelane config explain``: each setting, its value, where that came from and what it does; then the plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from framelane.models.errors import FramelaneError

from .cautions import cautions
from .config import SECRETS, Settings, Sources
from .ops.machine import read_machine
from .options import description, settings_options, sourced_settings
from .plan import Plan, make_plan

_PIPE_WIDTH = 150


@click.group()
def main() -> None:
    """Look at the configuration without starting anything.

    Settings come from the command line, from variables FRAMELANE_…, and from a TOML file (--config, or the variable
    FRAMELANE_CONFIG), in this order; what nobody sets has a default, or fits the machine.

    \b
      framelane config explain                       what `framelane serve` would run with here
      framelane config explain --config FILE         … with this file
      framelane config explain --changed             only what was set
      framelane config explain --json                for scripts
    """


@main.command()
@settings_options
@click.option("--all/--changed", "everything", default=True, help="Every setting, or those only that were set.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")
def explain(config: Path | None, everything: bool, as_json: bool, **given: Any) -> None:
    """Say each setting's value, where it came from, and what it does; what the plan chose for this machine, and why.

    It takes what `framelane serve` takes, and reads the same file and variables. What cannot work together is warned
    of; the exit status is 3 if `serve` would refuse to start.
    """
    try:
        settings, sources = sourced_settings(config, given)
        plan, refusal = _plan(settings)
    except FramelaneError as error:
        click.secho(f"framelane: {error.message}", fg="red", err=True)
        sys.exit(3)
    warnings = cautions(settings, plan) if plan else []
    if as_json:
        click.echo(json.dumps(_record(settings, sources, plan, warnings, refusal), indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
        _show(console, settings, sources, plan, everything)
        for warning in warnings:
            console.print(Text.assemble(("warning: ", "bold yellow"), warning))
        if refusal:
            console.print(Text.assemble(("refused: ", "bold red"), refusal))
    sys.exit(3 if refusal else 0)


def _plan(settings: Settings) -> tuple[Plan | None, str]:
    """The plan; None and the reason where there can be none."""
    try:
        return make_plan(settings, read_machine()), ""
    except FramelaneError as error:
        return None, error.message


def _show(console: Console, settings: Settings, sources: Sources, plan: Plan | None, everything: bool) -> None:
    table = Table("setting", "value", "from", "what it does", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name, given in _values(settings).items():
        value, origin = given, sources.of[name]
        if plan is not None and getattr(settings, name) is None and hasattr(plan, name):
            value, origin = str(getattr(plan, name)), "chosen, see below"
        if everything or sources.of[name] != "default":
            style = "" if sources.of[name] == "default" else "bold green"
            table.add_row(Text(name, style), Text(value, style), Text(origin, style), Text(_help(name), "bright_black"))
    console.print(table)
    if plan is not None:
        choices = Table("this machine", "chosen", "why", box=None, header_style="bold", padding=(0, 2, 0, 0))
        for choice in plan.choices:
            choices.add_row(choice.what, choice.value, Text(choice.why, "bright_black"))
        console.print()
        console.print(choices)
    console.print()


def _record(
    settings: Settings, sources: Sources, plan: Plan | None, warnings: list[str], refusal: str
) -> dict[str, Any]:
    raw = msgspec.to_builtins(settings)
    return {
        "settings": {
            name: {"value": _hidden(name, raw[name]), "from": sources.of[name], "help": _help(name)} for name in raw
        },
        "plan": msgspec.to_builtins(plan.choices) if plan else None,
        "warnings": warnings,
        "refused": refusal or None,
    }


def _values(settings: Settings) -> Mapping[str, str]:
    raw = msgspec.to_builtins(settings)
    return {name: _text(_hidden(name, value)) for name, value in raw.items()}


def _hidden(name: str, value: Any) -> Any:
    """Secrets are not shown, wherever the output goes."""
    return "…" if name in SECRETS and value else value


def _text(value: Any) -> str:
    if value is None:
        return "fits the machine"
    if isinstance(value, dict):
        return ", ".join(f"{key}={part}" for key, part in value.items()) or "none"
    if isinstance(value, list):
        return ":".join(map(str, value)) or "none"
    return str(value) if value != "" else "none"


def _help(name: str) -> str:
    field = next(field for field in msgspec.structs.fields(Settings) if field.name == name)
    return description(field.type)
