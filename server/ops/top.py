"""``framelane top``: what a replica does, and what limits it, in a terminal."""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from .screen import screen

_TIMEOUT_S = 5.0
_HISTORY_EVERY_S = 5.0
_PIPE_WIDTH = 110
_NO_SERVER = 1


class NoServer(Exception):
    """Nothing answers there, or it is no Framelane; the text says which."""


class Source:
    """One server's documents.

    Args:
        url: where it is, without a path.
    """

    def __init__(self, url: str) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._read_at = float("-inf")
        self._columns: Mapping[str, Sequence[Any]] = {}

    def document(self) -> dict[str, Any]:
        """/v1/ops. Raises NoServer."""
        return self._get("/v1/ops")

    def columns(self) -> Mapping[str, Sequence[Any]]:
        """Those of /v1/ops/history, at most a few seconds old. Raises NoServer."""
        if time.monotonic() - self._read_at > _HISTORY_EVERY_S:
            self._columns = self._get("/v1/ops/history")["columns"]
            self._read_at = time.monotonic()
        return self._columns

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=_TIMEOUT_S) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            raise NoServer(f"{self.url} answers {path} with {error.code}: is that a Framelane server?") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            text = getattr(reason, "strerror", None) or reason
            raise NoServer(
                f"no server answers at {self.url}: {text}; start one with `framelane serve`, or give --url"
            ) from None
        except ValueError:
            raise NoServer(f"{self.url} gives no JSON: is that a Framelane server?") from None


def watch(source: Source, console: Console, every_s: float) -> None:
    """Show it until Ctrl-C. A server that goes away is waited for; what it said last stays on the screen.

    Raises:
        NoServer: there was none to begin with.
    """
    shown = screen(source.document(), source.columns(), source.url, console.width)
    with Live(shown, console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = screen(source.document(), source.columns(), source.url, console.width)
                live.update(shown, refresh=True)
            except NoServer as error:
                live.update(Text.assemble((f"{error}\n", "bold red"), "waiting for it; Ctrl-C ends this"), refresh=True)
            time.sleep(every_s)


@click.command()
@click.option("--url", default="http://localhost:8000", show_default=True, envvar="FRAMELANE_URL", help="the server")
@click.option("--every", default=1.0, show_default=True, type=click.FloatRange(0.2, 60), help="seconds between looks")
@click.option("--once", is_flag=True, help="print it once, as plain text, and end")
@click.option("--json", "as_json", is_flag=True, help="print the document of /v1/ops once, for scripts, and end")
def main(url: str, every: float, once: bool, as_json: bool) -> None:
    """Watch a server in the terminal: what it does, and what limits it.

    \b
    At the top    what limits it now, and what to change next
    figures       clients, goodput, delivery, ages of results, where their time goes, drops by reason
    processes     state, how busy each is, cores that it uses, frames that it holds, memory
    charts        the last 15 minutes

    It reads /v1/ops. A server that goes away is waited for. The exit status is 1 if none answers; Ctrl-C ends it.
    """
    source = Source(url)
    try:
        if as_json:
            click.echo(json.dumps(source.document(), indent=1))
        elif once or not sys.stdout.isatty():
            console = Console(color_system=None, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
            console.print(screen(source.document(), source.columns(), source.url, console.width))
        else:
            watch(source, Console(), every)
    except NoServer as error:
        click.secho(f"framelane: {error}", fg="red", err=True)
        sys.exit(_NO_SERVER)
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
