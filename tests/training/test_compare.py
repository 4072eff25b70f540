"""The table of variants."""

import json

import torch
from torch import Tensor

from training.artifacts import Run
from training.compare import measure_latency


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


def test_measured_on_one_thread_with_calls_that_alternate() -> None:
    num_threads = torch.get_num_threads()
    calls: list[str] = []

    def model(name: str, batch: Tensor) -> Tensor:
        assert torch.get_num_threads() == 1
        calls.append(name)
        return batch

    measure_latency(
        {"fp32": lambda batch: model("a", batch), "int8-dynamic": lambda batch: model("b", batch)},
        torch.zeros(3, 1, 2, 2, dtype=torch.uint8),
    )
    assert torch.get_num_threads() == num_threads
    assert calls == ["a", "b"] * (len(calls) // 2)
