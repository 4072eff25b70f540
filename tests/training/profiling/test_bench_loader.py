"""The loader's benchmark says what limits training."""

import pytest

from training.profiling.bench_loader import Rates, as_table, conclusion


def rates(loader: float, model: float, both: float, workers: int = 0, *, streamed: bool = True) -> Rates:
    return Rates(loader, model, both, batch_size=50, workers=workers, streamed=streamed)


@pytest.mark.parametrize(
    ("measured", "says", "not_says"),
    [
        (rates(100, 400, 80), "input pipeline is the bottleneck: the model could take 4.0 times as many", "model is"),
        (rates(100, 400, 80, workers=2), "--workers 4", "--workers 2"),
        (rates(100, 400, 80, streamed=False), "less augmentation, or more cores", "--workers"),
        (rates(900, 300, 225), "25% of training's time goes by beside the model's step", "pipeline is"),
        (rates(900, 300, 290), "The model is the bottleneck: the loader gives 3.0 times as many", "beside"),
        (rates(900, 300, 310), "A faster loader would not help", "beside"),
    ],
)
def test_conclusions(measured: Rates, says: str, not_says: str) -> None:
    assert says in conclusion(measured)
    assert not_says not in conclusion(measured)


def test_table() -> None:
    assert as_table(rates(1000, 500, 250)).splitlines()[2:] == [
        "| loader alone | 1,000 | 50.00 |",
        "| model step alone | 500 | 100.00 |",
        "| both, as in training | 250 | 200.00 |",
    ]
