"""The rules for Prometheus are about what the gateway exports, and every alert says what to do."""

import re

import yaml

from service.telemetry.metrics import Metrics
from tests.rule_files import FILES, FOLDER, alerts, rules
from tests.torchserve_process import ROOT

RUNBOOK = (FOLDER / "RUNBOOK.md").read_text()
SUFFIXES = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def exported() -> set[str]:
    names = set()
    for instrument in Metrics().instruments():
        (family,) = instrument.describe()
        names |= {family.name + suffix for suffix in SUFFIXES[family.type]}
    return names


def used(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w:])torchgate_\w+(?!\w*:)", text))


def test_rules_use_what_is_exported() -> None:
    asked = set().union(*(used(rule["expr"]) for rule in rules()))
    assert len(asked) > 10
    assert asked <= exported()


def test_rules_use_what_is_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert len(recorded) == sum("record" in rule for rule in rules())
    asked = {name for rule in rules("alerts.yml") for name in re.findall(r"\w+:\w+:\w+", rule["expr"])}
    assert asked
    assert asked <= recorded


def test_every_alert_says_how_bad_what_and_where_to_read_on() -> None:
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in {"page", "ticket"}, name
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}, name
        assert alert["annotations"]["runbook_url"] == f"deploy/prometheus/RUNBOOK.md#{name.lower()}"


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(alerts())
    for name, section in sections.items():
        assert re.findall(r"^\*\*(\w+):\*\*", section, re.MULTILINE) == ["Means", "Look", "Do"], name
    links = set(re.findall(r"\]\(#(\w+)\)", RUNBOOK))
    assert links <= {name.lower() for name in sections}


def test_the_runbook_asks_for_what_is_exported() -> None:
    assert used(RUNBOOK)
    assert used(RUNBOOK) <= exported()


def test_compose_gives_prometheus_every_file_that_its_configuration_names() -> None:
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert set(configuration["rule_files"]) == set(FILES)
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    volumes = compose["services"]["prometheus"]["volumes"]
    for name in ("prometheus.yml", *FILES):
        assert f"./deploy/prometheus/{name}:/etc/prometheus/{name}:ro" in volumes
