"""All connections: how many there may be, who has them, and which one goes when they are too many.

new one ─┬─ fits ─> taken
         ├─ its address has too many ─> takes the place of that address' longest idle one
         ├─ there are too many ─> takes the place of the longest idle one of an address that has most,
         │                        none of which has fewer than its own
         └─ none is idle ─> refused: 503, Retry-After

once a second: who has not read anything of a waiting answer for long is cut off, and the greatest of those who
let answers wait, while too many bytes of answers wait in all
"""

import asyncio
import contextlib
import fcntl
import heapq
import logging
import socket
import struct
import termios
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol

from service.admin.addresses import network_of
from service.config.settings import Settings
from service.errors.gateway import AddressFull, ConnectionsFull, GatewayError
from service.http.server.clients import Client, Wire
from service.process.descriptors import most_connections, most_waiting
from service.process.listening import ADMIN, PUBLIC
from service.telemetry.metrics import Metrics
from service.telemetry.subjects.connections import EndReason

logger = logging.getLogger(__name__)

MOST_OF_ADMINS = 128  # connections to the admin listener
MOST_LOOKED_AT = 64  # connections, to find an idle one: a flood of new ones must cost little each
MOST_ADDRESSES_LOOKED_AT = 8
MOST_REFUSED = 64  # that are told why; the next ones only see that the connection ends
LOOK_SECONDS = 1.0
LEAST_READ_BYTES = 16 * 1024  # within TORCHGATE_WRITE_TIMEOUT_SECONDS, of an answer that waits
LOG_SECONDS = 10.0  # from one line about ended connections to the next


class Member(Protocol):
    """One connection, as far as the others are concerned."""

    @property
    def transport(self) -> Wire:
        """What it is written to."""

    @property
    def idle_since(self) -> float | None:
        """Since when it has no request, by the event loop's clock; None during one."""


@dataclass(eq=False, slots=True)
class Group:
    """The connections of one address to one listener."""

    most: int  # that it may have
    members: OrderedDict[Member, None] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class Reading:
    """How a client reads an answer that waits."""

    num_unread: int  # bytes when last looked at
    num_read: int  # bytes since `since`
    since: float


