"""The closed sets of the metrics' label values, and the histograms' buckets."""

from collections.abc import Mapping
from typing import Literal

VERSION = ("model", "version")  # the first labels of each metric that is kept by version
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10)
QUEUE_BUCKETS = (0.0005, *DURATION_BUCKETS)
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

CircuitState = Literal["closed", "half_open", "open"]
Outcome = Literal["success", "client_error", "server_error", "shed", "expired", "cancelled"]
RolloutEvent = Literal["started", "stepped", "paused", "resumed", "succeeded", "rolled_back", "aborted"]
Rejection = Literal["queue_full", "share", "quota", "deadline", "draining", "circuit_open", "too_large", "buffers_full"]
CALLER_REJECTIONS = frozenset({"queue_full", "share", "quota", "deadline"})
CredentialFault = Literal["missing", "wrong", "scope", "backoff"]
CloseReason = Literal["full", "shared", "idle", "deadline", "drain", "split", "large"]
ShadowOutcome = Literal["compared", "failed", "shed"]
SHADOW_RESULTS = ("same", "different")
DIFFERENCE_BUCKETS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1)
LATENCY_DIFFERENCE_BUCKETS = (-1, -0.1, -0.025, -0.01, -0.0025, 0, 0.0025, 0.01, 0.025, 0.1, 1)
# Dense near 1, where a good model's confidences are.
CONFIDENCE_BUCKETS = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999, 1)
CIRCUIT_STATES: Mapping[CircuitState, int] = {"closed": 0, "half_open": 1, "open": 2}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# POST /predict exports these from the start: a rate does not see the value with which a counter appears.
PREDICT_CODES = ("200", "429", "500", "503", "504")
# TorchServe's names, in lower case; any other state counts as other.
WORKER_STATES = ("ready", "loading", "unloading", "stopped", "other")
