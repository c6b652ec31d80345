"""The Grafana dashboard as code: `python deploy/grafana/build.py` writes ``dashboards/framelane.json``.

A script and not the JSON itself, since a panel is a line of meaning and forty of layout: here a change reads as what it
is, and units, colours and places cannot drift apart. Grafana only ever sees the JSON; ``tests/deploy`` holds both
together, and asks a real Prometheus every query.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from panels import HERE, ROWS, Panel

TARGET = Path(__file__).parent / "dashboards" / "framelane.json"
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model (schema version 39, Grafana 11 and later)."""
    return {
        "uid": "framelane",
        "title": "Framelane",
        "tags": ["framelane"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), _instance()]},
        "annotations": {"list": [_alerts()]},
        "panels": _panels(),
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, COLUMNS, 1)})
        x, y = 0, y + 1
        height = 4 if row[0].kind == "stat" else 8
        for panel in row:
            if x + panel.width > COLUMNS:
                x, y = 0, y + height
            panels.append({**_panel(panel), "gridPos": _place(x, y, panel.width, height)})
            x += panel.width
        y += height
    return [{"id": number, **panel} for number, panel in enumerate(panels, 1)]


def _panel(panel: Panel) -> dict[str, Any]:
    kinds = {"timeseries": _timeseries, "stat": _stat}
    options, defaults, custom = kinds[panel.kind](panel)
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.why,
        "datasource": DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.replace("HERE", HERE),
                "legendFormat": legend or "__auto",
                "instant": panel.kind == "stat",
                "range": panel.kind != "stat",
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
        "options": options,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **defaults, "custom": custom}, "overrides": []},
    }


def _timeseries(panel: Panel) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    options = {
        "tooltip": {"mode": "multi", "sort": "desc"},
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    }
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    custom = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 0, "stacking": stacking, "showPoints": "never"}
    return options, {} if panel.most is None else {"max": panel.most}, custom


def _stat(panel: Panel) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if any(panel.queries) else "value",
        "colorMode": "value",
        "graphMode": "none",
    }
    steps: list[dict[str, Any]] = [{"color": "text", "value": None}]
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    return options, {"thresholds": {"mode": "absolute", "steps": steps}}, {}


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Replica",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": "label_values(framelane_lanes, instance)", "refId": "instance"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": 'ALERTS{alertname=~"Framelane.*", alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}}",
        "step": "15s",
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
