"""Charts as inline SVG: lines with limits and bands, and intervals in rows. No I/O, no library, no script.

Colours are CSS variables of the page that holds the chart (``report.html``), so that one picture fits light and dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

WIDTH, HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 16, 46
_ROW = 34
_NAMES = 230
COLOURS = 6


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one kind, joined in the order of x. ``low`` and ``high`` draw a band around them."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dashed: bool = False


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A horizontal line with a name."""

    name: str
    y: float


class LineChart(msgspec.Struct, frozen=True, kw_only=True, tag="lines"):
    """Several series over one axis."""

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()
    from_zero: bool = True

    def svg(self) -> str:
        """The picture."""
        return _lines(self)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One interval: its value, its ends, the band that was predicted, and how to colour it."""

    name: str
    value: float
    low: float
    high: float
    band: tuple[float, float] | None = None
    verdict: str = ""


class IntervalChart(msgspec.Struct, frozen=True, kw_only=True, tag="intervals"):
    """Intervals in rows, each with the band that somebody predicted; ``mark`` is a vertical line, for no effect."""

    title: str
    x_name: str
    rows: Annotated[tuple[Row, ...], Meta(min_length=1)]
    mark: float | None = None

    def svg(self) -> str:
        """The picture."""
        return _intervals(self)


Chart = LineChart | IntervalChart


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most so many steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


class _Scale:
    """From values to pixels."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self.low, self.high = (low, high) if high > low else (low - 0.5, low + 0.5)
        self._start, self._stop = start, stop

    def __call__(self, value: float) -> float:
        part = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self._start + part * (self._stop - self._start), 1)


def _lines(chart: LineChart) -> str:
    xs = [x for series in chart.series for x in series.x]
    ys = _finite([y for s in chart.series for y in (*s.y, *s.low, *s.high)] + [limit.y for limit in chart.limits])
    if not xs or not ys:
        return _svg(HEIGHT, chart.title, [_text(WIDTH / 2, HEIGHT / 2, "nothing was measured", "middle")])
    low = min(0.0, *ys) if chart.from_zero else min(ys)
    top = max(ys) + 0.06 * (max(ys) - low)
    x_scale = _Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    y_scale = _Scale(low, top or 1.0, HEIGHT - _BOTTOM, _TOP)
    whole = all(x == int(x) for x in xs)
    parts = _y_axis(y_scale, chart.y_name) + _x_axis(x_scale, chart.x_name, _TOP, HEIGHT - _BOTTOM, whole)
    for limit in chart.limits:
        y = y_scale(limit.y)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(WIDTH - _RIGHT, y - 5, f"{limit.name} {limit.y:g}", "end", "limit-name"))
    for number, series in enumerate(chart.series):
        parts += _series(series, number % COLOURS, x_scale, y_scale)
    return _svg(HEIGHT, chart.title, parts) + _legend(chart.series)


def _series(series: Series, colour: int, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    parts = []
    order = [i for i in sorted(range(len(series.x)), key=series.x.__getitem__) if math.isfinite(series.y[i])]
    points = [f"{x_scale(series.x[i])},{y_scale(series.y[i])}" for i in order]
    if series.low and series.high:
        upper = [f"{x_scale(series.x[i])},{y_scale(series.high[i])}" for i in order]
        lower = [f"{x_scale(series.x[i])},{y_scale(series.low[i])}" for i in reversed(order)]
        parts.append(f'<polygon class="band c{colour}" points="{" ".join(upper + lower)}"/>')
    dashed = " dashed" if series.dashed else ""
    parts.append(f'<polyline class="line{dashed} c{colour}" points="{" ".join(points)}"/>')
    if len(points) <= 60:
        for index, point in zip(order, points, strict=True):
            x, y = point.split(",")
            label = f"{series.name}: {series.x[index]:g} → {series.y[index]:.4g}"
            parts.append(
                f'<circle class="dot c{colour}" cx="{x}" cy="{y}" r="3.5"><title>{_safe(label)}</title></circle>'
            )
    return parts


def _intervals(chart: IntervalChart) -> str:
    values = [v for row in chart.rows for v in (row.value, row.low, row.high, *(row.band or ()))]
    values = _finite(values + ([chart.mark] if chart.mark is not None else []))
    height = _TOP + _ROW * len(chart.rows) + _BOTTOM
    if not values:
        return _svg(height, chart.title, [_text(WIDTH / 2, height / 2, "nothing was measured", "middle")])
    margin = (max(values) - min(values)) * 0.06 or 0.1
    scale = _Scale(min(values) - margin, max(values) + margin, _NAMES, WIDTH - _RIGHT)
    bottom = height - _BOTTOM
    parts = _x_axis(scale, chart.x_name, _TOP, bottom)
    if chart.mark is not None:
        x = scale(chart.mark)
        parts.append(f'<line class="limit" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
    for number, row in enumerate(chart.rows):
        parts += _row(row, _TOP + _ROW * (number + 0.5), scale)
    return _svg(height, chart.title, parts)


def _row(row: Row, y: float, scale: _Scale) -> list[str]:
    parts = [_text(_NAMES - 12, y + 4, row.name, "end")]
    if row.band:
        start, stop = scale(row.band[0]), scale(row.band[1])
        parts.append(
            f'<rect class="predicted" x="{start}" y="{y - 11}" width="{max(stop - start, 2):.1f}" height="22" rx="3">'
            f"<title>predicted {row.band[0]:.3g} – {row.band[1]:.3g}</title></rect>"
        )
    if math.isfinite(row.value):
        style = f"v-{row.verdict}" if row.verdict else "c0"
        label = _safe(f"{row.value:.3g} ({row.low:.3g} – {row.high:.3g})")
        parts.append(
            f'<line class="line {style}" x1="{scale(row.low)}" x2="{scale(row.high)}" y1="{y}" y2="{y}"/>'
            f'<circle class="dot {style}" cx="{scale(row.value)}" cy="{y}" r="4.5"><title>{label}</title></circle>'
        )
    return parts


def _y_axis(scale: _Scale, name: str) -> list[str]:
    parts = []
    for value in ticks(scale.low, scale.high):
        y = scale(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", "end", "tick"))
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="translate(14,{middle}) rotate(-90)">{_safe(name)}</text>'
    )
    return parts


def _x_axis(scale: _Scale, name: str, top: float, bottom: float, whole: bool = False) -> list[str]:
    """``whole``: there is nothing between the integers, so no tick says that there is."""
    parts = []
    for value in (tick for tick in ticks(scale.low, scale.high, 8) if not whole or tick == int(tick)):
        x = scale(value)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 18, f"{value:g}", "middle", "tick"))
    parts.append(_text((scale(scale.low) + scale(scale.high)) / 2, bottom + 38, name, "middle", "axis"))
    return parts


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = [
        f'<span><svg width="18" height="10" aria-hidden="true"><line class="line{" dashed" * one.dashed} '
        f'c{number % COLOURS}" x1="0" x2="18" y1="5" y2="5"/></svg> {_safe(one.name)}</span>'
        for number, one in enumerate(series)
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{_safe(title)}">\n{inside}\n</svg>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "label") -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{_safe(text)}</text>'


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _safe(text: str) -> str:
    return html.escape(text)
