"""Reports: one HTML file that needs nothing but itself, with JSON and CSV beside it. All tools write theirs here.

``Report`` is what a tool found; ``render`` turns it into a page without I/O; ``write`` puts ``NAME.html``,
``NAME.json`` and ``NAME.csv`` (the first table, or the one named) into a folder, each complete or not at all.
"""

from __future__ import annotations

import csv
import datetime as dt
import html
import importlib.resources
import io
import os
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from framelane.loadtests.charts import Chart

Tone = Literal["good", "bad", "open", ""]
Cell = str | float | int | bool | None


class Finding(msgspec.Struct, frozen=True):
    """One sentence that a reader must not miss, and whether it is good, bad, or still open."""

    text: str
    tone: Tone = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under names. ``tones`` colours cells whose text is a key of it; ``folded`` hides the table behind a line."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    tones: dict[str, Tone] = {}
    folded: str = ""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A heading with text, pictures and tables, in this order."""

    title: str
    text: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool found.

    Attributes:
        name: of the files.
        title: for people.
        facts: what the figures depend on: machine, versions, command, time.
        findings: what the reader came for.
        sections: how it was found.
        data: everything, for the JSON file.
        rows: of the CSV file; the first table of the sections where None.
        simulated: whether a simulated device had a part in it.
        complete: False when the run was interrupted.
    """

    name: str
    title: str
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    facts: dict[str, Any] = {}
    data: Any = None
    rows: Table | None = None
    simulated: bool = False
    complete: bool = True


def write(report: Report, folder: Path) -> list[Path]:
    """Write the three files; returns their paths.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = report.rows or next((table for section in report.sections for table in section.tables), None)
    texts = {"html": render(report), "json": as_json(report), "csv": as_csv(table) if table else ""}
    paths = []
    for kind, text in texts.items():
        path = folder / f"{report.name}.{kind}"
        unfinished = path.with_suffix(f".{kind}.part")
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
        paths.append(path)
    return paths


def as_json(report: Report) -> str:
    """Facts, findings and data; not-a-number is null."""
    record = {
        "title": report.title,
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "complete": report.complete,
        "simulated": report.simulated,
        "facts": report.facts,
        "findings": [finding.text for finding in report.findings],
        "data": report.data,
    }
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def as_csv(table: Table) -> str:
    """One table; numbers in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return out.getvalue()


def render(report: Report) -> str:
    """The page."""
    template = importlib.resources.files("framelane.loadtests").joinpath("report.html").read_text(encoding="utf-8")
    body = "\n".join([*_head(report), *(part for section in report.sections for part in _section(section))])
    return string.Template(template).substitute(title=html.escape(report.title), body=body)


def _head(report: Report) -> list[str]:
    parts = [f"<h1>{html.escape(report.title)}</h1>"]
    if report.simulated:
        parts.append('<p class="simulated">SIMULATED device: these figures are of the server, not of a model</p>')
    if not report.complete:
        parts.append('<p class="open">This run was interrupted: what follows is what was measured until then.</p>')
    if report.facts:
        facts = " · ".join(f"{html.escape(name)} {html.escape(str(value))}" for name, value in report.facts.items())
        parts.append(f'<p class="facts">{facts}</p>')
    if report.findings:
        items = [f'<li class="{finding.tone}">{html.escape(finding.text)}</li>' for finding in report.findings]
        parts.append(f'<ul class="findings">{"".join(items)}</ul>')
    return parts


def _section(section: Section) -> list[str]:
    parts = [f"<h2>{html.escape(section.title)}</h2>", *(f"<p>{html.escape(text)}</p>" for text in section.text)]
    parts += [f"<figure><figcaption>{html.escape(c.title)}</figcaption>{c.svg()}</figure>" for c in section.charts]
    return parts + [_table(table) for table in section.tables]


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = "".join(f"<tr>{''.join(_cell(cell, table.tones) for cell in row)}</tr>" for row in table.rows)
    text = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<details><summary>{html.escape(table.folded)}</summary>{text}</details>" if table.folded else text


def _cell(cell: Cell, tones: dict[str, Tone]) -> str:
    text = html.escape(shown(cell))
    tone = tones.get(text, "")
    number = "number " if isinstance(cell, int | float) and not isinstance(cell, bool) else ""
    return f'<td class="{number}{tone}">{text}</td>' if number or tone else f"<td>{text}</td>"


def shown(cell: Cell) -> str:
    """A cell for people: numbers with three to four digits, nothing as a dash."""
    if cell is None or (isinstance(cell, float) and cell != cell):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def coloured(findings: Sequence[Finding]) -> list[str]:
    """The findings as lines with Rich's markup, in their colours."""
    colours = {"good": "green", "bad": "red", "open": "yellow"}
    escaped = [(f.text.replace("[", r"\["), colours.get(f.tone)) for f in findings]
    return [f"[{colour}]{text}[/]" if colour else text for text, colour in escaped]
