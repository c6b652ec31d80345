"""The picture of the curve: goodput, delivery and age against offered load, product and legacy side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Points = Mapping[str, Sequence[Mapping[str, Any]]]
"""By server, what ``scenarios.curve.Point.record`` says of each load."""

_STYLES = {"product": {"color": "#1668a8", "marker": "o"}, "legacy": {"color": "#b5471d", "marker": "s"}}


def plot(points: Points, capacity: float, title: str, folder: Path) -> list[Path]:
    """Draw it as PNG and SVG; returns the files. Loads that were measured several times are drawn as points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2).flatten()
    for panel, (name, unit, value) in zip(panels, _PANELS, strict=True):
        for server, found in points.items():
            ordered = sorted(found, key=lambda point: point["load"])
            loads = [point["load"] for point in ordered]
            panel.plot(loads, [value(point) for point in ordered], label=server, **_STYLES[server])
        panel.set(title=name, ylabel=unit, xlabel="offered load ÷ capacity of the product")
        panel.grid(alpha=0.3)
    panels[0].axhline(capacity, color="grey", linestyle=":", label="capacity")
    for panel in panels[2:]:
        panel.set_yscale("log")
    panels[0].legend()
    figure.suptitle(title)
    paths = [folder / f"curve.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


_PANELS: tuple[tuple[str, str, Any], ...] = (
    ("Goodput: results within the deadline", "frames per second", lambda point: point["goodput"]),
    ("Delivery ratio: results ÷ frames sent", "%", lambda point: 100 * point["delivery"]),
    ("Age of a result, p50", "ms", lambda point: point["age"]["p50"]),
    ("Age of a result, p99", "ms", lambda point: point["age"]["p99"]),
)
