"""The gateway's prediction log, as the trainer reads it: the names of its files and columns, and their rows.

The gateway has the same names in service/monitoring/prediction_log/; a test compares them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.errors import DataError

PREDICTION_COLUMNS = ("time", "id", "index", "model", "version", "class", "confidence", "latency_seconds")
INPUT_COLUMNS = ("input_sha256", "image")  # empty unless inputs are kept
FEEDBACK_COLUMNS = ("time", "id", "index", "model", "version", "predicted", "label")
# Kind, time, writer, and the numbers of the first and the last of that writer's files whose rows it holds.
FILE_NAME = re.compile(r"(predictions|feedback)-(\d{8}T\d{9}Z)-([0-9a-f]{8})-(\d{8,})-(\d{8,})\.parquet")


@dataclass(frozen=True)
class Label:
    """What somebody says that one image of an answer really is."""

    answer_id: str
    item: int
    model: str
    version: str
    predicted: str
    label: str


def log_files(folder: Path, kind: str) -> Sequence[Path]:
    """Return the log's files of a kind, in the order of time; those whose rows another has as well are left out.

    Raises DataError if there is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"--log: {folder} is not a folder")
    found = []
    for path in folder.iterdir():
        match = FILE_NAME.fullmatch(path.name)
        if match and match[1] == kind:
            found.append((match[3], int(match[4]), -int(match[5]), path))
    kept: list[Path] = []
    writer, covered = "", -1
    for name, _, last, path in sorted(found):
        if name != writer:
            writer, covered = name, -1
        if -last > covered:
            kept.append(path)
            covered = -last
    return sorted(kept)


def read(folder: Path, kind: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Give those columns of each file. A log that is written meanwhile may lose files, the oldest first.

    Raises DataError, naming the file, if one is no such Parquet file.
    """
    for path in log_files(folder, kind):
        try:
            with pq.ParquetFile(path) as file:
                table = file.read(columns=list(columns))
        except FileNotFoundError:
            continue
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"--log: {path} cannot be read: {error}") from error
        if missing := set(columns) - set(table.schema.names):
            raise DataError(f"--log: {path} has no column {', '.join(sorted(missing))}")
        yield table


def read_labels(folder: Path) -> list[Label]:
    """Return all feedback of the log."""
    columns = FEEDBACK_COLUMNS[1:]
    return [
        Label(*row)
        for table in read(folder, "feedback", columns)
        for row in zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    ]
