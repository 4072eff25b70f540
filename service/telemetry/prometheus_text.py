"""The page that Prometheus scrapes, written one metric at a time, so that no request waits for all of it."""

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

END = b"# EOF\n"  # of a page in OpenMetrics
# The next metric is a share of it. Where few requests come, one that is counted in between would look slow.
WITH_THE_NEXT = "torchgate_inference_requests"


async def expose(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the page in the format that `accept` asks for, and its content type; other tasks run meanwhile."""
    encode, content_type = choose_encoder(accept)
    page: list[bytes] = []
    end = b""
    collectors = list(registry._collector_to_names.items())  # noqa: SLF001 - collect() builds all metrics at once
    for collector, names in collectors:
        text = encode(collector)
        end = END if text.endswith(END) else b""
        page.append(text.removesuffix(END))
        if WITH_THE_NEXT not in names:
            await asyncio.sleep(0)
    return b"".join((*page, end)), content_type
