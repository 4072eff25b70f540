"""The model store as the gateway uses it: its catalog, contracts, and verified copies to load."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from service.config.settings import Settings
from service.domain.archive import Archive, Catalog, StoreError, TrustError
from service.domain.backend import VerifiedArchive
from service.domain.contract import Contract
from service.persistence.archives import copies
from service.persistence.archives.contents import read_contract, require_few_workers
from service.persistence.archives.counters import Counters
from service.persistence.archives.manifest import MANIFEST, read_catalog
from service.persistence.archives.trust import AnyManifest, SignedManifest, Trust
from service.persistence.database import Database
from service.telemetry.metrics import Metrics


class ModelStore:
    """Gives only what the manifest lists, with the sha256 that it lists. Everything here blocks on disk."""

    def __init__(self, settings: Settings, database: Database, metrics: Metrics) -> None:
        self._folder = settings.model_store
        self._max_workers = settings.max_workers_per_version
        keys = settings.trusted_keys_dir
        tell_expiry = metrics.manifest_expiry.set
        self._trust: Trust = AnyManifest() if keys is None else SignedManifest(keys, Counters(database), tell_expiry)
        self._is_embedded = settings.backend == "workers"
        self._copies = None if self._is_embedded else settings.verified_archives_dir

    def catalog(self) -> Catalog:
        """Return what the manifest lists; raises StoreError."""
        return read_catalog(self._folder, self._trust)

    def contract(self, archive: Archive) -> Contract:
        """Check an archive and return its contract.

        Raises:
            StoreError: the file is missing, is not the one in the manifest, carries no valid contract, or asks for
                more workers than a version may have.
        """
        with self._opened(archive) as file:
            copies.check(file, archive.sha256)
            require_few_workers(file, self._max_workers)
            return read_contract(file, archive)

    def verified(self, archive: Archive, stop: threading.Event) -> VerifiedArchive:
        """Return what a backend may load, checked now; the caller closes it. `stop` ends the copying early.

        A TorchServe with a store of its own (no TORCHGATE_VERIFIED_ARCHIVES_DIR) reads its own file: then this checks
        the gateway's file only.

        Raises:
            StoreError: the file is missing or is not the one in the manifest, or there is no room for the copy.
        """
        with ExitStack() as stack:
            file = stack.enter_context(self._opened(archive))
            if self._is_embedded:
                return copies.private_copy(file, archive.sha256, stop)
            if self._copies is not None:
                return copies.named_copy(file, archive.sha256, self._copies, stop)
            copies.check(file, archive.sha256)
            return VerifiedArchive(file, archive.file, stack.pop_all().close)

    def is_verified(self, archive: Archive, loaded_file: str) -> bool:
        """Return whether what a backend loaded from `loaded_file` can be this archive; only a copy's name tells."""
        return self._copies is None or loaded_file.startswith(archive.sha256)

    @contextmanager
    def _opened(self, archive: Archive) -> Iterator[BinaryIO]:
        """Open an archive that the manifest lists now; what the database still wants may be revoked."""
        path = self._folder / archive.file
        if archive not in self.catalog().archives:
            listed = f"{self._folder / MANIFEST} does not list it with the sha256 {archive.sha256}"
            raise TrustError("revoked", f"{path}: {listed}. Unregister the version, or list and sign it again")
        try:
            with copies.opened(path) as file:
                yield file
        except TrustError as error:
            raise TrustError(error.fault, f"{path}: {error.text}") from error
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
