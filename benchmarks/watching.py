"""What it costs to look at answers after they went out: counting them, comparing them with the contract's reference."""

import asyncio
import math
import random
import statistics
import time

from service.domain.backend import BatchAnswer, Ranking, Target
from service.domain.contract import Contract, Reference
from service.monitoring.drift import DriftLimits
from service.monitoring.drift_monitor import PAUSE_SECONDS, DriftMonitor
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import DriftMetrics

NUM_PASSES = 2000
REPEATS = 15
NUM_CLASSES = 10


def run_watching() -> None:
    """Print the time for each image, at several rates and sizes of batches."""
    print("| images/s | images in a batch | µs for each image, median (least-largest) |\n|---|---|---|")
    for rate, batch_size in ((50, 1), (1000, 1), (1000, 20), (10_000, 20)):
        times = [asyncio.run(_us_per_image(round(rate * PAUSE_SECONDS), batch_size)) for _ in range(REPEATS)]
        print(f"| {rate:,} | {batch_size} | {statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f}) |")


async def _us_per_image(num_images: int, batch_size: int) -> float:
    """Return the microseconds for each image where so many come between two looks, scores included."""
    target, classes = Target("digits", "1.0"), tuple(str(index) for index in range(NUM_CLASSES))
    edges = (0.0, *(1 / (1 + math.exp(-step / 2)) for step in range(-14, 29)), 1.0)
    reference = Reference((1 / NUM_CLASSES,) * NUM_CLASSES, edges, (10,) * (len(edges) - 1))
    contract = Contract(target.model, target.version, classes, "", 0.0, (), {}, reference)
    metrics = DriftMetrics(Metrics(), target, classes)
    monitor = DriftMonitor(target, contract, DriftLimits(1000, 100.0, 1.0), metrics)
    draw = random.Random(0)  # noqa: S311 - made-up answers
    batches = [
        BatchAnswer([_answer(draw) for _ in range(batch_size)], 0.0, 0.0) for _ in range(num_images // batch_size)
    ]
    started = time.process_time()
    for _ in range(NUM_PASSES):
        for batch in batches:
            monitor.take(batch)
        monitor.count()
    return (time.process_time() - started) / NUM_PASSES / num_images * 1e6


def _answer(draw: random.Random) -> Ranking:
    return Ranking([(draw.randrange(NUM_CLASSES), 1 / (1 + math.exp(-draw.gauss(9, 3))))])
