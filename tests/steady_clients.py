"""Clients that never stop asking, and notice every request that got no good answer."""

import asyncio
import collections
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
CLASSES = [(b"class:%d" % index, label) for index, label in enumerate(["zero", "one", "two", "three"])]


class SteadyClients:
    """Keep-alive clients, every fourth with a new connection for each request; none may fail.

    A connection that ends before the first byte of an answer is no failure where it was kept alive and the next
    attempt, on a new one, succeeds; `num_repeated` counts these.
    """

    def __init__(self, port: int, number: int, images: Sequence[tuple[bytes, str]] = CLASSES) -> None:
        self._port = port
        self._number = number
        self._images = images  # and their labels
        self._is_over = False
        self.answers: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.num_repeated = 0

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask meanwhile."""
        tasks = [asyncio.create_task(self._ask(number)) for number in range(self._number)]
        try:
            yield
        finally:
            self._is_over = True
            async with asyncio.timeout(60):
                await asyncio.gather(*tasks)

    async def until_answered(self, number: int) -> None:
        """Return when so many more answers have come."""
        target = self.answers.total() + number
        async with asyncio.timeout(60):
            while self.answers.total() < target and not self.failures:
                await asyncio.sleep(0.01)

    async def _ask(self, number: int) -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while not self._is_over:
            is_kept = streams is not None
            try:
                streams = streams or await asyncio.open_connection("127.0.0.1", self._port)
                is_last = await self._answer(*self._images[number % len(self._images)], *streams)
            except (OSError, EOFError) as error:
                nothing_came = not isinstance(error, asyncio.IncompleteReadError) or not error.partial
                if is_kept and nothing_came:
                    self.num_repeated += 1
                else:
                    self.failures.append(repr(error))
                is_last = True
            if (is_last or number % 4 == 3) and streams is not None:
                streams[1].close()
                streams = None
        if streams is not None:
            streams[1].close()

    async def _answer(
        self, image: bytes, label: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send a request and judge its answer; return whether it was the connection's last."""
        writer.write(HEAD % len(image) + image)
        lines: Sequence[bytes] = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        body = await reader.readexactly(length)
        if b" 200 " in lines[0] and f'"label":"{label}"'.encode() in body:
            self.answers["right"] += 1
        else:
            self.failures.append(f"{lines[0]!r} {body!r}")
        return b"connection: close" in lines
