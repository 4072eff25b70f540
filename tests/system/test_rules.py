"""promtool on the rules: they are valid, each does what its cases say, and none is without cases."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus import tool
from tests.rule_files import FILES, FOLDER, alerts, rules

pytestmark = pytest.mark.system

CASES = sorted((Path(__file__).parent / "rules").glob("*.yml"))


def promtool(*arguments: str) -> None:
    command = [tool("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def cases(kind: str) -> list[dict[str, Any]]:
    documents = [yaml.safe_load(path.read_text()) for path in CASES]
    return [case for document in documents for test in document["tests"] for case in test.get(kind, [])]


def test_prometheus_would_start_with_them() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))


@pytest.mark.parametrize("name", FILES)
def test_promtool_finds_nothing_to_say(name: str) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(FOLDER / name))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_rules_do_what_their_cases_say(path: Path) -> None:
    promtool("test", "rules", str(path))


def test_every_alert_is_seen_firing_and_silent() -> None:
    seen = cases("alert_rule_test")
    assert {case["alertname"] for case in seen if case["exp_alerts"]} == set(alerts())
    assert {case["alertname"] for case in seen if not case["exp_alerts"]} == set(alerts())


def test_every_recording_rule_is_seen_with_a_value_and_without() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    values: dict[str, list[float]] = {}
    for case in cases("promql_expr_test"):
        for record in recorded:
            if record in case["expr"]:
                values.setdefault(record, []).extend(
                    sample["value"] for sample in case["exp_samples"] or [{"value": 0}]
                )
    assert set(values) == recorded
    for record, found in values.items():
        assert any(found), f"{record} is 0 in every case"
        assert not all(found), f"{record} is never 0 or absent"
