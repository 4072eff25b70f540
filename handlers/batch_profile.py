"""One batch under torch's profiler: its stages, its operators by the processor's time, and a trace if it is wanted.

The file travels inside every archive, beside the handler.
"""

import base64
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch.autograd import profiler

Kind = Literal["table", "trace"]
STAGE = "stage::"  # before a stage's name, so that no operator is taken for one
MOST_OPERATORS = 200
LONGEST_NAME = 200
# Compressed. A batch of a ResNet-18 comes to some 20 kB.
MAX_TRACE_BYTES = 4 * 1024 * 1024


class BatchProfile:
    """Watches what happens while it is entered. Where torch cannot, it says so, and what it watches goes on."""

    # torch.autograd.profiler is what torch.profiler is made of. That one imports 800 modules (of torch._inductor) when
    # it starts for the first time, for which callers would wait seconds in the worker that happens to be asked first.

    def __init__(self, device: torch.device, kind: Kind) -> None:
        self._kind = kind
        self._device = device
        self._profiler: profiler.profile | None = None
        self._failure = ""

    def __enter__(self) -> Self:
        """Begin to watch."""
        # Two lines for each batch, of start and stop, are no news; it is read anew every time.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        watching = profiler.profile(
            use_kineto=True, use_device=None if self._device.type == "cpu" else self._device.type
        )
        try:
            watching.__enter__()  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # something else in this process profiles already
            self._failure = f"{error}"
        else:
            self._profiler = watching
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        if self._profiler is not None:
            self._profiler.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def mark(self, stage: str) -> AbstractContextManager[Any]:
        """Return what has the time inside it counted as a stage."""
        return profiler.record_function(STAGE + stage)

    def document(self) -> dict[str, Any]:
        """Return what was seen, as JSON can hold it: {"stages", "operators"} and, if wanted, {"trace"}, or {"error"}.

        A trace is base64 of zlib of the events of a Chrome trace, JSON objects with commas between them.
        """
        if self._profiler is None:
            return {"error": self._failure[:LONGEST_NAME]}
        try:
            averages = self._profiler.key_averages()  # type: ignore[no-untyped-call]
            seen = {"device": str(self._device), **summarize(averages)}
            return {**seen, **self._trace()} if self._kind == "trace" else seen
        except (RuntimeError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:LONGEST_NAME]}

    def _trace(self) -> dict[str, Any]:
        assert self._profiler is not None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))  # type: ignore[no-untyped-call]
            events = json.loads(path.read_bytes())["traceEvents"]
        text = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        content = zlib.compress(text.encode())
        if len(content) > MAX_TRACE_BYTES:
            return {}
        return {"trace": base64.b64encode(content).decode()}


def summarize(averages: Sequence[Any]) -> dict[str, Any]:
    """Return the stages in their order and the operators that took longest, times in milliseconds.

    `averages` are torch's, one for each name. Kernels of a GPU count for the operators that started them.
    """
    on_cpu = [each for each in averages if each.device_type.name == "CPU"]
    stages = [
        {"stage": each.key.removeprefix(STAGE), "ms": round(each.cpu_time_total / 1e3, 4)}
        for each in on_cpu
        if each.key.startswith(STAGE)
    ]
    operators = sorted(
        (each for each in on_cpu if not each.key.startswith(STAGE)),
        key=lambda each: (-each.self_cpu_time_total - each.self_device_time_total, each.key),
    )
    rows = [
        {
            "operator": each.key[:LONGEST_NAME],
            "num_calls": each.count,
            "self_cpu_ms": round(each.self_cpu_time_total / 1e3, 4),
            "cpu_ms": round(each.cpu_time_total / 1e3, 4),
            "self_device_ms": round(each.self_device_time_total / 1e3, 4),
        }
        for each in operators[:MOST_OPERATORS]
    ]
    return {"stages": stages, "operators": rows}
