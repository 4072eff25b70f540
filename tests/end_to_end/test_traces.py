"""A real gateway over real models, and a collector: what a user sees who turns tracing on."""

import httpx
import pytest

from tests.collector import Collector
from tests.images import rgb_png
from tests.stack import Trained, gateway_of_workers, gateway_over
from tests.torchserve_process import TorchServeProcess

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize("backend", ["grpc", "rest", "workers"])
def test_a_trace_leads_from_the_client_to_the_batch(
    backend: str, trained: Trained, request: pytest.FixtureRequest
) -> None:
    with Collector() as collector:
        env = {"TORCHGATE_TRACING": "otlp", "TORCHGATE_TRACING_ENDPOINT": collector.endpoint}
        if backend == "workers":
            process = gateway_of_workers(trained.store, **env)
        else:
            torchserve: TorchServeProcess = request.getfixturevalue("loaded_torchserve")
            process = gateway_over(torchserve, TORCHGATE_BACKEND=backend, **env)
        with process as gateway:
            gateway.until_ready()
            headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "Content-Type": "image/png"}
            url = f"{gateway.url}/predict"
            answer = httpx.post(url, content=rgb_png(), headers=headers, trust_env=False, timeout=60)
            assert answer.status_code == 200, answer.text
            spans = {span.name: span for span in collector.spans(4) if span.trace_id == TRACE}
            line = gateway.until_logged(lambda line: line.get("trace_id") == TRACE)
    server, compute, batch = spans["POST /predict"], spans["compute"], spans["batch"]
    assert (server.parent_id, compute.parent_id, batch.parent_id) == (CALLER, server.span_id, compute.span_id)
    assert batch.links == [server.place]
    assert batch.attributes["torchgate.model.version"] == answer.headers["x-model-version"]
    assert 0 < batch.attributes["torchgate.handler.compute_ms"] <= (batch.end_ns - batch.start_ns) / 1e6
    assert line["span_id"] == server.span_id
