"""Reports of faults as tables for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .report import Report


def show(reports: list[Report], console: Console) -> None:
    """The table, and below it each fault's own figures."""
    table = Table("fault", "frames lost", "time to recover", "connections lost", "leftovers", "")
    for report in reports:
        table.add_row(*report.row())
    console.print(table)
    details = Table("fault", "", "measured", "bar", "")
    for report in reports:
        for figure in report.figures:
            name, value, _spread, bar, _goal, verdict = figure.row()
            details.add_row(report.fault, name, value, bar, verdict)
    console.print(details)
    for report in reports:
        if report.note:
            console.print(f"{report.fault}: {report.note}")
