"""An operator's changes to a model: each is recorded with an event, then carried out, or refused with an event."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from service.domain.archive import Archive, StoreError
from service.domain.backend import Target
from service.domain.model_state import Entry, ModelState, VersionRecord
from service.domain.traffic import Policy, TrafficInvalid, check_share
from service.errors.admin import (
    ArchiveNotFound,
    ArchiveRefused,
    LabelNotFound,
    NothingEarlier,
    RolloutActive,
    TooManyWorkers,
    TrafficRefused,
    VersionExists,
    VersionInUse,
    VersionNotReady,
)
from service.errors.gateway import BackendError, GatewayError
from service.errors.request import ModelNotFound, VersionNotFound
from service.persistence.archives.model_store import ModelStore
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.serving.version_loader import SelfCheckFailed


@dataclass(frozen=True, slots=True)
class AdminContext:
    """A change as it was asked for, and the revision of the state that it is based on; None is the latest."""

    entry: Entry
    revision: int | None


class Operations:
    """Changes versions, traffic and labels."""

    def __init__(self, store: ModelStore, reconciler: Reconciler, registry: Registry, max_workers: int) -> None:
        self._store = store
        self._max_workers = max_workers
        self._reconciler = reconciler
        self._registry = registry

    @asynccontextmanager
    async def noted(self, entry: Entry) -> AsyncIterator[None]:
        """Write into the event log what is refused inside."""
        try:
            yield
        except GatewayError as error:
            await self._registry.refuse(entry, error)
            raise

    async def change(
        self, asked: AdminContext, edit: Callable[[ModelState], ModelState], detail: str = ""
    ) -> ModelState:
        """Record a change of a model, or in the event log why it was refused."""
        async with self.noted(asked.entry):
            return await self._registry.change(asked.entry, asked.revision, edit, detail)

    async def register(self, asked: AdminContext, model: str, file: str, num_workers: int | None) -> ModelVersion:
        """Record an archive of the model store, and have it loaded and checked; a model's first gets all the traffic.

        If it does not become ready, the record is withdrawn.
        """
        asked = replace(asked, entry=replace(asked.entry, subject=file))
        before = self._registry.models.get(model, ModelState(model))
        async with self.noted(asked.entry):
            self._require_few(num_workers or 1)
            archive = await self._archive(model, file)
            if self._reconciler.find(archive.target) is not None:  # it may still drain
                raise VersionExists(model, archive.version)

        def edit(state: ModelState) -> ModelState:
            if archive.version in state.wanted:
                raise VersionExists(model, archive.version)
            versions = {**state.versions, archive.version: VersionRecord(archive, num_workers)}
            return replace(state, versions=versions, policy=state.policy or Policy.all_to(archive.version))

        def withdrawn(state: ModelState) -> ModelState:
            versions = {version: each for version, each in state.versions.items() if version != archive.version}
            if (earlier := before.versions.get(archive.version)) is not None:
                versions[archive.version] = replace(earlier, is_wanted=False)
            is_first = state.policy is not None and state.policy.sole == archive.version and before.policy is None
            return replace(state, versions=versions, policy=None if is_first else state.policy)

        await self.change(asked, edit, archive.version)
        return await self._carried_out(asked.entry, archive.target, withdrawn)

    async def _carried_out(
        self, entry: Entry, target: Target, withdrawn: Callable[[ModelState], ModelState]
    ) -> ModelVersion:
        """Return the version once it is as recorded; else withdraw what was recorded, and raise why."""
        try:
            return await self._reconciler.settled(target)
        except (GatewayError, StoreError, SelfCheckFailed) as error:
            is_archive = not isinstance(error, BackendError) or not error.is_outage
            refusal = ArchiveRefused(str(error).rstrip(".")) if entry.action == "register" and is_archive else error
            await self._registry.withdraw(entry, withdrawn, refusal)
            await self._reconciler.retired(target)
            raise refusal from error

    async def unregister(self, asked: AdminContext, model: str, version: str) -> None:
        """Drain and unload a version; one that has traffic, a label or a rollout is refused."""

        def edit(state: ModelState) -> ModelState:
            record = _wanted(state, version)
            if users := state.users_of(version):
                raise VersionInUse(model, version, " and ".join(users))
            return replace(state, versions={**state.versions, version: replace(record, is_wanted=False)})

        await self.change(asked, edit)
        await self._reconciler.retired(Target(model, version))

    async def scale(self, asked: AdminContext, model: str, version: str, num_workers: int) -> ModelVersion:
        """Record another number of workers, and have the version get it; if that fails, the record is withdrawn."""

        def edited(state: ModelState, number: int | None) -> ModelState:
            record = replace(_wanted(state, version), num_workers=number)
            return replace(state, versions={**state.versions, version: record})

        async with self.noted(asked.entry):
            before = self._ready(model, version).record.num_workers
            self._require_few(num_workers)
        await self.change(asked, lambda state: edited(state, num_workers))
        return await self._carried_out(asked.entry, Target(model, version), lambda state: edited(state, before))

    async def set_traffic(
        self,
        asked: AdminContext,
        model: str,
        weights: Mapping[str, float],
        sticky_header: str | None,
        shadows: Mapping[str, float],
    ) -> ModelState:
        """Set how a model's requests are divided among its versions."""

        def edit(state: ModelState) -> ModelState:
            _known(state)
            if state.rollout is not None:
                raise RolloutActive(model, state.rollout.id)
            try:
                policy = (state.policy or Policy({})).reweighed(weights)
                for version, share in shadows.items():
                    check_share(version, share)
            except TrafficInvalid as error:
                raise TrafficRefused(str(error)) from error
            for version in (*policy.owned, *shadows):
                self._require_ready(state, version)
            header = None if sticky_header is None else sticky_header.lower()
            return state.directed(replace(policy, sticky_header=header, shadows=dict(shadows)))

        return await self.change(asked, edit)

    async def roll_back(self, asked: AdminContext, model: str) -> ModelState:
        """Return all traffic to the version that last had 100 %, other than the present one."""

        def edit(state: ModelState) -> ModelState:
            _known(state)
            if state.rollout is not None:
                return state.rolled(replace(state.rollout, state="aborted", reason="rolled back by hand"))
            now = None if state.policy is None else state.policy.sole
            for version in reversed(state.earlier):
                model_version = self._reconciler.find(Target(model, version))
                is_ready = model_version is not None and model_version.state == "ready" and version in state.wanted
                if is_ready and version != now:
                    return state.returned(version)
            raise NothingEarlier(model)

        return await self.change(asked, edit)

    async def set_label(self, asked: AdminContext, model: str, label: str, version: str) -> ModelState:
        """Point a label at a version."""

        def edit(state: ModelState) -> ModelState:
            self._require_ready(state, version)
            return replace(state, labels={**state.labels, label: version})

        return await self.change(asked, edit, version)

    async def delete_label(self, asked: AdminContext, model: str, label: str) -> ModelState:
        """Delete a label."""

        def edit(state: ModelState) -> ModelState:
            _known(state)
            if label not in state.labels:
                raise LabelNotFound(model, label, sorted(state.labels))
            return replace(state, labels={name: v for name, v in state.labels.items() if name != label})

        return await self.change(asked, edit)

    def _require_few(self, num_workers: int) -> None:
        if num_workers > self._max_workers:
            raise TooManyWorkers(num_workers, self._max_workers)

    def _require_ready(self, state: ModelState, version: str) -> None:
        _wanted(state, version)
        self._ready(state.model, version)

    def _ready(self, model: str, version: str) -> ModelVersion:
        model_version = loaded(self._reconciler, Target(model, version))
        if model_version.state != "ready":
            raise VersionNotReady(model, version, model_version.state)
        return model_version

    async def _archive(self, model: str, file: str) -> Archive:
        try:
            catalog = await asyncio.to_thread(self._store.catalog)
        except StoreError as error:
            raise ArchiveRefused(str(error).rstrip(".")) from error
        archives = {archive.file: archive for archive in catalog.of(model)}
        if file not in archives:
            raise ArchiveNotFound(file, sorted(archives))
        return archives[file]


def loaded(reconciler: Reconciler, target: Target) -> ModelVersion:
    """Return what is in service as `target`, ready or not; raises VersionNotFound."""
    versions = reconciler.view.model_versions.get(target.model, {})
    if target.version not in versions:
        raise VersionNotFound(target.model, target.version, list(versions))
    return versions[target.version]


def _known(state: ModelState) -> None:
    if not state.wanted:
        raise ModelNotFound(state.model, [])


def _wanted(state: ModelState, version: str) -> VersionRecord:
    _known(state)
    if version not in state.wanted:
        raise VersionNotFound(state.model, version, list(state.wanted))
    return state.wanted[version]
