"""The table of variants."""

import json

from training.artifacts import Run


def test_table_has_all_variants_and_says_what_is_int8(exported: Run) -> None:
    document = json.loads(exported.comparison.read_text())
    assert [row["variant"] for row in document["variants"]] == ["fp32", "int8-dynamic", "int8-static"]
    for row in document["variants"]:
        assert row["size_bytes"] == exported.graph(row["variant"]).stat().st_size
        assert [each["batch_size"] for each in row["latency"]] == [1, 32]
        for each in row["latency"]:
            assert 0 < each["first_quartile_ms"] <= each["median_ms"] <= each["third_quartile_ms"]
    text = exported.comparison_table.read_text()
    assert "| fp32 |" in text
    assert "only that one is int8" in text
