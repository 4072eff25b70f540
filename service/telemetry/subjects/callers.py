"""Metrics of callers: what each sends, what it is refused, and credentials that were none."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter

from service.telemetry.metric_labels import CALLER_REJECTIONS, CredentialFault


class CallerMetrics:
    """The metrics of callers. Their names come from the settings and the clients' file, so they are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)

        self.images = counter(
            "torchgate_caller_images_total", "Images that the owner of a key sent within its quota.", ("caller",)
        )
        self.rejected = counter(
            "torchgate_caller_rejected_total",
            "Requests of a key's owner that got 429.",
            ("caller", "reason"),
        )
        self.credentials_refused = counter(
            "torchgate_credentials_refused_total",
            "Requests refused for their credentials: missing, wrong, scope (the key may not do this), backoff (too "
            "many wrong ones came from the address).",
            ("reason",),
        )
        for reason in CredentialFault.__args__:  # type: ignore[attr-defined]
            self.credentials_refused.labels(reason)

    def forget(self, name: str) -> None:
        """Remove a caller that is not there any more."""
        self.images.remove_by_labels({"caller": name})
        self.rejected.remove_by_labels({"caller": name})

    def reject(self, name: str, reason: str) -> None:
        """Count a request that was refused for one of CALLER_REJECTIONS, or not count it."""
        if reason in CALLER_REJECTIONS:
            self.rejected.labels(name, reason).inc()
