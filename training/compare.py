"""The table of variants: size, accuracy and latency side by side."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from training.artifacts import Run, Variant, write_bytes, write_json
from training.evaluate import Model, load_evaluation
from training.threads import one_thread

BATCH_SIZES = (1, 32)
SECONDS_PER_BATCH_SIZE = 2.0
FEWEST_REPEATS, MOST_REPEATS = 5, 60

WHAT_IT_DOES = (
    "Dynamic quantization knows linear layers, not convolutions. A ResNet has one linear layer, its last: only that "
    "one is int8 in int8-dynamic, so size, latency and accuracy hardly differ from fp32. Its single scale for the "
    "whole batch makes answers depend on their batch-mates; the last column says by how much. In int8-static all "
    "layers are int8, with scales that calibration fixed: a smaller, faster model whose answers depend on their own "
    "image alone."
)


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one call, on one thread: median and quartiles of repeats that alternate with the others'."""

    batch_size: int
    num_repeats: int
    median_ms: float
    first_quartile_ms: float
    third_quartile_ms: float


@dataclass(frozen=True)
class Row:
    """One variant of the table."""

    variant: Variant
    size_bytes: int
    accuracy: float
    negative_log_likelihood: float
    batch_dependence: float
    latency: list[Latency]


def measure_latency(models: Mapping[Variant, Model], images: Tensor) -> dict[Variant, list[Latency]]:
    """Return each model's latency on batches of uint8 images [N, C, H, W], interleaved so that noise hits all alike."""
    latencies: dict[Variant, list[Latency]] = {variant: [] for variant in models}
    with one_thread(), torch.inference_mode():
        for size in BATCH_SIZES:
            # A small split is repeated up to the size: time does not depend on what the pixels show.
            batch = images[torch.arange(size) % len(images)]
            warm = [_milliseconds(model, batch) for _ in range(3) for model in models.values()]
            affordable = int(SECONDS_PER_BATCH_SIZE * 1000 / (min(warm) * len(models)))
            num_repeats = max(FEWEST_REPEATS, min(MOST_REPEATS, affordable))
            times: dict[Variant, list[float]] = {variant: [] for variant in models}
            for _ in range(num_repeats):
                for variant, model in models.items():
                    times[variant].append(_milliseconds(model, batch))
            for variant, taken in times.items():
                first, median, third = (float(value) for value in np.percentile(taken, [25, 50, 75]))
                latencies[variant].append(Latency(size, num_repeats, median, first, third))
    return latencies


def compare(run: Run, models: Mapping[Variant, Model], images: Tensor) -> None:
    """Leave the table of the exported models in the run, and print it; the figures of accuracy are evaluate's."""
    latencies = measure_latency(models, images)
    rows = []
    for variant in models:
        evaluation = load_evaluation(run, variant)
        rows.append(
            Row(
                variant=variant,
                size_bytes=run.graph(variant).stat().st_size,
                accuracy=evaluation.report.accuracy,
                negative_log_likelihood=evaluation.report.negative_log_likelihood,
                batch_dependence=evaluation.batch_dependence.max_abs_difference,
                latency=latencies[variant],
            )
        )
    write_json(run.comparison, {"note": WHAT_IT_DOES, "num_threads": 1, "variants": [asdict(row) for row in rows]})
    table = markdown(rows)
    write_bytes(run.comparison_table, f"{table}\n\n{WHAT_IT_DOES}\n".encode())
    print(f"{table}\n{WHAT_IT_DOES}")


def markdown(rows: list[Row]) -> str:
    """Return the rows as a table for people; latency is the median with its quartiles."""
    sizes = " | ".join(f"batch of {size}, ms" for size in BATCH_SIZES)
    lines = [
        f"| variant | size, MB | accuracy | NLL | {sizes} | alone or batched differ by |",
        f"|---|---|---|---|{'---|' * len(BATCH_SIZES)}---|",
    ]
    for row in rows:
        times = " | ".join(
            f"{each.median_ms:.2f} ({each.first_quartile_ms:.2f}-{each.third_quartile_ms:.2f})" for each in row.latency
        )
        lines.append(
            f"| {row.variant} | {row.size_bytes / 1e6:.2f} | {row.accuracy:.4f} | {row.negative_log_likelihood:.4f} "
            f"| {times} | {row.batch_dependence:.2g} |"
        )
    return "\n".join(lines)


def _milliseconds(model: Model, batch: Tensor) -> float:
    start = time.perf_counter()
    model(batch)
    return (time.perf_counter() - start) * 1000
