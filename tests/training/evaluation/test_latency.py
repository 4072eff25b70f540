"""Times are of one thread, and of calls that alternate."""

import torch
from torch import Tensor

from training.evaluation.latency import measure_latency


def test_measured_on_one_thread_with_calls_that_alternate() -> None:
    num_threads = torch.get_num_threads()
    calls: list[str] = []

    def model(name: str, batch: Tensor) -> Tensor:
        assert torch.get_num_threads() == 1
        calls.append(name)
        return batch

    latencies = measure_latency(
        {"a": lambda batch: model("a", batch), "b": lambda batch: model("b", batch)},
        torch.zeros(3, 1, 2, 2, dtype=torch.uint8),
        batch_sizes=(1, 8),
        seconds_per_size=0.01,
    )
    assert torch.get_num_threads() == num_threads
    assert calls == ["a", "b"] * (len(calls) // 2)
    for measured in latencies.values():
        assert [each.batch_size for each in measured] == [1, 8]
