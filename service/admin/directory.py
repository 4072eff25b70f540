"""Whose key it is: the keys of the settings and of the clients' file, which is read again when it changes."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from service.admin.file_watch import FileWatch
from service.config.clients import ClientEntry, ClientsInvalid, Scope, digest, read_clients
from service.config.settings import Settings
from service.domain.caller import Caller
from service.domain.token_bucket import TokenBucket
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

OF_PLAIN_KEYS: frozenset[Scope] = frozenset({"predict", "read"})


class ClientDirectory:
    """Finds callers by their keys. Digests are compared: to look one up takes as long, however much was guessed."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._path = settings.clients_file
        self._clients: dict[str, tuple[ClientEntry, Caller]] = {}  # of the file
        self._plain: Mapping[bytes, Caller] = {
            digest(key.encode()): self._caller(f"key-{number}", ClientEntry(keys=(key,), scopes=OF_PLAIN_KEYS))
            for number, key in enumerate(settings.keys, 1)
        }
        self._by_digest = self._plain
        self._watch: FileWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self.asks_for_key = bool(self._plain) or self._path is not None
        if self._path is not None:
            self._watch = FileWatch(self._path)
            self._use(read_clients(self._path))

    def find(self, known_as: bytes) -> Caller | None:
        """Return whose key has this digest, None if it is nobody's."""
        return self._by_digest.get(known_as)

    def anybody(self) -> Caller:
        """Return a new caller without a key."""
        return Caller(quota=self._quota(None, None))

    def start(self) -> None:
        """Begin to look for changes of the file."""
        if self._path is not None and self._watch is not None:
            self._watching = asyncio.get_running_loop().create_task(self._follow(self._path, self._watch))

    async def close(self) -> None:
        """Stop looking."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _follow(self, path: Path, watch: FileWatch) -> None:
        while True:
            await watch.until_changed()
            try:
                entries = await asyncio.to_thread(read_clients, path)
            except ClientsInvalid as error:
                logger.error("the clients stay as they were: %s", error)  # noqa: TRY400 - the cause may show keys
            else:
                self._use(entries)
                logger.info("%s was read again: %d clients", path, len(entries))

    def _use(self, entries: Mapping[str, ClientEntry]) -> None:
        """Replace the clients. One whose entry is the same keeps its turn and what it has used of its quota."""
        clients: dict[str, tuple[ClientEntry, Caller]] = {}
        by_digest = dict(self._plain)
        for name, entry in entries.items():
            known = self._clients.get(name)
            caller = known[1] if known is not None and known[0] == entry else self._caller(name, entry)
            clients[name] = entry, caller
            for each in entry.digests:
                by_digest[each] = caller
        for name in self._clients.keys() - clients.keys():
            self._metrics.callers.forget(name)
        self._clients, self._by_digest = clients, by_digest

    def _caller(self, name: str, entry: ClientEntry) -> Caller:
        quota = self._quota(entry.images_per_second, entry.burst_images)
        return Caller(name, entry.share, entry.scopes, quota, self._metrics.callers.images.labels(name).inc)

    def _quota(self, rate: float | None, burst: float | None) -> TokenBucket | None:
        rate = rate or self._settings.quota_images_per_second
        if not rate:
            return None
        return TokenBucket(rate, burst or self._settings.quota_burst_images or max(rate, self._settings.max_images))
