"""The table of variants."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from training.artifacts import Run
from training.data.dataset import load_split
from training.export.graph_file import load_compiled
from training.export.variants_table import compare
from training.models.weights import load_card, save_card


def test_table_has_all_variants_and_says_what_is_int8(exported: Run) -> None:
    document = json.loads(exported.comparison.read_text())
    assert [row["variant"] for row in document["variants"]] == ["fp32", "int8-dynamic", "int8-static"]
    for row in document["variants"]:
        assert row["size_bytes"] == exported.graph(row["variant"]).stat().st_size
        assert [each["batch_size"] for each in row["latency"]] == [1, 32]
        assert row["images_per_second"] == pytest.approx(32e3 / row["latency"][1]["median_ms"])
        for each in row["latency"]:
            assert 0 < each["first_quartile_ms"] <= each["median_ms"] <= each["third_quartile_ms"]
    text = exported.comparison_table.read_text()
    assert "| fp32 |" in text
    assert "| images/s |" in text
    assert "only that one is int8" in text
    assert "In int8-static all layers are int8" in text
    assert "int8-qat" not in text


def test_of_a_network_with_a_loop_it_says_what_stays_float(exported: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(exported.folder, tmp_path / "run"))
    save_card(run, replace(load_card(run), architecture="resnet20-early-exit"))
    images, _ = load_split(run, "validation")
    compare(run, {"fp32": load_compiled(run.graph("fp32"))}, images)
    note = json.loads(run.comparison.read_text())["note"]
    assert "In int8-static the layers before the loop are int8" in note
    assert "all layers" not in note
