"""Logged images whose class somebody said, as a folder that `prepare --data` learns from."""

import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from training.artifacts import write_bytes
from training.errors import DataError
from training.prediction_log.records import Label, read, read_labels

NUM_NAME_DIGITS = 32  # of a sum's 64
TENSOR = b"\x93NUMPY"


@dataclass(frozen=True)
class Collected:
    """What became of the images that have a label."""

    num_images: Mapping[str, int]  # in each class
    num_contradictory: int  # that were given several classes
    num_unusable: int  # of no format that Pillow knows


def collect_images(log: Path, folder: Path, model: str | None) -> Collected:
    """Write each logged image of `model` that has a label to folder/LABEL/SUM.FORMAT, named after its SHA-256.

    An image that came often is written once, and not at all if people do not agree about it. What the log says of an
    image replaces its class of an earlier collection into the folder.

    Raises DataError if no image has a label, the labels are of several models, or one cannot name a folder.
    """
    labels = {(each.answer_id, each.item): each for each in read_labels(log) if model in (None, each.model)}
    models = sorted({each.model for each in labels.values()})
    if len(models) > 1:
        raise DataError(f"--log: {log} has feedback for {', '.join(models)}; --name says for which")
    for name in sorted({each.label for each in labels.values()}):
        if name.startswith(".") or "/" in name or "\0" in name or not name:
            raise DataError(f"--log: class {name!r} cannot be the name of a folder")
    earlier: dict[str, list[Path]] = {}  # of an earlier collection, by the name that a sum gives
    for path in folder.glob("*/*"):
        earlier.setdefault(path.stem, []).append(path)
    placed: dict[str, tuple[str, Path]] = {}  # by sum, where it lies
    contradictory: set[str] = set()
    unusable: set[str] = set()
    for image, label in _labelled_images(log, labels):
        digest = hashlib.sha256(image).hexdigest()
        if digest in contradictory or digest in unusable:
            continue
        if digest in placed:
            if placed[digest][0] != label.label:
                _remove(placed.pop(digest)[1])
                contradictory.add(digest)
            continue
        usable = _usable(image)
        if usable is None:
            unusable.add(digest)
            continue
        content, suffix = usable
        path = folder / label.label / f"{digest[:NUM_NAME_DIGITS]}{suffix}"
        for old in earlier.pop(path.stem, []):
            if old != path:
                _remove(old)
        write_bytes(path, content)
        placed[digest] = label.label, path
    if not placed:
        raise DataError(
            f"--log: {log} has no image with a label; TORCHGATE_PREDICTION_LOG_INPUTS=image logs images, and "
            "POST /feedback labels them"
        )
    counts = Counter(name for name, _ in placed.values())
    return Collected(dict(sorted(counts.items())), len(contradictory), len(unusable))


def _remove(path: Path) -> None:
    path.unlink()
    with suppress(OSError):  # others lie there
        path.parent.rmdir()


def _labelled_images(log: Path, labels: Mapping[tuple[str, int], Label]) -> Iterator[tuple[bytes, Label]]:
    answers = pa.array({answer_id for answer_id, _ in labels}, pa.string())
    columns = ("id", "index", "image")
    for table in read(log, "predictions", columns):
        found = table.filter(pc.is_in(table.column("id"), value_set=answers))
        for answer_id, item, image in zip(*(found.column(name).to_pylist() for name in columns), strict=True):
            label = labels.get((answer_id, item))
            if label is not None and image is not None:
                yield image, label


def _usable(content: bytes) -> tuple[bytes, str] | None:
    """Return what a file of the image holds, and its suffix; a tensor becomes a PNG. None if it is no image."""
    try:
        if content.startswith(TENSOR):
            pixels = np.load(io.BytesIO(content), allow_pickle=False)  # uint8 [C, H, W]: else it had no class
            stream = io.BytesIO()
            Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(stream, "PNG")
            return stream.getvalue(), ".png"
        with Image.open(io.BytesIO(content)) as image:
            name = image.format
    except (OSError, ValueError):
        return None
    return content, next(suffix for suffix, format_name in Image.registered_extensions().items() if format_name == name)
