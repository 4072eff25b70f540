"""How Grafana writes a dashboard down: its model of schema version 39, which Grafana 11 and later read.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from collections.abc import Sequence
from typing import Any

from deploy.grafana.panels import ROLLOUTS, VARIABLES, Board, Kind, Panel, Query, Row, Variable

Json = dict[str, Any]
SCHEMA_VERSION = 39
NUM_COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "torchgate"


def written(board: Board, boards: Sequence[Board]) -> Json:
    """Return a board as Grafana reads it."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [_link(other.title, other.uid) for other in boards if other is not board],
        "templating": {"list": [_DATASOURCE_VARIABLE, *(_variable(variable) for variable in VARIABLES)]},
        "annotations": {"list": [_ANNOTATION]},
        "panels": _placed(board.rows),
    }


_DATASOURCE_VARIABLE = {
    "type": "datasource",
    "name": "datasource",
    "label": "Prometheus",
    "query": "prometheus",
    "refresh": 1,
}

_ANNOTATION = {
    "name": "Rollouts",
    "datasource": DATASOURCE,
    "enable": True,
    "iconColor": "blue",
    "expr": ROLLOUTS.expr,
    "titleFormat": "{{model}}: {{event}}",
}


def _variable(variable: Variable) -> Json:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": DATASOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,  # whenever the time range changes: versions come and go
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _link(title: str, uid: str) -> Json:
    return {
        "title": title,
        "type": "link",
        "url": f"/d/{uid}?${{datasource:queryparam}}&${{model:queryparam}}&${{version:queryparam}}",
        "icon": "dashboard",
        "tooltip": "",
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": False,
        "keepTime": True,
    }


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Put the panels beside and below each other."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": NUM_COLUMNS, "h": 1}
        head = {"type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": place}
        placed.append({"id": len(placed) + 1, **head})
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > NUM_COLUMNS:
                x, y = 0, y + row.height
            place = {"x": x, "y": y, "w": panel.width, "h": row.height}
            placed.append({"id": len(placed) + 1, **_panel(panel), "gridPos": place})
            x += panel.width
        y += row.height
    return placed


def _panel(panel: Panel) -> Json:
    document: Json = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [_target(panel, query, chr(ord("A") + n)) for n, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind],
    }
    if panel.kind == "heatmap":
        y_axis = {"axisPlacement": "left", "unit": panel.unit, "reverse": False}
        document["options"] = {**document["options"], "yAxis": y_axis}
    if panel.see:
        document["links"] = [_link("Look closer", panel.see)]
    if panel.columns:
        document["transformations"] = [_columns(panel.columns)]
    return document


def _target(panel: Panel, query: Query, letter: str) -> Json:
    is_now = panel.kind in {"table", "stat"}
    form = {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series")
    asked = {"instant": is_now, "range": not is_now, "format": form}
    return {"refId": letter, "datasource": DATASOURCE, "expr": query.expr, "legendFormat": query.legend, **asked}


def _defaults(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit}
    if panel.kind == "heatmap":
        return {}
    if panel.kind != "state-timeline" and panel.least is not None:
        defaults["min"] = panel.least
    if panel.most is not None:
        defaults["max"] = panel.most
    steps = [
        {"value": None, "color": "green"},
        *({"value": value, "color": color} for value, color in panel.thresholds),
    ]
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.names:
        options = {f"{value:g}": {"text": text, "color": color} for value, text, color in panel.names}
        defaults["mappings"] = [{"type": "value", "options": options}]
    if panel.kind in {"stat", "state-timeline"}:
        defaults["color"] = {"mode": "thresholds"}
    if panel.kind == "timeseries":
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        }
    return defaults


def _overrides(panel: Panel) -> list[Json]:
    line = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}},
        {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
        {"id": "custom.fillOpacity", "value": 0},
    ]
    return [
        {"matcher": {"id": "byFrameRefID", "options": chr(ord("A") + number)}, "properties": line}
        for number, query in enumerate(panel.queries)
        if query.dashed
    ]


def _columns(names: Sequence[str]) -> Json:
    ordered = {name: number for number, name in enumerate(names)}
    return {"id": "filterFieldsByName", "options": {"include": {"names": list(ordered)}}}


_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_OPTIONS: dict[Kind, Json] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "graphMode": "none",
        "colorMode": "background",
        "justifyMode": "auto",
        "textMode": "auto",
        "orientation": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
    },
    "state-timeline": {
        "showValue": "auto",
        "rowHeight": 0.8,
        "mergeValues": True,
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "table": {"showHeader": True, "cellHeight": "sm", "frameIndex": 0},
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "fill": "dark-orange",
            "scale": "exponential",
            "exponent": 0.5,
            "reverse": False,
            "steps": 64,
        },
        "filterValues": {"le": 1e-9},
        "rowsFrame": {"layout": "le"},
        "showValue": "never",
        "legend": {"show": True},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "selectionMode": "x",
    },
}
