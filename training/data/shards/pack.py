"""The verb that packs a folder of images into tar shards."""

import hashlib
import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from training.artifacts import SPLITS, Split, write_json
from training.data.broken import report_broken
from training.data.decode import ImageShape
from training.data.shards.tar import INDEX
from training.data.sources.labelled import LabelledImages
from training.data.sources.open_source import open_source
from training.data.split import stratified_split
from training.errors import DataError, SettingError
from training.options.config import Broken

SMALLEST = ImageShape(channels=3, height=1, width=1)  # enough to see whether an image can be read


def pack(data: str, folder: Path, *, images_per_shard: int, broken: Broken) -> None:
    """Leave the images of each split, in an order that mixes classes, in shards of so many, the last of fewer.

    A file goes in as it is; pixels that came in an array become a PNG. The folder appears when it is complete; the same
    images give the same bytes. Raises SettingError if it is there already, DataError for images as `broken` says.
    """
    if folder.exists():
        raise SettingError(f"--shards: {folder} is there already; allowed is a new folder")
    source = _readable(open_source(data), broken)
    split = stratified_split(source.labels, source.keys, source.test)
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = folder.parent / f".{folder.name}-{secrets.token_hex(4)}"
    hidden.mkdir()
    try:
        names = {name: _write_split(source, name, split[name], hidden, images_per_shard) for name in SPLITS}
        write_json(hidden / INDEX, {"source": source.description, "classes": source.classes, "shards": names})
        hidden.rename(folder)
    except BaseException:
        shutil.rmtree(hidden)
        raise
    counts = ", ".join(f"{len(split[name])} {name} in {len(names[name])}" for name in SPLITS)
    print(f"{source.description}: {len(source.classes)} classes; {counts} shards, in {folder}")


def _readable(source: LabelledImages, broken: Broken) -> LabelledImages:
    if source.files is None:
        return source  # their pixels were read already
    reasons: dict[int, str] = {}
    for index in tqdm(range(len(source.keys)), desc="check", unit="image", disable=None, leave=False):
        try:
            SMALLEST.pixels(source.load(index))
        except DataError as error:
            reasons[index] = str(error)
    report_broken({source.keys[index]: reason for index, reason in reasons.items()}, broken)
    return source.without(reasons) if reasons else source


def _write_split(
    source: LabelledImages, split: Split, indices: list[int], folder: Path, images_per_shard: int
) -> dict[str, int]:
    """Write the shards of one split; return the number of images of each."""
    # Folders come sorted by class; a stream is shuffled only within its buffer.
    mixed = sorted(indices, key=lambda index: hashlib.sha256(os.fsencode(source.keys[index])).digest())
    counts = {}
    bar = tqdm(total=len(mixed), desc=f"pack {split}", unit="image", disable=None, leave=False)
    with bar:
        for number, start in enumerate(range(0, len(mixed), images_per_shard)):
            name = f"{split}-{number:06d}.tar"
            members = mixed[start : start + images_per_shard]
            with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as archive:
                for position, index in enumerate(members, start=start):
                    for suffix, content in _files(source, index):
                        member = tarfile.TarInfo(f"{split}-{position:08d}{suffix}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
                    bar.update()
            counts[name] = len(members)
    return counts


def _files(source: LabelledImages, index: int) -> Iterator[tuple[str, bytes]]:
    if source.files is not None:
        path = source.files[index]
        yield path.suffix.lower(), path.read_bytes()
    else:
        stream = io.BytesIO()
        source.load(index).save(stream, "PNG")
        yield ".png", stream.getvalue()
    yield ".cls", str(source.labels[index]).encode()
