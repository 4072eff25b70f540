"""Turns records into Parquet. Only this module imports pyarrow.

The columns' names are the log's format; the trainer reads them in training/prediction_log/records.py.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.domain.backend import Ranking
from service.monitoring.prediction_log.records import Answered, Labelled

SCHEMA_VERSION = b"1"
_TIME = pa.timestamp("us", tz="UTC")
_METADATA = {b"torchgate_schema_version": SCHEMA_VERSION}
# Of every row: which image of which answer.
_PLACE = [("time", _TIME), ("id", pa.string()), ("index", pa.int32()), ("model", pa.string()), ("version", pa.string())]
PREDICTIONS = pa.schema(
    [
        *_PLACE,
        ("class", pa.string()),
        ("confidence", pa.float64()),
        ("latency_seconds", pa.float64()),
        ("input_sha256", pa.string()),
        ("image", pa.binary()),
    ],
    _METADATA,
)
FEEDBACK = pa.schema([*_PLACE, ("predicted", pa.string()), ("label", pa.string())], _METADATA)
# Dictionary-encoded, since their values repeat.
REPEATING = ["model", "version", "class", "predicted", "label"]
# With minimum and maximum, so that a query skips files.
COMPARABLE = ["time", "index", "model", "version", "class", "confidence", "latency_seconds", "predicted", "label"]
# After this many records the thread releases the interpreter's lock, so that the event loop runs.
NUM_UNTIL_YIELD = 64

_yield_interpreter = partial(time.sleep, 0)


@dataclass(frozen=True, slots=True)
class Content:
    """A Parquet file in memory."""

    num_rows: int
    data: memoryview


def predictions(records: Iterable[Answered], *, with_images: bool) -> Content:
    """Return a row for each image that has a class."""
    rows: list[tuple[object, ...]] = []
    for number, record in enumerate(records):
        if not number % NUM_UNTIL_YIELD:
            _yield_interpreter()
        target, at = record.target, int(record.at * 1e6)
        for index, result in enumerate(record.results):
            if not isinstance(result, Ranking):
                continue
            best, confidence = result.top_k[0]
            digest = image = None
            if record.images and isinstance(found := record.images[index], bytes):
                digest = hashlib.sha256(found).hexdigest()
                image = found if with_images else None
            place = (at, record.answer_id, index, target.model, target.version)
            rows.append((*place, record.classes[best], confidence, record.seconds, digest, image))
    return _parquet(rows, PREDICTIONS)


def labels(records: Iterable[Labelled]) -> Content:
    """Return a row for each label."""
    rows = []
    for each in records:
        place = (int(each.at * 1e6), each.answer_id, each.item, each.target.model, each.target.version)
        rows.append((*place, each.predicted, each.label))
    return _parquet(rows, FEEDBACK)


def warm_up() -> None:
    """Load what pyarrow loads on first use, before the first request: that holds the interpreter's lock."""
    for schema in (PREDICTIONS, FEEDBACK):
        _parquet([], schema)


def _parquet(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> Content:
    columns: Iterable[Sequence[object]] = zip(*rows, strict=True) if rows else [()] * len(schema)
    make: Callable[..., Any] = pa.array
    arrays = []
    for values, kind in zip(columns, schema.types, strict=True):
        _yield_interpreter()
        arrays.append(make(values, kind))
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        compression="zstd",
        use_dictionary=[name for name in REPEATING if name in schema.names],
        write_statistics=[name for name in COMPARABLE if name in schema.names],
    )
    return Content(len(rows), memoryview(sink.getvalue()))
