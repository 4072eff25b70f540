"""What the prediction log says of each version: how sure it was, how fast, of which classes, and how often right."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.stats import binomtest

from training.errors import DataError
from training.prediction_log.records import PREDICTION_COLUMNS, Label, read, read_labels

NUM_HISTOGRAM_BINS = 20
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Accuracy:
    """How often a version was right, by the feedback that came back, with Wilson's 95 % interval.

    What people send back is seldom a random sample of what was asked.
    """

    num_labelled: int
    num_correct: int
    accuracy: float
    low: float
    high: float
    mean_confidence_correct: float | None  # of those whose prediction is in the log, too
    mean_confidence_wrong: float | None


@dataclass(frozen=True)
class VersionReport:
    """What the log has of one version. Latencies are of requests, in seconds; the rest is of images."""

    model: str
    version: str
    num_requests: int
    num_predictions: int
    first: str | None  # UTC
    last: str | None
    class_shares: dict[str, float]
    mean_confidence: float | None
    confidence_histogram: list[int]  # over equal parts of 0 to 1
    latency_seconds: dict[str, float]  # p50, p95, p99
    feedback: Accuracy | None


@dataclass
class _Seen:
    """What has been read of one version."""

    num_predictions: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    confidence_sum: float = 0.0
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_HISTOGRAM_BINS, np.int64))
    latencies: list[NDArray[np.float64]] = field(default_factory=list)
    first: int | None = None  # microseconds since 1970
    last: int | None = None
    labels: list[Label] = field(default_factory=list)
    confidence: dict[tuple[str, int], float] = field(default_factory=dict)  # of what has a label

    def add(self, table: pa.Table, is_first: NDArray[np.bool_]) -> None:
        """Take in rows of the version; `is_first` marks one row of each request."""
        confidence = table.column("confidence").to_numpy()
        times = table.column("time").cast(pa.int64()).to_numpy()
        self.num_predictions += table.num_rows
        self.confidence_sum += float(confidence.sum())
        edges = np.arange(NUM_HISTOGRAM_BINS + 1) / NUM_HISTOGRAM_BINS
        self.histogram += np.histogram(np.minimum(confidence, 1), bins=edges)[0]  # softmax may round to more than 1
        for each in table.column("class").value_counts().to_pylist():
            self.classes[each["values"]] += each["counts"]
        self.latencies.append(table.column("latency_seconds").to_numpy()[is_first])
        low, high = int(times.min()), int(times.max())
        self.first = low if self.first is None else min(self.first, low)
        self.last = high if self.last is None else max(self.last, high)


def log_report(folder: Path) -> list[VersionReport]:
    """Return what the log in `folder` says, by model and version; raises DataError if it says nothing."""
    seen: dict[tuple[str, str], _Seen] = {}
    labels = read_labels(folder)
    labelled = pa.array({each.answer_id for each in labels}, pa.string())
    for table in read(folder, "predictions", PREDICTION_COLUMNS):
        for key, rows, is_first in _by_version(table):
            version = seen.setdefault(key, _Seen())
            version.add(rows, is_first)
            found = rows.filter(pc.is_in(rows.column("id"), value_set=labelled))
            ids, items = found.column("id").to_pylist(), found.column("index").to_pylist()
            version.confidence.update(
                zip(zip(ids, items, strict=True), found.column("confidence").to_pylist(), strict=True)
            )
    for label in labels:
        seen.setdefault((label.model, label.version), _Seen()).labels.append(label)
    if not seen:
        raise DataError(f"--log: {folder} has no rows yet; a gateway with TORCHGATE_PREDICTION_LOG_DIR writes them")
    return [_report(*key, version) for key, version in sorted(seen.items())]


def _by_version(table: pa.Table) -> Iterator[tuple[tuple[str, str], pa.Table, NDArray[np.bool_]]]:
    """Give each version's key and rows, with a mark at the first row of each request; those lie together."""
    ids = table.column("id").combine_chunks()
    is_first = np.ones(table.num_rows, bool)
    if table.num_rows > 1:
        is_first[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    names = table.select(["model", "version"])
    for pair in names.group_by(["model", "version"]).aggregate([]).to_pylist():
        key = pair["model"], pair["version"]
        mask = pc.and_(pc.equal(table.column("model"), key[0]), pc.equal(table.column("version"), key[1]))
        yield key, table.filter(mask), is_first[mask.to_numpy()]


def _report(model: str, version: str, seen: _Seen) -> VersionReport:
    latencies = np.concatenate(seen.latencies) if seen.latencies else np.empty(0)
    number = seen.num_predictions
    return VersionReport(
        model=model,
        version=version,
        num_requests=len(latencies),
        num_predictions=number,
        first=_utc(seen.first),
        last=_utc(seen.last),
        class_shares={name: count / number for name, count in sorted(seen.classes.items())},
        mean_confidence=seen.confidence_sum / number if number else None,
        confidence_histogram=seen.histogram.tolist(),
        latency_seconds={f"p{each}": float(np.percentile(latencies, each)) for each in PERCENTILES if len(latencies)},
        feedback=_accuracy(seen.labels, seen.confidence) if seen.labels else None,
    )


def _accuracy(labels: Iterable[Label], confidence: Mapping[tuple[str, int], float]) -> Accuracy:
    results = [(each.predicted == each.label, confidence.get((each.answer_id, each.item))) for each in labels]
    num_correct = sum(is_correct for is_correct, _ in results)
    interval = binomtest(num_correct, len(results)).proportion_ci(0.95, method="wilson")
    return Accuracy(
        num_labelled=len(results),
        num_correct=num_correct,
        accuracy=num_correct / len(results),
        low=float(interval.low),
        high=float(interval.high),
        mean_confidence_correct=_mean(sure for is_correct, sure in results if is_correct and sure is not None),
        mean_confidence_wrong=_mean(sure for is_correct, sure in results if not is_correct and sure is not None),
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _utc(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="seconds")


def as_text(reports: Iterable[VersionReport]) -> str:
    """Return the reports as a table for people, and the classes of each version below it."""
    lines = [
        "| version | images | confidence | p50, p95, p99, ms | feedback | accuracy (95 % interval) |",
        "|---|---|---|---|---|---|",
    ]
    below = []
    for each in reports:
        cells: list[Any] = [f"{each.model} {each.version}", each.num_predictions]
        cells.append("" if each.mean_confidence is None else f"{each.mean_confidence:.4f}")
        cells.append(", ".join(f"{seconds * 1000:.1f}" for seconds in each.latency_seconds.values()))
        if each.feedback is None:
            cells += [0, ""]
        else:
            given = each.feedback
            cells += [given.num_labelled, f"{given.accuracy:.2%} ({given.low:.2%}-{given.high:.2%})"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        shares = sorted(each.class_shares.items(), key=lambda item: -item[1])
        if shares:
            below.append(f"{each.model} {each.version}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares))
    return "\n".join([*lines, "", *below])
