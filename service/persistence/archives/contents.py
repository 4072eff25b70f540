"""Reads the contract inside an archive."""

import json
import zipfile
from typing import BinaryIO

from service.domain.archive import Archive, StoreError
from service.domain.backend import Target
from service.domain.contract import Contract, ContractInvalid, parse_contract

CONTRACT = "contract.json"
# A contract is text of a few hundred kilobytes at most; an archive that claims more is not ours.
MAX_CONTRACT_BYTES = 16 * 1024 * 1024


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


def _contract(file: BinaryIO) -> Contract:
    with zipfile.ZipFile(file) as archived:
        if archived.getinfo(CONTRACT).file_size > MAX_CONTRACT_BYTES:
            raise StoreError(f"{CONTRACT} is larger than {MAX_CONTRACT_BYTES} bytes")
        return parse_contract(json.loads(archived.read(CONTRACT)))
