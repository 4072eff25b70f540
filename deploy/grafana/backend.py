"""What runs the models: workers, memory, circuit, errors, restarts, and TorchServe's own figures."""

from deploy.grafana.panels import VERSION, WINDOW, Board, Panel, Query, Row, rate

_EACH = "{{model}} {{version}}"
_BY = "model, version"
# TorchServe's counters have its own labels.
_TORCHSERVE = 'model_name=~"$model",model_version=~"$version"'
_TS_BY = "model_name, model_version"
_TS_EACH = "{{model_name}} {{model_version}}"


def _ts_mean(counter: str) -> str:
    requests = rate("ts_inference_requests_total", _TORCHSERVE, _TS_BY)
    return f"{rate(counter, _TORCHSERVE, _TS_BY)} / {requests} / 1e6"


_STATE = Row(
    "State",
    [
        Panel(
            "Backend",
            "Whether TorchServe answers, or the gateway's own workers are there. While it is down requests get 503.",
            [Query("min by (instance) (torchgate_backend_up)", "{{instance}}")],
            kind="state-timeline",
            names=((0, "down", "red"), (1, "up", "green")),
        ),
        Panel(
            "Circuit",
            "open: the last batches of a version were not answered, so none is sent for a moment and requests get 503 "
            "at once; then one is tried.",
            [Query(f"max by ({_BY}) (torchgate_backend_circuit_state{{{VERSION}}})", _EACH)],
            kind="state-timeline",
            names=((0, "closed", "green"), (1, "trying", "yellow"), (2, "open", "red")),
        ),
        Panel(
            "Workers that are ready",
            "Fewer than are wanted: one has died and its successor is loading, or it does not load; the log says why.",
            [
                Query(f'sum by ({_BY}) (torchgate_backend_workers{{{VERSION},state="ready"}})', _EACH),
                Query(
                    f"sum by ({_BY}) (torchgate_backend_workers_wanted{{{VERSION}}})",
                    f"{_EACH}, wanted",
                    optional=True,
                    dashed=True,
                ),
            ],
        ),
    ],
)
_FAILURES = Row(
    "Failures",
    [
        Panel(
            "Batches without an answer",
            "By the error's code; each is tried again in parts, so that one bad image fails alone.",
            [Query(f"{rate('torchgate_backend_errors_total', VERSION, 'kind')} or vector(0)", "{{kind}}")],
            unit="ops",
            stacked=True,
            thresholds=((0.01, "red"),),
        ),
        Panel(
            "Workers replaced",
            "In the last hour, by why. died: see the log for its last lines. timeout: a batch took longer than "
            "TORCHGATE_BACKEND_TIMEOUT_MS. memory: past TORCHGATE_WORKER_MAX_BYTES. Backend workers only.",
            [
                Query(
                    f"sum by (model, version, reason) (increase(torchgate_worker_restarts_total{{{VERSION}}}[1h]))"
                    " or vector(0)",
                    "{{model}} {{version}} {{reason}}",
                ),
            ],
            stacked=True,
            thresholds=((1, "red"),),
        ),
        Panel(
            "Workers by state",
            "All workers of the versions chosen above.",
            [Query(f"sum by (state) (torchgate_backend_workers{{{VERSION}}})", "{{state}}")],
            stacked=True,
        ),
    ],
)
_LOAD = Row(
    "Load",
    [
        Panel(
            "Memory of workers",
            "Resident memory of each worker. One that only grows leaks: TORCHGATE_WORKER_MAX_BYTES has it replaced in "
            "time. Of TorchServe's only with disable_system_metrics=false.",
            [
                Query(f"torchgate_backend_worker_memory_bytes{{{VERSION}}}", f"{_EACH} {{{{worker}}}}"),
            ],
            unit="bytes",
        ),
        Panel(
            "Batches that wait inside the backend",
            "One or two keep workers busy; more means that somebody else uses this TorchServe, too.",
            [Query(f"sum by ({_BY}) (torchgate_backend_pending_requests{{{VERSION}}})", _EACH)],
        ),
        Panel(
            "Batches in flight",
            "What the gateways have sent and not got back.",
            [Query(f"sum by ({_BY}) (torchgate_inflight_batches{{{VERSION}}})", _EACH)],
            see="torchgate-batching",
        ),
    ],
)
_OWN = Row(
    "TorchServe's own figures",
    [
        Panel(
            "Requests",
            "A request is one of the gateway's batches. Empty with the backend workers, which have no TorchServe.",
            [Query(rate("ts_inference_requests_total", _TORCHSERVE, _TS_BY), _TS_EACH)],
            unit="reqps",
            width=6,
        ),
        Panel(
            "Mean times",
            "Of a request in TorchServe as a whole, and in its queue. TorchServe counts them with "
            "TORCHGATE_BACKEND=rest only.",
            [
                Query(_ts_mean("ts_inference_latency_microseconds"), f"{_TS_EACH}, whole", optional=True),
                Query(_ts_mean("ts_queue_latency_microseconds"), f"{_TS_EACH}, queue", optional=True),
            ],
            unit="s",
            width=6,
        ),
        Panel(
            "Last request",
            "The last request's time in the handler and in its worker, and how long it waited for one; of every model.",
            [
                Query('PredictionTime{ModelName=~"$model"} / 1000', "handler, {{ModelName}}"),
                Query("WorkerThreadTime / 1000", "worker"),
                Query("QueueTime / 1000", "queue"),
            ],
            unit="s",
            width=6,
        ),
        Panel(
            "Answers by status",
            "HTTP answers of TorchServe, management included. A kind is there from its first answer on.",
            [Query(f"sum(rate(Requests{kind}XX{WINDOW}))", f"{kind}xx", optional=kind != 2) for kind in (2, 4, 5)],
            unit="reqps",
            width=6,
            stacked=True,
        ),
    ],
)
BACKEND = Board(
    "torchgate-backend",
    "torchgate: backend",
    "What runs the models, and what went wrong there.",
    [_STATE, _FAILURES, _LOAD, _OWN],
)
