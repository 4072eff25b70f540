"""What a mechanism costs a request: the gateway alone under each of two settings, in interleaved runs."""

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc

from benchmarks.costs.edge import edge
from benchmarks.workloads.own import own_workload

REPEATS = 5
SECONDS = 3.0
CLIENTS = (8, 64)


class Way(NamedTuple):
    """How the gateway is started, and what it is asked for."""

    options: Mapping[str, str] = {}
    path: str = "/predict"


def measure(name: str, store: Path) -> None:
    """Print the CPU time of a request for each way of a mechanism, on the store's newest archive."""
    workload = own_workload(store)
    found: dict[str, dict[str, list[float]]] = {str(clients): {} for clients in CLIENTS}
    with _collector() as collector, tempfile.TemporaryDirectory() as folder:
        ways = mechanisms(collector, folder, workload.version)[name]
        for repeat in range(REPEATS):
            for label in list(ways)[:: 1 if repeat % 2 else -1]:

                def put(cell: str, outcome: dict[str, Any], label: str = label) -> None:
                    found[cell].setdefault(label, []).append(outcome["cpu_us_per_request"])

                row = edge("gateway", workload, CLIENTS, SECONDS, *ways[label])
                row.run(row.cells, put)
            print(f"repeat {repeat + 1} of {REPEATS}", flush=True)
    print("\n| CPU of a request, µs | least | median |\n|---|---|---|")
    for clients, times_of in found.items():
        for label in ways:
            times = times_of[label]
            print(f"| {clients} clients, {label} | {min(times):.1f} | {median(times):.1f} |")


def mechanisms(collector: str, folder: str, version: str) -> dict[str, dict[str, Way]]:
    """Return the ways of each mechanism, the one without it first."""
    tracing = {"TORCHGATE_TRACING": "otlp", "TORCHGATE_TRACING_ENDPOINT": collector}
    log = {"TORCHGATE_PREDICTION_LOG_DIR": folder}
    return {
        "prediction-log": {
            "off": Way(),
            "1 % logged": Way({**log, "TORCHGATE_PREDICTION_LOG_SAMPLE": "0.01"}),
            "all logged": Way(log),
        },
        "routing": {"by the traffic policy": Way(), "version named": Way(path=f"/predict?version={version}")},
        "tracing": {
            "off": Way(),
            **{
                f"{float(ratio):.0%} recorded": Way({**tracing, "TORCHGATE_TRACING_SAMPLE_RATIO": ratio})
                for ratio in ("0", "0.01", "0.1", "1")
            },
        },
    }


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
