"""Registers the archives of the model store."""

import asyncio
import logging
import math
import time
from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Literal

from service.config.settings import Settings
from service.domain.archive import Archive, Catalog, StoreError, TrustError, TrustFault
from service.domain.model_state import Entry, ModelState, VersionRecord
from service.domain.traffic import Policy
from service.persistence.archives.model_store import ModelStore
from service.persistence.registry import Registry
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

StorePolicy = Literal["latest", "all", "specific"]


def offered(catalog: Catalog, model: str, policy: StorePolicy) -> list[Archive]:
    """Return the archives of `model` that the policy registers: all, those of the newest release, or none."""
    archives = [] if policy == "specific" else catalog.of(model)
    return [each for each in archives if policy == "all" or each.release == archives[0].release]


def noticed(state: ModelState, archives: Sequence[Archive], *, may_replace: bool) -> ModelState:
    """Return the state with the archives registered; without a policy, the first one gets all the traffic.

    An unregistered version stays unregistered. With `may_replace`, a new archive replaces the recorded one of the same
    version, as when a model store was made anew. While a version is served, its archive never changes.
    """
    versions = dict(state.versions)
    for archive in archives:
        known = versions.get(archive.version)
        if known is None:
            versions[archive.version] = VersionRecord(archive)
        elif known.archive != archive and may_replace:
            versions[archive.version] = replace(known, archive=archive)
    first = Policy.all_to(archives[0].version) if archives else None
    return replace(state, versions=versions, policy=state.policy or first)


class ModelStoreWatcher:
    """Reads the model store at the start and then periodically: registers new archives, and names revoked ones."""

    def __init__(self, settings: Settings, store: ModelStore, registry: Registry, metrics: Metrics) -> None:
        self._settings = settings
        self._store = store
        self._registry = registry
        self._metrics = metrics
        self._told: dict[TrustFault, Set[Archive]] = {"revoked": set(), "unknown_key": set()}
        self._next_look = 0.0  # time.monotonic(); for new archives
        self._next_check = 0.0  # time.monotonic(); of what is loaded

    async def look(self, ready: Collection[Archive], *, is_serving: bool) -> None:
        """Read the store if it is time; always while nothing can be served. `ready` are those that answer now.

        Raises:
            StoreError: the store has nothing to serve, or cannot be read.
            StateUnavailable: the database cannot be used.
        """
        now = time.monotonic()
        if is_serving and now < min(self._next_look, self._next_check):
            return
        self._next_check = now + self._settings.revocation_poll_seconds
        store = self._settings.model_store
        catalog = await self._catalog(ready)
        if is_serving and now < self._next_look:
            return
        if not catalog.archives and not is_serving:
            raise StoreError(f"no archive in {store}/manifest.json yet (make train-and-archive puts some there)")
        await self._registry.open()
        wanted = self._settings.default_model
        if wanted not in {None, *catalog.models, *self._registry.models}:
            models = ", ".join(catalog.models)
            raise StoreError(f"TORCHGATE_DEFAULT_MODEL={wanted} is not in {store}/manifest.json, which has {models}")
        for model in catalog.models:
            await self._register(model, offered(catalog, model, self._settings.model_store_policy), is_serving)
        pause = self._settings.model_store_poll_seconds
        self._next_look = time.monotonic() + pause if pause else math.inf
        if not any(state.wanted for state in self._registry.models.values()):
            raise StoreError(
                f"no version is registered; TORCHGATE_MODEL_STORE_POLICY={self._settings.model_store_policy} leaves "
                "that to POST /models/MODEL/versions"
            )

    async def _catalog(self, ready: Collection[Archive]) -> Catalog:
        """Return what the manifest lists, and tell which versions it no longer vouches for."""
        try:
            catalog = await asyncio.to_thread(self._store.catalog)
        except TrustError as error:
            self._metrics.archive_refusals.labels(error.fault).inc()
            if error.fault == "unknown_key":
                await self._tell("unknown_key", set(ready), "no trusted key has signed the manifest")
            raise
        await self._tell("unknown_key", set(), "")
        await self._tell("revoked", set(ready) - set(catalog.archives), "the manifest no longer lists it")
        return catalog

    async def _tell(self, fault: TrustFault, untrusted: Set[Archive], why: str) -> None:
        """Show how many ready versions would not be loaded again, and say of each once which it is.

        They go on: what lies in a folder takes no version out of traffic, an operator does that.
        """
        self._metrics.untrusted_versions.labels(fault).set(len(untrusted))
        new = untrusted - self._told[fault]
        self._told[fault] = untrusted
        for archive in sorted(new, key=lambda each: each.file):
            text = f"{why}: it goes on until it is unregistered, never loaded again ({fault})"
            logger.warning("%s: %s", archive.target, text)
            self._metrics.archive_refusals.labels(fault).inc()
            await self._registry.note(Entry("gateway", "notice", archive.model, archive.version, ""), "refused", text)

    async def _register(self, model: str, archives: Sequence[Archive], is_serving: bool) -> None:
        edit = partial(noticed, archives=archives, may_replace=not is_serving)
        known = self._registry.models.get(model, ModelState(model))
        if edit(known) != known:
            entry = Entry("gateway", "notice", model, ", ".join(archive.version for archive in archives))
            await self._registry.change(entry, None, edit, "found in the model store")
