"""The command ``framelane``."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import click

from framelane.models.errors import FramelaneError

from .config import Settings
from .options import settings_from, settings_options

START_FAILED = 3
"""Exit status when the replica could not start: trying again will not help (a bad model, a missing device)."""


class Elsewhere(click.Command):
    """A command that another package brings, imported when it is called: the server knows only its name.

    So ``--help`` waits for none of its libraries, and a server without the extra has the command, which says what is
    missing.

    Args:
        name: of the command.
        module: whose ``main`` it is.
        short_help: its line in ``framelane --help``.
    """

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._module = module

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the real command, which click then invokes."""
        try:
            command: click.Command = importlib.import_module(self._module).main
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("framelane"):
                raise
            text = f"`{self.name}` needs {error.name}, which is not installed: pip install 'framelane[loadtest]'"
            click.secho(f"framelane: {text}", fg="red", err=True)
            sys.exit(START_FAILED)
        return command.make_context(info_name, args, parent, **extra)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("framelane"), prog_name="framelane")
def main() -> None:
    """Framelane: a realtime websocket inference server.

    Clients stream camera frames over Socket.IO or a plain websocket; each gets the results of its own frames.
    """


@main.command()
@settings_options
def serve(config: Path | None, **given: Any) -> None:
    """Run one replica: a gateway with its workers and slots.

    Every option is also a key of the configuration file (max_clients = 100) and a variable (FRAMELANE_MAX_CLIENTS=100).
    """
    try:
        _serve(settings_from(config, given))
    except FramelaneError as error:
        click.secho(f"framelane: {error.message}", fg="red", err=True)
        sys.exit(START_FAILED)


def _serve(settings: Settings) -> None:
    import uvloop  # `framelane --help` and the other commands need no server

    from framelane.preprocess.logs import set_up_logs

    from .app import Replica
    from .ops.machine import read_machine
    from .plan import make_plan

    set_up_logs(settings.log_level)
    plan = make_plan(settings, read_machine())
    click.echo(f"Framelane {importlib.metadata.version('framelane')}: pipeline {settings.pipeline}\n")
    for choice in plan.choices:
        click.echo(f"  {choice.what:<14} {choice.value:<14} {choice.why}")
    click.echo()

    async def run() -> None:
        await Replica(settings, plan).run()

    uvloop.run(run())


@main.command(short_help="List the models at hand and check their files.")
@click.option("--models", multiple=True, metavar="DIR", help="Folder of models of your own (may be repeated).")
def models(models: tuple[str, ...]) -> None:
    """List the models at hand, with their tensors, and check their files."""
    from framelane.models.registry import Registry

    registry = Registry([Path(folder) for folder in models])
    try:
        for spec in registry:
            click.secho(spec.name, bold=True)
            click.echo(f"  file     {spec.path}\n  licence  {spec.licence}\n  source   {spec.source}")
            for side, tensors in (("input", spec.inputs), ("output", spec.outputs)):
                for tensor in tensors:
                    click.echo(f"  {side:<8} {tensor.name} {tensor.dtype}{list(tensor.shape)}")
            click.echo(f"  batch    up to {spec.max_batch}\n  sha256   {spec.sha256}  (checked)\n")
    except FramelaneError as error:
        click.secho(f"framelane: {error.message}", fg="red", err=True)
        sys.exit(START_FAILED)


main.add_command(Elsewhere("sweep", "framelane.loadtests.sweep_command", "Find what limits a server, by prediction."))
main.add_command(Elsewhere("density", "framelane.loadtests.density_command", "Find how many users a machine holds."))
main.add_command(Elsewhere("probe", "framelane.loadtests.probe_command", "Tell whether slots really run at once."))
main.add_command(Elsewhere("gate", "framelane.loadtests.gate_command", "Decide how many slots shall be active."))
main.add_command(Elsewhere("plan", "framelane.loadtests.plan_command", "Say how many GPUs and dollars users take."))
main.add_command(
    Elsewhere("fleet", "framelane.server.fleet.command", "Run several replicas on one box, behind one address.")
)


if __name__ == "__main__":
    main()
