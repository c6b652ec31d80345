"""Reports and their charts."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET

import pytest
from browsing import browsing

from framelane.loadtests.charts import IntervalChart, Limit, LineChart, Row, Series, ticks
from framelane.loadtests.report import Finding, Report, Section, Table, as_csv, coloured, render, shown, write

NAN = float("nan")
CURVE = LineChart(
    title="Delivery <by> users",
    x_name="users",
    y_name="delivery",
    series=(
        Series(name="48", x=(500, 700), y=(0.979, 0.986), low=(0.97, 0.98), high=(0.99, 0.99)),
        Series(name="80 & more", x=(700, 500, 800), y=(0.994, 0.994, NAN), dashed=True),
    ),
    limits=(Limit(name="objective", y=0.979),),
    from_zero=False,
)
ROWS = IntervalChart(
    title="Hypotheses",
    x_name="ratio",
    rows=(
        Row(name="GPU", value=2.0, low=1.9, high=2.1, band=(1.7, 2.3), verdict="good"),
        Row(name="fan-out", value=NAN, low=NAN, high=NAN, band=(1.7, 2.3), verdict="open"),
    ),
    mark=1.0,
)
TABLE = Table(columns=("name", "value"), rows=(("a,b", 1.23456), ("<c>", None)), tones={"a,b": "good"})
REPORT = Report(
    name="sample",
    title="Report <1>",
    findings=(Finding("it [works] & holds", "good"),),
    sections=(Section(title="One", text=("text",), charts=(CURVE, ROWS), tables=(TABLE,)),),
    facts={"machine": "<m>"},
    data={"nan": NAN, "list": [1, 2]},
    simulated=True,
    complete=False,
)


@pytest.mark.parametrize("chart", [CURVE, ROWS])
def test_chart_is_well_formed_and_keeps_inside_its_picture(chart):
    svg = re.match(r"<svg.*?</svg>", chart.svg(), re.DOTALL)[0]
    root = ET.fromstring(svg)
    assert root.get("aria-label") == chart.title
    assert "nan" not in svg
    for circle in root.iter("circle"):
        assert 0 <= float(circle.get("cx")) <= 720


def test_chart_without_points_says_so():
    empty = LineChart(title="x", x_name="x", y_name="y", series=())
    assert "nothing was measured" in empty.svg()


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.97, 1.0, [0.97, 0.98, 0.99, 1.0]), (5, 5, [5])],
)
def test_ticks_are_round_numbers(low, high, found):
    assert ticks(low, high) == found


def test_page_needs_nothing_but_itself():
    page = render(REPORT)
    assert not re.search(r"(src|href)=|url\(|@import|<script|https?://", page)
    assert "prefers-color-scheme: dark" in page


def test_page_escapes_what_it_is_given_and_says_what_it_must():
    page = render(REPORT)
    assert "Report &lt;1&gt;" in page
    assert "&lt;c&gt;" in page
    assert "<m>" not in page
    assert "SIMULATED" in page
    assert "interrupted" in page


def test_three_files_are_written_and_no_part_of_one_is_left(tmp_path):
    paths = write(REPORT, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["sample.csv", "sample.html", "sample.json"]
    record = json.loads(paths[1].read_text())
    assert record["data"] == {"nan": None, "list": [1, 2]}
    assert (record["complete"], record["simulated"]) == (False, True)


def test_csv_is_read_back_as_it_was():
    assert list(csv.reader(io.StringIO(as_csv(TABLE)))) == [["name", "value"], ["a,b", "1.23456"], ["<c>", ""]]


@pytest.mark.parametrize(
    ("cell", "text"), [(None, "–"), (NAN, "–"), (True, "yes"), (1234.5, "1,234"), (0.01061, "0.01061")]
)
def test_cells_are_shown_for_people(cell, text):
    assert shown(cell) == text


def test_findings_are_coloured_without_reading_brackets_as_markup():
    assert coloured(REPORT.findings) == [r"[green]it \[works] & holds[/]"]


CONTRAST = """(() => {
  const probe = document.createElement("canvas").getContext("2d");
  const light = (colour) => {
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.body);
  const [ink, page] = [light(style.color), light(style.backgroundColor)];
  return (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
})()"""


def test_page_is_read_offline_in_light_and_dark_and_on_a_phone(tmp_path):
    page_file = write(REPORT, tmp_path)[0]
    with browsing() as browser:
        for scheme, width in (("light", 1100), ("dark", 390)):
            with browser.new_context(color_scheme=scheme, offline=True) as context:
                page = context.new_page()
                page.set_viewport_size({"width": width, "height": 800})
                asked = []
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                page.goto(page_file.as_uri())
                assert asked == [page_file.as_uri()]
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.locator("figure > svg").count() == 2
                assert page.evaluate(CONTRAST) > 7