class Connections:
    """Bounds the connections of all and of each address, and what they leave unread."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        most = most_connections(settings.max_connections)
        self._most = {PUBLIC: most, ADMIN: MOST_OF_ADMINS}
        self.most_waiting = most_waiting(most)  # to be opened, at each listener
        self._most_per_address = min(settings.max_connections_per_address, most)
        self._write_seconds = settings.write_timeout_seconds
        self._most_unread_bytes = settings.max_buffered_bytes
        self._metrics = metrics.connections
        self._groups: dict[str, dict[str, Group]] = {PUBLIC: {}, ADMIN: {}}  # by listener and address
        self._places: dict[Member, tuple[str, str]] = {}  # listener and address
        self._num: Counter[str] = Counter()  # by listener
        self._refused: set[Member] = set()  # that are being told
        self._readings: dict[Member, Reading] = {}
        self._ended: Counter[EndReason] = Counter()  # since the last line in the log
        for listener in self._groups:
            self._metrics.open.labels(listener).set_function(partial(self._num.__getitem__, listener))

    def add(self, member: Member, client: Client, listener: str) -> GatewayError | None:
        """Take a new connection, if need be in the place of an idle one; return the reason if it cannot be taken."""
        groups = self._groups[listener]
        address = network_of(client.address)
        group = groups.get(address) or Group(self.most_of(client, listener))
        if len(group.members) >= group.most and not self._displace(group):
            return self._refuse(member, "address_full", AddressFull(group.most))
        if self._num[listener] >= self._most[listener] and not self._make_room(groups.values(), len(group.members)):
            return self._refuse(member, "full", ConnectionsFull(self._most[listener]))
        groups[address] = group
        group.members[member] = None
        self._places[member] = listener, address
        self._num[listener] += 1
        return None

    def most_of(self, client: Client, listener: str) -> int:
        """Return how many connections the address of this client may have."""
        # A proxy has as many connections as its clients need, and a Unix socket has no addresses.
        is_one = bool(client.address) and not client.is_proxy and listener == PUBLIC
        return self._most_per_address if is_one else self._most[listener]

    def count_displaced(self) -> None:
        """Count one that ended, before it was open, for a newer one of its address."""
        self._count("displaced")

    def is_told(self, member: Member) -> bool:
        """Return whether a refused connection is told so; one of a flood only sees its end."""
        return member in self._refused

    def remove(self, member: Member) -> None:
        """Forget a connection that has ended, or is about to."""
        self._refused.discard(member)
        self._readings.pop(member, None)
        place = self._places.pop(member, None)
        if place is None:
            return
        listener, address = place
        group = self._groups[listener][address]
        del group.members[member]
        if not group.members:
            del self._groups[listener][address]
        self._num[listener] -= 1

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cut off those who do not read, while the context is entered."""
        task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _make_room(self, groups: Iterable[Group], num_own: int) -> bool:
        """End an idle connection of an address that has most, and no fewer than the new one; return if one ended."""
        largest = heapq.nlargest(MOST_ADDRESSES_LOOKED_AT, groups, key=lambda each: len(each.members))
        return any(self._displace(each) for each in largest if len(each.members) >= num_own)

    def _displace(self, group: Group) -> bool:
        """End the group's longest idle connection, as far as few looks tell; return whether there is one."""
        found, longest = None, float("inf")
        busy = []
        for member in islice(group.members, MOST_LOOKED_AT):
            since = member.idle_since
            if since is None or member.transport.get_write_buffer_size():
                busy.append(member)
            elif since < longest:
                found, longest = member, since
        for member in busy:
            group.members.move_to_end(member)  # the next look begins with others
        if found is None:
            return False
        self.remove(found)
        found.transport.close()
        self._count("displaced")
        return True

    def _refuse(self, member: Member, reason: EndReason, error: GatewayError) -> GatewayError:
        self._count(reason)
        if len(self._refused) < MOST_REFUSED:
            self._refused.add(member)
        return error

    def _count(self, reason: EndReason) -> None:
        self._metrics.ended.labels(reason).inc()
        self._ended[reason] += 1

    async def _watch(self) -> None:
        told_at = float("-inf")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            try:
                self._cut_off_unread(self._cut_off_stalled(now))
            except Exception:  # one odd connection must not end the watch over all others
                logger.exception("unexpected error while connections were looked at")
            if self._ended and now - told_at >= LOG_SECONDS:
                told_at = now
                self._tell()

    def _cut_off_stalled(self, now: float) -> dict[Member, int]:
        """Cut off those that read nothing of what waits for them; return what waits in memory for each of the rest."""
        waiting = {
            member: num_bytes for member in self._places if (num_bytes := member.transport.get_write_buffer_size())
        }
        for member in self._readings.keys() - waiting.keys():
            del self._readings[member]
        for member, num_bytes in list(waiting.items()):
            num_unread = num_bytes + _num_bytes_in_kernel(member.transport)
            reading = self._readings.setdefault(member, Reading(num_unread, 0, now))
            reading.num_read += max(reading.num_unread - num_unread, 0)
            reading.num_unread = num_unread
            if reading.num_read >= LEAST_READ_BYTES:
                reading.num_read, reading.since = 0, now
            elif now - reading.since >= self._write_seconds:
                del waiting[member]
                self._cut_off(member, "stalled")
        return waiting

    def _cut_off_unread(self, waiting: dict[Member, int]) -> None:
        """While too many bytes wait in memory, cut off the greatest of the address that lets most wait."""
        num_bytes = sum(waiting.values())
        if num_bytes <= self._most_unread_bytes:
            return
        of_address: Counter[tuple[str, str]] = Counter()
        for member, size in waiting.items():
            of_address[self._places[member]] += size
        greatest: dict[tuple[str, str], Iterator[Member]] = {}
        while num_bytes > self._most_unread_bytes:
            place, _ = of_address.most_common(1)[0]
            if place not in greatest:
                members = (member for member in waiting if self._places.get(member) == place)
                greatest[place] = iter(sorted(members, key=waiting.__getitem__, reverse=True))
            member = next(greatest[place])
            num_bytes -= waiting[member]
            of_address[place] -= waiting[member]
            self._cut_off(member, "unread")

    def _cut_off(self, member: Member, reason: EndReason) -> None:
        self.remove(member)
        with contextlib.suppress(AttributeError, OSError):  # the kernel, too, drops at once what it has to send
            plain = member.transport.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        member.transport.abort()
        self._count(reason)

    def _tell(self) -> None:
        counts = ", ".join(f"{number} {reason}" for reason, number in sorted(self._ended.items()))
        self._ended.clear()
        logger.warning(
            "connections refused or ended early: %s; TORCHGATE_MAX_CONNECTIONS, TORCHGATE_MAX_CONNECTIONS_PER_ADDRESS "
            "and TORCHGATE_WRITE_TIMEOUT_SECONDS bound them, see torchgate_connections_ended_total",
            counts,
        )


def _num_bytes_in_kernel(transport: Wire) -> int:
    """Return how many bytes the kernel has sent without an acknowledgement, or will send; 0 if it does not tell.

    It takes megabytes, and asks for more only after a third has left: without this a slow reader would look like none.
    """
    try:
        found = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (AttributeError, OSError, ValueError):
        return 0
    return int(struct.unpack("i", found)[0])
