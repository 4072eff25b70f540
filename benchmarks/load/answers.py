"""What an open loop gets back: one answer's head, and all answers in figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LOST = 0  # the "status" of a request that got no answer


def parse_head(received: bytes) -> tuple[int, int, bool] | None:
    """Return status, length of the whole answer and whether the server closes after it; None while the head lacks."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = received[:end].lower()
    start = head.find(b"\r\ncontent-length:")
    if start < 0:
        raise ValueError(f"an answer without a Content-Length: {head[:200]!r}")
    length = int(head[start + 17 :].split(b"\r\n", 1)[0])
    return int(head[9:12]), end + 4 + length, b"\r\nconnection: close" in head


def summarise(
    times: Sequence[float], statuses: Sequence[int], latencies: Sequence[float], objective_ms: float
) -> dict[str, Any]:
    """Return, for each status, how many there were, how long they took, and how many met the objective.

    `ok_per_second` counts the answers with 200 within the objective by the second in which they were due.
    """
    status, latency_ms, due = np.asarray(statuses), np.asarray(latencies) * 1e3, np.asarray(times)
    answered: dict[str, Any] = {}
    for code in sorted(set(status.tolist())):
        of_code = latency_ms[status == code]
        p50, p99, longest = np.percentile(of_code, [50, 99, 100])
        answered[str(code)] = {
            "count": len(of_code),
            "p50_ms": round(float(p50), 3),
            "p99_ms": round(float(p99), 3),
            "max_ms": round(float(longest), 3),
            "within_objective": int((of_code <= objective_ms).sum()),
        }
    good = due[(status == 200) & (latency_ms <= objective_ms)]
    return {"sent": len(status), "statuses": answered, "ok_per_second": np.bincount(good.astype(int)).tolist()}
