"""What the prediction log costs: a request, its own thread, the disk."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from service.domain.backend import Ranking, Target
from service.monitoring.prediction_log.log import ParquetLog
from service.monitoring.prediction_log.parquet import predictions, warm_up
from service.monitoring.prediction_log.records import Answered, NoLog, PredictionLog
from service.monitoring.signed_ids import PredictionIds, target_bytes
from service.telemetry.metrics import Metrics

NUM_ROWS = 5000  # as a busy gateway has in half a second
REPEATS = 30
CLASSES = tuple(map(str, range(10)))
RESULTS = [Ranking([(7, 0.991234)])]
TARGET = Target("digits", "1.0")


def run_prediction_log() -> None:
    """Print what a row costs, and where."""
    prediction_ids = PredictionIds()
    prediction_ids.use(b"k" * 32)
    ids = [prediction_ids.issue(target_bytes(TARGET), [7]) for _ in range(NUM_ROWS)]
    warm_up()
    with tempfile.TemporaryDirectory() as name:
        nowhere = Path(name) / "log"
        ways: dict[str, Callable[[], PredictionLog]] = {
            "off": NoLog,
            "on, every request": lambda: ParquetLog(nowhere, 2**30, 1, "none", Metrics()),
            "on, one request of 100": lambda: ParquetLog(nowhere, 2**30, 0.01, "none", Metrics()),
        }
        print("| of a request | µs, median (least-largest) |\n|---|---|")
        for way, make in ways.items():
            times = [_us_per_request(make(), ids) for _ in range(REPEATS)]
            print(f"| {way} | {statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f}) |")
    records = [Answered(time.time(), answer_id, TARGET, CLASSES, RESULTS, 0.01, ()) for answer_id in ids]
    cpu, bytes_per_row = [], 0.0
    for _ in range(REPEATS):
        started = time.thread_time()
        content = predictions(records, with_images=False)
        cpu.append((time.thread_time() - started) / NUM_ROWS * 1e6)
        bytes_per_row = content.data.nbytes / NUM_ROWS
    print(f"\nthe log's thread takes {statistics.median(cpu):.2f} µs of a core for a row, of {bytes_per_row:.0f} bytes")


def _us_per_request(log: PredictionLog, ids: list[str]) -> float:
    take = log.answered
    started = time.perf_counter()
    for answer_id in ids:
        take(answer_id, TARGET, CLASSES, RESULTS, 0.01, ())
    return (time.perf_counter() - started) / len(ids) * 1e6
