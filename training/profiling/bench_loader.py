"""What limits training: the way that images take to the model, or the model's own step."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from training.artifacts import Run, write_json
from training.data.batches import Batch, BatchSource
from training.data.dataset import Dataset, load_dataset
from training.data.open_batches import open_batches
from training.engine.assembly import build_stepper
from training.options.config import TrainConfig
from training.options.execution import ExecutionOptions, check_train
from training.parallel.single import SingleProcess

Step = list[Batch]
"""The batches of one step: one, or as many as --accumulation says."""
NUM_WARM_UP_STEPS = 3
NOTICEABLE = 0.1
"""Share of a step's time below which waiting for images is not worth a word."""


@dataclass(frozen=True)
class Rates:
    """Images per second: of the loader, augmentation included, of the model's step, and of the two as in training."""

    loader: float
    model: float
    both: float
    batch_size: int
    workers: int
    streamed: bool
    """From tar shards, whose images are decoded as they come; else from arrays."""

    @property
    def waiting(self) -> float:
        """The share of training's time that the model's step does not take: 0 if it never waits."""
        return max(0.0, 1 - self.both / self.model)


def bench_loader(run: Run, config: TrainConfig, device: torch.device, *, seconds: float, report: Path | None) -> None:
    """Print the three rates of a prepared run and what they mean, each measured for so long; write them as JSON."""
    dataset = load_dataset(run)
    check_train(config, device, is_stream=dataset.stream is not None)
    step = _step(dataset, config, device)

    def batches() -> Iterator[Step]:
        endless = _endless(open_batches(run, dataset, config, device=device))
        while True:
            yield list(islice(endless, config.accumulation))

    first = next(batches())
    rates = Rates(
        loader=_rate(lambda taken: None, batches(), seconds, device),
        model=_rate(step, iter(lambda: first, None), seconds, device),
        both=_rate(step, batches(), seconds, device),
        batch_size=config.batch_size,
        workers=config.loader.workers,
        streamed=dataset.stream is not None,
    )
    print(f"{as_table(rates)}\n\n{conclusion(rates)}")
    if report is not None:
        write_json(report, {**asdict(rates), "conclusion": conclusion(rates), "device": str(device)})


def as_table(rates: Rates) -> str:
    """Return the rates as a table for people."""
    rows = {"loader alone": rates.loader, "model step alone": rates.model, "both, as in training": rates.both}
    lines = ["| | images/s | ms per batch |", "|---|---|---|"]
    lines += [f"| {name} | {rate:,.0f} | {1000 * rates.batch_size / rate:.2f} |" for name, rate in rows.items()]
    return "\n".join(lines)


def conclusion(rates: Rates) -> str:
    """Return what limits training, and what would help."""
    if rates.streamed:
        remedy = f"decoding in more workers, where cores are free (--workers {max(2, 2 * rates.workers)})"
    else:
        remedy = "less augmentation"
    if rates.loader < rates.model:
        cheaper = "images packed at a smaller size" if rates.streamed else "more cores"
        return (
            f"The input pipeline is the bottleneck: the model could take {rates.model / rates.loader:.1f} times as "
            f"many images as the loader gives. What would help is {remedy}, or {cheaper}; a faster model would not."
        )
    ratio = rates.loader / rates.model
    verdict = f"The model is the bottleneck: the loader gives {ratio:.1f} times as many images as the model takes."
    if rates.waiting < NOTICEABLE:
        return f"{verdict} A faster loader would not help."
    return (
        f"{verdict} Even so {rates.waiting:.0%} of training's time goes by beside the model's step, as both use the "
        f"same processor; {remedy} would give some of it back."
    )


def _step(dataset: Dataset, config: TrainConfig, device: torch.device) -> Callable[[Step], object]:
    """Return the run's own step, of a new network."""
    # So small a rate, and so long a schedule, that the weights stay finite for as long as it is measured.
    calm = replace(config, learning_rate=1e-6, schedule="cosine", gamma=None)
    stepper = build_stepper(dataset, calm, ExecutionOptions(), SingleProcess(device), steps_per_epoch=10**9)
    stepper.network.train()
    return lambda batches: stepper.step(batches, "the measurement", stop_asked=lambda: False)


def _endless(source: BatchSource) -> Iterator[Batch]:
    while True:
        yield from source


def _rate(use: Callable[[Step], object], steps: Iterator[Step], seconds: float, device: torch.device) -> float:
    """Return how many images a second are used, once what is lazy has been made."""
    for _ in range(NUM_WARM_UP_STEPS):
        use(next(steps))
    _wait(device)
    start, num_images = time.perf_counter(), 0
    while time.perf_counter() - start < seconds or not num_images:
        batches = next(steps)
        use(batches)
        num_images += sum(batch.num_images for batch in batches)
    _wait(device)
    return num_images / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
