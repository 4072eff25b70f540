"""The rules of deploy/prometheus as tests read them."""

from collections.abc import Sequence
from typing import Any

import yaml

from tests.torchserve_process import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
FILES = ("recording.yml", "alerts.yml")


def rules(*files: str) -> Sequence[dict[str, Any]]:
    """Return the rules of these files, of all if none is named."""
    documents = [yaml.safe_load((FOLDER / name).read_text()) for name in files or FILES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}
