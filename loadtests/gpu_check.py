"""Holds a card against what Framelane promises, in less than six minutes; without a card, what can be held there.

\b
  python -m framelane.loadtests.gpu_check                    card 0, or none
  python -m framelane.loadtests.gpu_check --device cuda:1
  python -m framelane.loadtests.gpu_check --device cpu         a rehearsal: no card, the same checks on the CPU
  python -m framelane.loadtests.gpu_check --only session --only gather

It needs no network and works with whatever build of ONNX Runtime it finds: what that cannot do is skipped, and named
with the reason. On a bare machine: copy the wheels of framelane, its dependencies and onnxruntime-gpu[cuda,cudnn],
install them without an index, and run it. Prints a table and writes JSON (-o). Ctrl-C ends it and keeps what was
measured. The exit status is 1 if a row misses its bar.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from framelane.loadtests.gpu_checks import CHECKS, Check, Lab, Row, Skipped
from framelane.models.devices import Device, DeviceError, parse_device
from framelane.models.gpu import GpuFacts, explain, read_gpu_facts_apart

_LIMIT_S = 350.0
_COLOURS = {True: "green", False: "bold red", None: ""}


@click.command(help=__doc__)
@click.option("--device", default="cuda:0", show_default=True, help="The card to check; cpu: a rehearsal.")
@click.option("--only", multiple=True, type=click.Choice([check.name for check in CHECKS]), help="May be repeated.")
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("gpu-check.json"), show_default=True)
def main(device: str, only: tuple[str, ...], output: Path) -> None:
    """The command."""
    console = Console(stderr=True)
    try:
        wanted = parse_device(device)
    except DeviceError as error:
        raise click.BadParameter(error.message) from None
    if wanted.kind not in ("cpu", "cuda") or wanted.cards:
        raise click.BadParameter(f"{device}: one card is checked, as cuda:0 (TensorRT with it, where it loads)")
    facts = read_gpu_facts_apart(thoroughly=True)
    why_not = explain(facts, "cuda", wanted.index) if wanted.kind != "cpu" else ""
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with tempfile.TemporaryDirectory(prefix="framelane-gpu-check-") as folder:
        lab = Lab(
            facts,
            None if why_not else wanted,
            Path(folder),
            lambda text: console.print(f"  {escape(text)}", style="dim"),
        )
        try:
            for part in _run([check for check in CHECKS if not only or check.name in only], lab, why_not, console):
                (rows if isinstance(part, Row) else skipped).append(part)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            skipped.append(Skipped("the rest", "interrupted"))
    _show(rows, skipped, facts, lab.rehearsal)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(msgspec.json.format(msgspec.json.encode(_record(rows, skipped, lab, wanted))))
    console.print(f"written to {output}")
    sys.exit(any(row.good is False for row in rows))


def _run(checks: Sequence[Check], lab: Lab, why_not: str, console: Console) -> Iterator[Row | Skipped]:
    """The rows of all checks, and those that could not be done; one that breaks is a row that misses."""
    started = time.monotonic()
    for check in checks:
        if check.needs == "card" and why_not:
            yield Skipped(check.name, why_not)
            continue
        if (left := _LIMIT_S - (time.monotonic() - started)) < check.seconds:
            yield Skipped(
                check.name, f"no time left: {left:.0f} of {_LIMIT_S:.0f} s, and it may take {check.seconds:.0f}"
            )
            continue
        console.print(f"{check.name} …")
        try:
            yield from check.run(lab)
        except Exception as error:
            console.print(traceback.format_exc(), style="dim", markup=False)
            yield Row(check.name, f"ended with {type(error).__name__}: {error}", float("nan"), "", "it runs", False)


def _show(rows: Sequence[Row], skipped: Sequence[Skipped], facts: GpuFacts, rehearsal: bool) -> None:
    label = "REHEARSAL on the CPU: no card was used, and no figure below is one of a card\n" if rehearsal else ""
    table = Table(title=label + _machine(facts), title_justify="left")
    for column in ("check", "case", "measured", "bar"):
        table.add_column(column, justify="right" if column == "measured" else "left")
    for row in rows:
        shown = f"{row.value:.3g} {row.unit}" if abs(row.value) < 1000 else f"{row.value:,.0f} {row.unit}"
        table.add_row(row.check, escape(row.case), shown, row.bar, style=_COLOURS[row.good])
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    for check in skipped:
        console.print(f"not done: {check.check}: {check.why}", style="yellow", markup=False)


def _machine(facts: GpuFacts) -> str:
    cards = ", ".join(f"{card.name} {card.memory / 2**30:.0f} GiB" for card in facts.driver.cards) or "no card"
    wheels = ", ".join(f"{name} {version}" for name, version in facts.wheels.items()) or "no ONNX Runtime"
    return f"{cards}; {wheels}; framelane {importlib.metadata.version('framelane')}"


def _record(rows: Sequence[Row], skipped: Sequence[Skipped], lab: Lab, wanted: Device) -> dict[str, Any]:
    return {
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "device": wanted.name,
        "card_used": lab.device is not None and not lab.rehearsal,
        "rehearsal": lab.rehearsal,
        "facts": lab.facts,
        "rows": [{**row._asdict(), "value": row.value if row.value == row.value else None} for row in rows],
        "skipped": [check._asdict() for check in skipped],
    }


if __name__ == "__main__":
    main()
