"""Leases that elect a leader among gateways: one for rollouts, and one for each model server that gateways share.

admin/rollout_controller.py uses the first, serving/reconciler.py the second: only the leader loads and unloads.

No clocks are compared. The holder increments a number in the database; a gateway that sees the same number for
LEASE_SECONDS takes the lease over. While the database is unreachable, the last holder stays the leader: nobody can
change the state then, and the model server may restart and need its versions.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.errors.admin import StateUnavailable
from service.persistence.database import Database
from service.persistence.tables import leases

logger = logging.getLogger(__name__)

ROLLOUTS = "rollouts"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_NAME = 100
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RENEW_SECONDS = 1.0
LEASE_SECONDS = 4.0


def model_server_lease(host: str, port: int | Path) -> str:
    """Return the name of the lease for a model server, by the address of its management API: a port or a socket.

    A loopback address means another server on every machine, so the machine's name takes its place. Containers that
    share a socket have names of their own: there it is the number that the kernel drew when the machine started.
    """
    if isinstance(port, Path):
        host = BOOT_ID.read_text().strip() if BOOT_ID.exists() else socket.gethostname()
        return f"{host}:{port.absolute()}"[-LONGEST_NAME:]
    return f"{socket.gethostname() if host in LOOPBACK else host}:{port}"[-LONGEST_NAME:]


@dataclass(frozen=True)
class LeaseRecord:
    """Who holds the lease, and its number of renewals."""

    holder: str
    beat: int


class Lease:
    """This gateway's part in one election."""

    def __init__(
        self, database: Database, gateway: str, name: str = ROLLOUTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._database = database
        self._gateway = gateway
        self._clock = clock
        self._seen: LeaseRecord | None = None
        self._seen_at = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Return whether this gateway is the leader."""
        return self._seen is not None and self._seen.holder == self._gateway

    @property
    def is_known(self) -> bool:
        """Return whether the database has said who holds the lease."""
        return self._seen is not None

    async def start(self) -> None:
        """Begin to renew the lease, or to watch its holder."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Release the lease, so that another gateway need not wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.is_held:
            try:
                await self._database.call(self._release)
            except StateUnavailable as error:
                logger.info("the next leader must wait until the lease expires: %s", error)

    async def renew(self) -> None:
        """Renew the lease or take it over; raises StateUnavailable."""
        stale = self._seen if self._clock() - self._seen_at > LEASE_SECONDS else None
        found = await self._database.call(self._take, stale)
        was_held = self.is_held
        if found != self._seen:
            self._seen, self._seen_at = found, self._clock()
        if self.is_held != was_held:
            logger.info("this gateway %s %s", "leads" if self.is_held else "does not lead any more", self._name)

    async def _keep(self) -> None:
        while True:
            try:
                await self.renew()
            except StateUnavailable as error:
                logger.debug("the lease cannot be renewed: %s", error)
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("renewing the lease failed; it goes on")
            await asyncio.sleep(RENEW_SECONDS)

    def _take(self, stale: LeaseRecord | None) -> LeaseRecord:
        """Take the lease if it is free, ours, or still `stale`; return its holder."""
        with self._database.writing() as connection:
            row = connection.execute(select(leases).where(leases.c.name == self._name).with_for_update()).one_or_none()
            if row is None:
                try:
                    connection.execute(insert(leases).values(name=self._name, holder=self._gateway, beat=1))
                except IntegrityError:  # another one was first
                    return LeaseRecord("", 0)
                return LeaseRecord(self._gateway, 1)
            found = LeaseRecord(row.holder, row.beat)
            if found.holder != self._gateway and found != stale:
                return found
            values = {"holder": self._gateway, "beat": found.beat + 1}
            connection.execute(update(leases).where(leases.c.name == self._name).values(values))
            return LeaseRecord(self._gateway, found.beat + 1)

    def _release(self) -> None:
        with self._database.writing() as connection:
            connection.execute(delete(leases).where(leases.c.name == self._name, leases.c.holder == self._gateway))
