"""The table of variants: size, accuracy, latency and throughput side by side."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch import Tensor

from training.artifacts import Run, Variant, write_bytes, write_json
from training.evaluation.evaluate import Model, load_evaluation
from training.evaluation.latency import Latency, measure_latency
from training.models.weights import load_card
from training.options.config import WITH_CONTROL_FLOW

BATCH_SIZES = (1, 32)
SECONDS_PER_BATCH_SIZE = 2.0

WHAT_IT_DOES = (
    "Dynamic quantization knows linear layers, not convolutions. A ResNet has one linear layer, its last: only that "
    "one is int8 in int8-dynamic, so size, latency and accuracy hardly differ from fp32. Its single scale for the "
    "whole batch makes answers depend on their batch-mates; the last column says by how much."
)
WHAT_STATIC_DOES = (
    "In int8-static all layers are int8, with scales that calibration fixed: a smaller, faster model whose answers "
    "depend on their own image alone."
)
WHAT_STATIC_DOES_BEFORE_A_LOOP = (
    "In int8-static the layers before the loop are int8, with scales that calibration fixed; the loop and its exits "
    "stay float32."
)
WHAT_QAT_DOES = (
    "int8-qat has the kernels of int8-static and weights of its own, which were trained on with the rounding in place."
)


@dataclass(frozen=True)
class Row:
    """One variant of the table."""

    variant: Variant
    size_bytes: int
    accuracy: float
    negative_log_likelihood: float
    batch_dependence: float
    latency: list[Latency]
    images_per_second: float
    """On one thread, at the largest of the batch sizes."""


def compare(run: Run, models: Mapping[Variant, Model], images: Tensor) -> None:
    """Leave the table of the models, in the forms that are served, in the run, and print it.

    The figures of accuracy are evaluate's.
    """
    latencies = measure_latency(models, images, BATCH_SIZES, SECONDS_PER_BATCH_SIZE)
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
                images_per_second=latencies[variant][-1].batch_size / latencies[variant][-1].median_ms * 1e3,
            )
        )
    loops = load_card(run).architecture in WITH_CONTROL_FLOW
    note = f"{WHAT_IT_DOES} {WHAT_STATIC_DOES_BEFORE_A_LOOP if loops else WHAT_STATIC_DOES}"
    if "int8-qat" in models:
        note += f" {WHAT_QAT_DOES}"
    write_json(run.comparison, {"note": note, "num_threads": 1, "variants": [asdict(row) for row in rows]})
    table = markdown(rows)
    write_bytes(run.comparison_table, f"{table}\n\n{note}\n".encode())
    print(f"{table}\n{note}")


def markdown(rows: list[Row]) -> str:
    """Return the rows as a table for people; latency is the median with its quartiles."""
    sizes = " | ".join(f"batch of {size}, ms" for size in BATCH_SIZES)
    lines = [
        f"| variant | size, MB | accuracy | NLL | {sizes} | images/s | alone or batched differ by |",
        f"|---|---|---|---|{'---|' * len(BATCH_SIZES)}---|---|",
    ]
    for row in rows:
        times = " | ".join(
            f"{each.median_ms:.2f} ({each.first_quartile_ms:.2f}-{each.third_quartile_ms:.2f})" for each in row.latency
        )
        lines.append(
            f"| {row.variant} | {row.size_bytes / 1e6:.2f} | {row.accuracy:.4f} | {row.negative_log_likelihood:.4f} "
            f"| {times} | {row.images_per_second:,.0f} | {row.batch_dependence:.2g} |"
        )
    return "\n".join(lines)
