"""The command ``framelane``."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import time
import typing
from pathlib import Path
from typing import Any

import click

from framelane.models.errors import FramelaneError

from .config import Settings
from .options import settings_from, settings_options

if typing.TYPE_CHECKING:
    from .ops.doctor import Facts

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


class Sections(click.Group):
    """Lists its commands by what they are for, in the order in which one comes to need them."""

    _ORDER = (
        ("Serve", ("serve", "fleet", "token")),
        ("Look", ("doctor", "models", "config", "top", "trace")),
        ("Load", ("swarm", "audience", "record", "replay")),
        ("Find the ceiling", ("sweep", "density", "probe", "gate", "plan")),
    )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, and what is in none of them behind."""
        listed = {name for _, names in self._ORDER for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        width = max(map(len, self.commands))
        for title, names in (*self._ORDER, ("More", others)):
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(80))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
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
    Secrets are keys and variables only: token, token_secret, admin_token.
    """
    try:
        _serve(settings_from(config, given))
    except FramelaneError as error:
        click.secho(f"framelane: {error.message}", fg="red", err=True)
        sys.exit(START_FAILED)


def _serve(settings: Settings) -> None:
    import uvloop  # `framelane --help` and the other commands need no server

    from framelane.models.gpu import read_gpu_facts_apart
    from framelane.preprocess.logs import set_up_logs

    from .app import Replica
    from .cautions import cautions
    from .ops.machine import read_machine
    from .plan import make_plan, needs_gpu_facts

    set_up_logs(settings.logs)
    gpu = read_gpu_facts_apart() if needs_gpu_facts(settings) else None
    plan = make_plan(settings, read_machine(), gpu)
    click.echo(f"Framelane {importlib.metadata.version('framelane')}: pipeline {settings.pipeline}\n")
    for choice in plan.choices:
        click.echo(f"  {choice.what:<14} {choice.value:<14} {choice.why}")
    click.echo()
    for caution in cautions(settings, plan):
        click.secho(f"  warning: {caution}", fg="yellow")

    async def run() -> None:
        await Replica(settings, plan).run()

    uvloop.run(run())


@main.command(short_help="Say what is wrong with this machine, and how to mend it.")
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(config: Path | None, as_json: bool, **given: Any) -> None:
    """Check this machine for serving with these settings, and say how to mend what is wrong.

    Takes the options of `serve`. The exit status is 0 when nothing is wrong, else 1.
    """
    import msgspec

    from .ops.doctor import examine

    try:
        findings = examine(_facts(settings_from(config, given)))
    except FramelaneError as error:
        click.secho(f"framelane: {error.message}", fg="red", err=True)
        sys.exit(START_FAILED)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(findings)))
    else:
        colours = {"fine": "green", "note": "yellow", "wrong": "red"}
        for finding in findings:
            click.echo(
                f"{click.style(f'{finding.level:<6}', fg=colours[finding.level])} {finding.what}: {finding.found}"
            )
            if finding.cure:
                click.echo(f"         {finding.cure}")
    sys.exit(any(finding.level == "wrong" for finding in findings))


def _facts(settings: Settings) -> Facts:
    from framelane.models.devices import parse_device
    from framelane.models.gpu import read_gpu_facts_apart

    from .ops.doctor_facts import gather
    from .ops.machine import read_machine
    from .plan import make_plan

    device = parse_device(settings.device)
    gpu, processes, card_slots, problem = read_gpu_facts_apart(thoroughly=True), 1, 1, ""
    try:
        plan = make_plan(settings, read_machine(), gpu)
        processes, card_slots = plan.processes + 1, plan.card_slots
    except FramelaneError as error:
        problem = error.message
    return gather(settings, device, gpu, processes, problem, card_slots)


@main.group(invoke_without_command=True, short_help="List the models at hand, or check one of your own.")
@click.option("--models", multiple=True, metavar="DIR", help="Folder of models of your own (may be repeated).")
@click.pass_context
def models(context: click.Context, models: tuple[str, ...]) -> None:
    """List the models at hand, with their tensors, and check their files."""
    if context.invoked_subcommand is not None:
        return
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


models.add_command(
    Elsewhere("check", "framelane.models.check_command", "Measure a model of your own, and write its model.toml.")
)


@main.command(short_help="Make a signed token, or the keys for them.")
@click.option("--campaign", default="", metavar="NAME", help="Campaign that its client belongs to.")
@click.option("--seconds", default=300, metavar="N", help="How long it lasts.  [default: 300, which is the most]")
@click.option("--kid", metavar="ID", help="Key to make it with.  [default: the last one of the file]")
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), envvar="FRAMELANE_CONFIG", help="As for `serve`."
)
@click.option("--new-key", type=click.Choice(["HS256", "ES256", "EdDSA"]), help="Print a new JWK Set instead.")
@click.option("--public", is_flag=True, help="Print the public halves of the keys instead, for servers.")
def token(campaign: str, seconds: int, kid: str | None, config: Path | None, new_key: str | None, public: bool) -> None:
    """Make a signed token for one client, with the keys that `serve` is given.

    \b
    FRAMELANE_TOKEN_SECRET=…            one shared secret of 32 bytes or more:  openssl rand -base64 32
    FRAMELANE_TOKEN_KEYS=keys.json      several keys by kid:  framelane token --new-key EdDSA > keys.json

    A token opens one connection, within its time; the client renews it with another one (the SDK's `token`). To make
    them elsewhere, sign {aud, iat, exp, jti, campaign?} with any JWT library. To change keys, add the new one to the
    file, which servers read again by themselves, sign with it, and remove the old one five minutes later.
    """
    from .doors.entrance import read_keys
    from .lanes.tokens import mint, new_key_set, public_key_set

    try:
        if new_key:
            click.echo(new_key_set(kid or time.strftime("%Y-%m-%d"), new_key))
            return
        settings = settings_from(config, {})
        if public:
            click.echo(public_key_set(Path(settings.token_keys).read_bytes() if settings.token_keys else b""))
            return
        keys = [key for key in read_keys(settings) if kid in (None, key.kid)]
        if not keys:
            raise FramelaneError("there is no such key: set FRAMELANE_TOKEN_SECRET or FRAMELANE_TOKEN_KEYS")
        click.echo(mint(keys[-1], settings.token_audience, time.time(), seconds=seconds, campaign=campaign))
    except (FramelaneError, ValueError, OSError) as error:
        click.secho(f"framelane: {error}", fg="red", err=True)
        sys.exit(START_FAILED)


main.add_command(Elsewhere("swarm", "framelane.loadtests.swarm.command", "Let hundreds of users stream at a server."))
main.add_command(Elsewhere("config", "framelane.server.explain", "Explain each setting, and what would be chosen."))
main.add_command(Elsewhere("top", "framelane.server.ops.top", "Watch a server in the terminal, and what limits it."))
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
