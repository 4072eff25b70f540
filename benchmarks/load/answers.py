"""The answers to an open loop: the head of one, and the figures of all."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LOST = 0  # the "status" of a request without an answer


def parse_head(received: bytes) -> tuple[int, int, bool] | None:
    """Return status, length of the whole answer and whether the server closes after it; None if the head is not whole.

    Raises ValueError for an answer without a Content-Length.
    """
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = received[:end].lower()
    start = head.find(b"\r\ncontent-length:")
    if start < 0:
        raise ValueError(f"an answer without a Content-Length: {head[:200]!r}")
    length = int(head[start + 17 :].split(b"\r\n", 1)[0])
    return int(head[9:12]), end + 4 + length, b"\r\nconnection: close" in head


def summarise(statuses: Sequence[int], latencies: Sequence[float], objective_ms: float) -> dict[str, Any]:
    """Return the number of answers of each status, their latencies, and how many met the objective."""
    status, latency_ms = np.asarray(statuses), np.asarray(latencies) * 1e3
    answered: dict[str, Any] = {}
    for code in sorted(set(status.tolist())):
        of_code = latency_ms[status == code]
        p50, p99 = np.percentile(of_code, [50, 99])
        answered[str(code)] = {
            "count": len(of_code),
            "p50_ms": round(float(p50), 3),
            "p99_ms": round(float(p99), 3),
            "within_objective": int((of_code <= objective_ms).sum()),
        }
    return {"sent": len(status), "statuses": answered}
