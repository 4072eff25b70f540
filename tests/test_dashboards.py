"""The dashboards are what their sources give, are what Grafana reads, and name metrics that there are."""

import copy
import json
import re
from typing import Any

import pytest
import yaml

from deploy.grafana.make import BOARDS, FOLDER, texts
from service.telemetry.metrics import Metrics
from tests.grafana_types import misfits
from tests.torchserve_process import ROOT

FILES = sorted(FOLDER.glob("*.json"))
DOCUMENTS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in FILES}
QUERIES = [query for board in BOARDS for row in board.rows for panel in row.panels for query in panel.queries]
SUFFIXES = r"_(bucket|sum|count)$"


def test_the_files_are_what_the_sources_give() -> None:
    assert {path.name: path.read_text() for path in FILES} == texts(), "python -m deploy.grafana.make writes them"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_grafanas_types_take_them(name: str) -> None:
    assert misfits(DOCUMENTS[name]) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("panels", 1, "type"), 7),
        (("panels", 1, "options", "colorMode"), "loud"),
        (("panels", 1, "options", "colour"), "red"),
        (("panels", 1, "targets", 0, "expression"), "1"),
        (("panels", 1, "fieldConfig", "defaults", "thresholds", "mode"), "relative"),
        (("templating", "list", 1, "type"), "question"),
        (("schemaVersion",), "39"),
    ],
)
def test_what_grafana_would_not_take_is_found(path: tuple[str | int, ...], value: object) -> None:
    document = place = copy.deepcopy(DOCUMENTS["torchgate-overview"])
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    assert misfits(document) != []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_panel_says_what_to_do_with_it(name: str) -> None:
    document = DOCUMENTS[name]
    panels = [panel for panel in document["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    for panel in panels:
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] not in {"heatmap", "table", "state-timeline"}:
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    links = [link["url"] for panel in [document, *panels] for link in panel.get("links", [])]
    assert {re.split(r"[/?]", url)[2] for url in links} <= set(DOCUMENTS)
    assert len(document["links"]) == len(DOCUMENTS) - 1
    for panel, other in ((one, two) for one in panels for two in panels if one is not two):
        one, two = panel["gridPos"], other["gridPos"]
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"], panel["title"]


def test_what_is_not_optional_is_exported() -> None:
    exported = {family.name for family in Metrics().registry.collect()}
    exported |= {f"{name}{suffix}" for name in exported for suffix in ("_total", "_info")}
    for query in QUERIES:
        names = {re.sub(SUFFIXES, "", name) for name in re.findall(r"\btorchgate_\w+", query.expr)}
        assert query.optional or names <= exported, query.expr


def test_grafana_finds_what_compose_mounts() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    grafana, folder = compose["grafana"], ROOT / "deploy" / "grafana"
    mounts = dict(mount.removesuffix(":ro").split(":") for mount in grafana["volumes"])
    assert all(mount.endswith(":ro") for mount in grafana["volumes"])
    assert all((ROOT / source).is_dir() for source in mounts)
    dashboards = yaml.safe_load((folder / "provisioning" / "dashboards" / "torchgate.yml").read_text())
    (provider,) = dashboards["providers"]
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].removeprefix(provider["options"]["path"])
    assert (FOLDER / home.removeprefix("/")) in FILES
    (source,) = yaml.safe_load((folder / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]
    assert grafana["profiles"] == ["grafana"]
    assert grafana["ports"][0].startswith("127.0.0.1:")
    hardening = ("read_only", "cap_drop", "security_opt")
    assert [grafana[key] for key in hardening] == [compose["prometheus"][key] for key in hardening]
