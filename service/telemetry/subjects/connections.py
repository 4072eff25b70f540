"""Metrics of connections: how many are open, and how many the gateway closed to keep room for others."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

EndReason = Literal["full", "address_full", "displaced", "stalled", "unread"]


class ConnectionMetrics:
    """The metrics of connections; none is labelled with an address."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("torchgate_connections", "Open connections.", ("listener",), registry=registry)
        self.ended = Counter(
            "torchgate_connections_ended_total",
            "Connections refused (full, or address_full: from one address) and ended early: displaced (idle, in favour "
            "of a new one), stalled (the client did not read its answers), unread (too many bytes of answers waited).",
            ("reason",),
            registry=registry,
        )
        for reason in EndReason.__args__:  # type: ignore[attr-defined]
            self.ended.labels(reason)
