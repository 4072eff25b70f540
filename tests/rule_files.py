"""The rules of deploy/prometheus as tests read them."""

import re
from collections.abc import Sequence
from typing import Any

import yaml

from tests.torchserve_process import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
FILES = ("recording.yml", "alerts.yml")
MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}


def rules(*files: str) -> Sequence[dict[str, Any]]:
    """Return the rules of these files, of all if none is named."""
    documents = [yaml.safe_load((FOLDER / name).read_text()) for name in files or FILES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def shortened(file: str, factor: int) -> dict[str, Any]:
    """Return a file of rules with every window, offset, wait and interval shorter by `factor`."""
    document: dict[str, Any] = yaml.safe_load((FOLDER / file).read_text())
    for group in document["groups"]:
        for place in (group, *group["rules"]):
            for key in {"expr", "for", "interval"} & place.keys():
                # A name like ratio_rate5m has no boundary before its number.
                place[key] = re.sub(
                    r"\b(\d+)([mhd])\b", lambda found: f"{int(found[1]) * MS[found[2]] // factor}ms", place[key]
                )
    return document
