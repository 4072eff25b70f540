"""What tracing costs a request: the gateway alone, its spans taken by a collector that throws them away."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from benchmarks.costs.edge import edge
from benchmarks.workloads.own import own_workload

REPEATS = 5
SECONDS = 3.0
CLIENTS = ("8", "64")
# Of requests that are recorded; None is tracing off.
RATIOS = (None, "0", "0.01", "0.1", "1")


def run(store: Path) -> None:
    """Print the CPU time of a request by the share that is recorded, in interleaved runs."""
    workload = own_workload(store)
    found: dict[tuple[str, str | None], list[float]] = {}
    with _collector() as endpoint:
        for repeat in range(REPEATS):
            for ratio in RATIOS if repeat % 2 else RATIOS[::-1]:
                tracing = {"TORCHGATE_TRACING": "otlp", "TORCHGATE_TRACING_ENDPOINT": endpoint}
                options = {} if ratio is None else {**tracing, "TORCHGATE_TRACING_SAMPLE_RATIO": ratio}

                def put(cell: str, outcome: dict[str, Any], ratio: str | None = ratio) -> None:
                    found.setdefault((cell, ratio), []).append(outcome["cpu_us_per_request"])

                row = edge("gateway", workload, tuple(map(int, CLIENTS)), SECONDS, options)
                row.run(row.cells, put)
            print(f"repeat {repeat + 1} of {REPEATS}", flush=True)
    print("\n| CPU of a request, µs | least | median |\n|---|---|---|")
    for (clients, ratio), times in sorted(found.items(), key=lambda item: (int(item[0][0]), RATIOS.index(item[0][1]))):
        name = "off" if ratio is None else f"{float(ratio):.0%} recorded"
        print(f"| {clients} clients, {name} | {min(times):.1f} | {median(times):.1f} |")


@contextmanager
def _collector() -> Iterator[str]:
    """Listen for spans, and forget them."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(1).wait(10)
