"""The page that Prometheus scrapes, written one metric at a time, so that no request waits for all of it."""

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

END = b"# EOF\n"  # of a page in OpenMetrics


async def expose(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the page in the format that `accept` asks for, and its content type; other tasks run meanwhile."""
    encode, content_type = choose_encoder(accept)
    page: list[bytes] = []
    end = b""
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - collect() builds all metrics at once
        text = encode(collector)
        end = END if text.endswith(END) else b""
        page.append(text.removesuffix(END))
        await asyncio.sleep(0)
    return b"".join((*page, end)), content_type
