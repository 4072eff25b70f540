"""Reads the contract inside an archive, and what it asks of TorchServe."""

import json
import re
import zipfile
from typing import BinaryIO

from service.config.environment import env_name
from service.domain.archive import Archive, StoreError
from service.domain.backend import Target
from service.domain.contract import Contract, ContractInvalid, parse_contract

CONTRACT = "contract.json"
# A contract is text of a few hundred kilobytes at most; an archive that claims more is not ours.
MAX_CONTRACT_BYTES = 16 * 1024 * 1024
ARCHIVE_MANIFEST = "MAR-INF/MANIFEST.json"
# A line with a number of workers as people write it. YAML has many other ways, and TorchServe reads them all: what may
# be one of them is refused. Those are the words elsewhere, escapes that may spell them, and UTF-16.
WORKERS = re.compile(rb"^[ \t]*m(?:in|ax)Workers[ \t]*:[ \t]+(0|[1-9][0-9]{0,8})[ \t]*(?:#.*)?\r?$", re.MULTILINE)
MAY_BE_WORKERS = re.compile(rb"m(?:in|ax)Workers|\\|\0")


def read_contract(file: BinaryIO, archive: Archive) -> Contract:
    """Return the contract of the open archive. Blocks on disk.

    Raises:
        StoreError: it carries no valid contract, or one of another version.
    """
    try:
        contract = _contract(file)
    except KeyError as error:
        raise StoreError(f"it has no {CONTRACT}") from error
    except (StoreError, ContractInvalid) as error:
        raise StoreError(str(error)) from error
    # zipfile, its decompressors and json raise many kinds of errors on a malformed archive.
    except Exception as error:
        raise StoreError(f"{CONTRACT}: {type(error).__name__}: {error}") from error
    if Target(contract.model, contract.version) != archive.target:
        raise StoreError(
            f"it holds {contract.model} {contract.version}, the manifest says {archive.model} {archive.version}"
        )
    return contract


def require_few_workers(file: BinaryIO, max_workers: int) -> None:
    """Raise StoreError if the open archive's own settings ask for more workers. Blocks on disk.

    TorchServe puts the numbers of an archive's `configFile` above those of the call that loads it.
    """
    try:
        with zipfile.ZipFile(file) as archived:
            if ARCHIVE_MANIFEST not in archived.namelist():
                return
            config = json.loads(_read(archived, ARCHIVE_MANIFEST)).get("model", {}).get("configFile")
            found = _numbers_of_workers(_read(archived, config), config) if config else []
    except StoreError:
        raise
    except Exception as error:  # as above
        raise StoreError(f"{ARCHIVE_MANIFEST}: {type(error).__name__}: {error}") from error
    if (num_workers := max(found, default=0)) > max_workers:
        raise StoreError(
            f"its {config} asks for {num_workers} workers, {env_name('max_workers_per_version')} allows {max_workers}"
        )


def _numbers_of_workers(written: bytes, config: str) -> list[int]:
    found = WORKERS.findall(written)
    if len(MAY_BE_WORKERS.findall(written)) > len(found):
        raise StoreError(
            f"its {config} may ask for workers in an unusual way: give each number in a line of its own, "
            "in UTF-8 without backslashes, such as minWorkers: 1"
        )
    return [int(number) for number in found]


def _read(archived: zipfile.ZipFile, name: str) -> bytes:
    if archived.getinfo(name).file_size > MAX_CONTRACT_BYTES:
        raise StoreError(f"{name} is larger than {MAX_CONTRACT_BYTES} bytes")
    return archived.read(name)


def _contract(file: BinaryIO) -> Contract:
    with zipfile.ZipFile(file) as archived:
        return parse_contract(json.loads(_read(archived, CONTRACT)))
