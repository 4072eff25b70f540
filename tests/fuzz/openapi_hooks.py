"""What schemathesis does around each request of test_openapi.py; it loads this file in a process of its own."""

import itertools
import os
from pathlib import Path
from typing import Any

import schemathesis

CALLS = Path(os.environ["TORCHGATE_TEST_CALLS"])  # gets a line for each answer
SPLITS = itertools.cycle([{"1.0": 100}, {"1.0": 90, "1.0-int8-static": 10}, {"1.0-int8-dynamic": 100}, {"1.0": 50}])
NUMBERS = itertools.count(1)


def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Make valid requests meaningful where a schema cannot say what is, and short; leave invalid ones alone."""
    # An address must wait after some wrong credentials, so each request has one of its own.
    number = next(NUMBERS)
    case.headers["X-Forwarded-For"] = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    if case.meta is None or case.meta.generation.mode != "positive":
        return
    if {"version", "label"} <= set(case.query or ()):
        del case.query["label"]
    if not isinstance(case.body, dict):
        return
    if case.operation.label.endswith("/profile"):
        case.body |= {"wait_seconds": 0.1, "num_batches": 1}
    if "steps" in case.body:
        case.body["steps"] = [5, 50, 100]
    if "weights" in case.body and len(case.body["weights"]) < 2:
        case.body |= {"weights": next(SPLITS), "shadows": {}}


def after_call(context: Any, case: Any, response: Any) -> None:
    """Note what was asked and how it was answered."""
    with CALLS.open("a") as file:
        file.write(f"{case.operation.label} {response.status_code}\n")


schemathesis.hook(before_call)
schemathesis.hook(after_call)
