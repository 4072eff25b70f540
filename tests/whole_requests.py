"""A client whose requests arrive in one piece, as most clients send them."""

from typing import Any

import httpcore
import httpx


class WholeRequests(httpx.AsyncHTTPTransport):
    """Sends head and body in one piece, as most clients do; httpx itself sends them one after the other."""

    def __init__(self) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=1000, max_keepalive_connections=100, network_backend=_JoiningBackend()
        )


class _JoiningBackend(httpcore.AnyIOBackend):
    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return _JoiningStream(await super().connect_tcp(*args, **kwargs))


class _JoiningStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._head = b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        head = buffer.lower()
        if buffer.endswith(b"\r\n\r\n") and b"\r\ncontent-length:" in head and b"\r\ncontent-length: 0\r" not in head:
            self._head = buffer
            return
        buffer, self._head = self._head + buffer, b""
        await self._stream.write(buffer, timeout)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
