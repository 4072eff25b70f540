"""Where /metrics comes from: of a gateway that is one process from its registry, of several from all of them."""

import asyncio
import json
import os
import signal
import socket
from contextlib import suppress
from itertools import count
from struct import Struct
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from service.errors import NotReady
from service.exposition import expose
from service.families import packed

LENGTH = Struct(">I")
TELL_EVERY_SECONDS = 1.0  # what a process that is killed has counted since is lost
TELL_CHARACTERS_PER_SECOND = 300_000  # with many versions there is more to tell, and it is told less often
PAGE_SECONDS = 5.0


class Pages(Protocol):
    """Makes the page that Prometheus reads."""

    async def start(self) -> None:
        """Begin."""

    async def close(self) -> None:
        """End, after the last request was counted."""

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page in the format that a scraper accepts, and its content type."""


class OwnPages:
    """The metrics of this process alone."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return them."""
        return await expose(self._registry, accept)


class SharedPages:
    """The metrics of all processes of this gateway, made by the process above them."""

    def __init__(self, registry: CollectorRegistry, connection: socket.socket) -> None:
        self._registry = registry
        self._socket = connection
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[tuple[bytes, str]]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Tell the process above what was counted, again and again."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        num_characters = await self._tell(None)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tell_often(num_characters))]

    async def close(self) -> None:
        """Tell it for the last time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(OSError):
            await self._tell(None)
            self._writer.close()
            await self._writer.wait_closed()

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page; raises NotReady if the process above does not make it in time."""
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            _write(self._writer, f'["page",{number},{json.dumps(accept)},{await packed(self._registry)}]')
            return await asyncio.wait_for(future, PAGE_SECONDS)
        except TimeoutError as error:
            raise NotReady("the gateway's processes do not tell what they have counted") from error
        finally:
            del self._asked[number]

    async def _tell(self, number: int | None) -> int:
        text = f'["counts",{json.dumps(number)},{await packed(self._registry)}]'
        _write(self._writer, text)
        await self._writer.drain()
        return len(text)

    async def _tell_often(self, num_characters: int) -> None:
        while True:
            await asyncio.sleep(max(TELL_EVERY_SECONDS, num_characters / TELL_CHARACTERS_PER_SECOND))
            num_characters = await self._tell(None)

    async def _listen(self) -> None:
        while (message := await receive(self._reader)) is not None:
            match message:
                case ["tell", number]:
                    await self._tell(number)
                case ["page", number, text, content_type]:
                    if (future := self._asked.get(number)) is not None and not future.done():
                        future.set_result((text.encode(), content_type))
        # Nobody restarts this process any more, and nobody would stop it.
        os.kill(os.getpid(), signal.SIGTERM)


def send(writer: asyncio.StreamWriter, message: list[Any]) -> None:
    """Send a message, as far as anybody is there to take it."""
    _write(writer, json.dumps(message, separators=(",", ":")))


def _write(writer: asyncio.StreamWriter, text: str) -> None:
    body = text.encode()
    writer.write(LENGTH.pack(len(body)) + body)


async def receive(reader: asyncio.StreamReader) -> list[Any] | None:
    """Return the next message; None if the other end is gone."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        message: list[Any] = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None
    return message
