"""The settings as options of a command line: one per field of ``Settings``, for every command that starts replicas.

Secrets have none, since a command line can be read by others.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from .config import SECRETS, Settings, Sources, load_settings, parse_options

_Command = typing.TypeVar("_Command", bound=Callable[..., Any])


def settings_options(command: _Command) -> _Command:
    """Give a command one option per field of ``Settings`` that is no secret, with its help, and ``--config``."""
    for field in reversed(msgspec.structs.fields(Settings)):
        if field.name not in SECRETS:
            command = click.option(*_option(field), **_attributes(field))(command)
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="FRAMELANE_CONFIG",
        help="TOML file with the same keys; variables FRAMELANE_… and options go before it.",
    )(command)


def _option(field: msgspec.structs.FieldInfo) -> list[str]:
    name = {"options": "--option"}.get(field.name, f"--{field.name.replace('_', '-')}")
    return [name, field.name]


def _attributes(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    shown = "fits the machine" if field.default is None else str(field.default) or "none"
    if field.name in ("options", "models"):
        metavar = "KEY=VALUE" if field.name == "options" else "DIR"
        return {"multiple": True, "help": f"{description(field.type)} (may be repeated)", "metavar": metavar}
    if _plain(field) is bool:
        return {"default": None, "help": description(field.type), "is_flag": True}
    return {"default": None, "help": f"{description(field.type)}  [default: {shown}]", "metavar": _metavar(field)}


def _annotated(kind: Any) -> Any:
    """The Annotated part of a field's type, whether it may be None or not."""
    return next((part for part in (kind, *typing.get_args(kind)) if hasattr(part, "__metadata__")), None)


def description(kind: Any) -> str:
    """What a setting does, from its type."""
    annotated = _annotated(kind)
    return str(annotated.__metadata__[0].description) if annotated else ""


def _plain(field: msgspec.structs.FieldInfo) -> Any:
    """A field's type without its bounds and help."""
    annotated = _annotated(field.type)
    return annotated.__origin__ if annotated else field.type


def _metavar(field: msgspec.structs.FieldInfo) -> str:
    plain = _plain(field)
    if typing.get_origin(plain) is typing.Literal:
        return "|".join(typing.get_args(plain))
    number = "FPS" if field.name.endswith("fps") else "SECONDS"
    return {int: "N", float: number}.get(plain, "TEXT")


def settings_from(config: Path | None, given: dict[str, Any]) -> Settings:
    """The settings of a command: its options, before the environment, before the file. Raises ConfigError."""
    return sourced_settings(config, given)[0]


def sourced_settings(config: Path | None, given: dict[str, Any]) -> tuple[Settings, Sources]:
    """As ``settings_from``, with where each value came from."""
    command_line = {key: value for key, value in given.items() if value not in (None, ())}
    if "options" in command_line:
        command_line["options"] = parse_options(command_line["options"])
    if "models" in command_line:
        command_line["models"] = list(command_line["models"])
    return load_settings(command_line, os.environ, config)
