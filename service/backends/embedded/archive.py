"""Unpacks an archive into a folder, trusting nothing that it says of itself."""

import errno
import os
import stat
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pydantic import AliasPath, BaseModel, Field

from service.domain.archive import StoreError
from service.domain.backend import Target

MANIFEST = "MAR-INF/MANIFEST.json"
MEBIBYTE = 1024 * 1024
MAX_MEMBERS = 2000
MAX_UNPACKED_BYTES = 16 * 1024 * MEBIBYTE
# Weights hardly shrink; text does, by ten or twenty.
MAX_RATIO = 100
SMALL_BYTES = 16 * MEBIBYTE  # which no ratio makes harmful
MAX_MANIFEST_BYTES = MEBIBYTE
MAX_NAME_BYTES = 200
COPY_BYTES = MEBIBYTE
HANDLER = r"^[A-Za-z_][A-Za-z0-9_]*(\.py)?(:[A-Za-z_][A-Za-z0-9_]*)?$"
ENCRYPTED = 0x1
COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


class _Manifest(BaseModel):
    name: str = Field(validation_alias=AliasPath("model", "modelName"))
    version: str = Field(validation_alias=AliasPath("model", "modelVersion"))
    handler: str = Field(validation_alias=AliasPath("model", "handler"), pattern=HANDLER)


@dataclass(frozen=True)
class Unpacked:
    """An archive that lies unpacked in a folder."""

    folder: Path
    handler: str  # as the manifest names it: a module of the archive, and maybe a function in it


def unpack(file: BinaryIO, folder: Path, target: Target, stop: threading.Event) -> Unpacked:
    """Unpack an archive into `folder`, which must not exist yet. Blocks on disk; `stop` ends it early.

    Raises:
        StoreError: it cannot be read or written, is not safe to unpack, or is not the archive of `target`; what was
            written lies in `folder` for the caller to remove.
    """
    try:
        folder.mkdir(mode=0o700)
        with zipfile.ZipFile(file) as archive:
            members = _checked(archive, file.seek(0, os.SEEK_END))
            for member, place in members:
                _write(archive, member, folder / place, stop)
            return Unpacked(folder, _handler(archive, members, target))
    except StoreError as error:
        raise StoreError(f"the archive of {target}: {error}") from error
    except OSError as error:
        what = "the disk is full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else str(error)
        raise StoreError(f"the archive of {target} cannot be unpacked into {folder}: {what}") from error
    # zlib.error and the like come from archives made to break the reader.
    except Exception as error:
        raise StoreError(f"the archive of {target} cannot be unpacked: {type(error).__name__}: {error}") from error


def _checked(archive: zipfile.ZipFile, archive_bytes: int) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """Return the files with their places; the reader delivers no more of a file than its declared size."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise StoreError(f"it has {len(infos)} members; at most {MAX_MEMBERS} are allowed")
    num_bytes = sum(info.file_size for info in infos)
    if num_bytes > MAX_UNPACKED_BYTES:
        raise StoreError(f"it unfolds to {num_bytes} bytes; at most {MAX_UNPACKED_BYTES} are allowed")
    if num_bytes > max(SMALL_BYTES, MAX_RATIO * archive_bytes):
        raise StoreError(f"it unfolds to {num_bytes} bytes, more than {MAX_RATIO} times its size")
    files: dict[str, tuple[zipfile.ZipInfo, PurePosixPath]] = {}
    folders: set[str] = set()
    for info in infos:
        place = _place(info)
        key = str(place).casefold()
        folders |= {str(parent).casefold() for parent in place.parents}
        if info.is_dir():
            folders.add(key)
        elif key in files:
            raise StoreError(f"it holds {str(place)!r} twice")
        else:
            files[key] = info, place
    if both := folders & files.keys():
        raise StoreError(f"it holds {min(both)!r} as a file and as a folder")
    return list(files.values())


def _place(info: zipfile.ZipInfo) -> PurePosixPath:
    """Return where a member goes, below the folder."""
    name = info.orig_filename
    shown = repr(name[:100])
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise StoreError(f"its member {shown} is a link or a device")
    if info.flag_bits & ENCRYPTED or info.compress_type not in COMPRESSIONS:
        raise StoreError(f"its member {shown} is encrypted or compressed in an unusual way")
    parts = name.removesuffix("/").split("/")
    if (
        any(part in {"", ".", ".."} or len(part.encode()) > MAX_NAME_BYTES for part in parts)
        or not name.isprintable()
        or "\\" in name
        or ":" in name
        or len(parts) > 16
    ):
        raise StoreError(f"its member {shown} has a name that leads out of the folder or is not portable")
    return PurePosixPath(*parts)


def _write(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: Path, stop: threading.Event) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with archive.open(info) as source, place.open("xb") as copy:
        while part := source.read(COPY_BYTES):
            if stop.is_set():
                raise StoreError("unpacking was stopped")
            copy.write(part)


def _handler(archive: zipfile.ZipFile, members: list[tuple[zipfile.ZipInfo, PurePosixPath]], target: Target) -> str:
    """Return the handler that the archive's own manifest names."""
    places = {str(place): info for info, place in members}
    if MANIFEST not in places:
        raise StoreError(f"it has no {MANIFEST}")
    if places[MANIFEST].file_size > MAX_MANIFEST_BYTES:
        raise StoreError(f"its {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        model = _Manifest.model_validate_json(archive.read(places[MANIFEST]))
    except ValueError as error:
        raise StoreError(f"{MANIFEST}: {error}") from error
    if Target(model.name, model.version) != target:
        raise StoreError(f"it holds {model.name} {model.version}, not {target}")
    module = model.handler.partition(":")[0].removesuffix(".py")
    if f"{module}.py" not in places:
        raise StoreError(f"it does not hold its handler {module}.py")
    return model.handler
