"""What an operator may have done to a model: each is one change with one event, or a refusal with one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from service.config.settings import Settings
from service.domain.archive import Archive, StoreError, read_catalog
from service.domain.backend import Target
from service.domain.model_state import Entry, ModelState, VersionRecord
from service.domain.traffic import Policy, TrafficInvalid, check_share
from service.errors.admin import (
    ArchiveNotFound,
    ArchiveRefused,
    LabelNotFound,
    NothingEarlier,
    RolloutActive,
    TrafficRefused,
    VersionExists,
    VersionInUse,
    VersionNotReady,
)
from service.errors.gateway import GatewayError
from service.errors.request import ModelNotFound, VersionNotFound
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Who asks, why, and which revision of the state the change is based on; None is whichever there is."""

    actor: str
    reason: str
    revision: int | None


class Operations:
    """Changes versions, traffic and labels."""

    def __init__(self, settings: Settings, reconciler: Reconciler, registry: Registry) -> None:
        self._settings = settings
        self._reconciler = reconciler
        self._registry = registry

    async def noted(self, entry: Entry, change: Callable[[], Awaitable[T]]) -> T:
        """Return what `change` returns; if it is refused, the event log says so."""
        try:
            return await change()
        except GatewayError as error:
            await self._registry.refuse(entry, error)
            raise

    async def register(self, asked: AdminContext, model: str, file: str, num_workers: int | None) -> ModelVersion:
        """Load an archive of the model store, check it, and offer it; the first of a model gets all the traffic."""
        entry = Entry(asked.actor, "register", model, file, asked.reason)

        async def change() -> ModelVersion:
            archive = await self._archive(model, file)
            model_version = await self._reconciler.admit(archive, num_workers)

            def edit(state: ModelState) -> ModelState:
                if archive.version in state.wanted:
                    raise VersionExists(model, archive.version)
                versions = {**state.versions, archive.version: VersionRecord(archive, num_workers)}
                return replace(state, versions=versions, policy=state.policy or Policy.all_to(archive.version))

            try:
                await self._registry.change(entry, asked.revision, edit, archive.version)
            except BaseException:
                await self._reconciler.dismiss(model_version)
                raise
            self._reconciler.offer(model_version)
            return model_version

        return await self.noted(entry, change)

    async def unregister(self, asked: AdminContext, model: str, version: str) -> None:
        """Let a version answer what it has, and unload it; one that anything still leads to stays."""
        entry = Entry(asked.actor, "unregister", model, version, asked.reason)

        def edit(state: ModelState) -> ModelState:
            record = _wanted(state, version)
            if users := state.users_of(version):
                raise VersionInUse(model, version, " and ".join(users))
            return replace(state, versions={**state.versions, version: replace(record, is_wanted=False)})

        await self.noted(entry, lambda: self._registry.change(entry, asked.revision, edit))
        await self._reconciler.retired(Target(model, version))

    async def scale(self, asked: AdminContext, model: str, version: str, num_workers: int) -> ModelVersion:
        """Give a version another number of workers."""
        entry = Entry(asked.actor, "scale", model, version, asked.reason)

        def edit(state: ModelState) -> ModelState:
            record = _wanted(state, version)
            return replace(state, versions={**state.versions, version: replace(record, num_workers=num_workers)})

        async def change() -> ModelVersion:
            model_version = self._ready(model, version)
            await self._reconciler.scale(
                model_version, num_workers, lambda: self._registry.change(entry, asked.revision, edit)
            )
            return model_version

        return await self.noted(entry, change)

    async def set_traffic(
        self,
        asked: AdminContext,
        model: str,
        weights: Mapping[str, float],
        sticky_header: str | None,
        shadows: Mapping[str, float],
    ) -> ModelState:
        """Divide a model's requests anew."""
        entry = Entry(asked.actor, "traffic", model, "", asked.reason)

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

        return await self.noted(entry, lambda: self._registry.change(entry, asked.revision, edit))

    async def roll_back(self, asked: AdminContext, model: str) -> ModelState:
        """Give all traffic to the version that had all of it last, apart from the one that may have it now."""
        entry = Entry(asked.actor, "rollback", model, "", asked.reason)

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

        return await self.noted(entry, lambda: self._registry.change(entry, asked.revision, edit))

    async def set_label(self, asked: AdminContext, model: str, label: str, version: str) -> ModelState:
        """Have a label mean a version."""
        entry = Entry(asked.actor, "label", model, label, asked.reason)

        def edit(state: ModelState) -> ModelState:
            self._require_ready(state, version)
            return replace(state, labels={**state.labels, label: version})

        return await self.noted(entry, lambda: self._registry.change(entry, asked.revision, edit, version))

    async def delete_label(self, asked: AdminContext, model: str, label: str) -> ModelState:
        """Have a label mean nothing any more."""
        entry = Entry(asked.actor, "unlabel", model, label, asked.reason)

        def edit(state: ModelState) -> ModelState:
            _known(state)
            if label not in state.labels:
                raise LabelNotFound(model, label, sorted(state.labels))
            return replace(state, labels={name: v for name, v in state.labels.items() if name != label})

        return await self.noted(entry, lambda: self._registry.change(entry, asked.revision, edit))

    def _require_ready(self, state: ModelState, version: str) -> None:
        _wanted(state, version)
        self._ready(state.model, version)

    def _ready(self, model: str, version: str) -> ModelVersion:
        model_version = self._reconciler.find(Target(model, version))
        if model_version is None:
            versions = self._reconciler.view.model_versions.get(model, {})
            raise VersionNotFound(model, version, list(versions))
        if model_version.state != "ready":
            raise VersionNotReady(model, version, model_version.state)
        return model_version

    async def _archive(self, model: str, file: str) -> Archive:
        try:
            settings = self._settings
            catalog = await asyncio.to_thread(read_catalog, settings.model_store, settings.manifest_key_file)
        except StoreError as error:
            raise ArchiveRefused(str(error).rstrip(".")) from error
        archives = {archive.file: archive for archive in catalog.of(model)}
        if file not in archives:
            raise ArchiveNotFound(file, sorted(archives))
        return archives[file]


def _known(state: ModelState) -> None:
    if not state.wanted:
        raise ModelNotFound(state.model, [])


def _wanted(state: ModelState, version: str) -> VersionRecord:
    _known(state)
    if version not in state.wanted:
        raise VersionNotFound(state.model, version, list(state.wanted))
    return state.wanted[version]
