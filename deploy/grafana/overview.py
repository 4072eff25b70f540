"""Is it well? Traffic, objectives, latency and what runs full, of all gateways together."""

from deploy.grafana.panels import VERSION, WINDOW, Board, Panel, Query, Row, heat, quantile, rate

_SUCCESS = f'{VERSION},outcome="success"'
_DURATION = "torchgate_inference_duration_seconds"
_PREDICT = 'route="/predict"'
_BAD_CODES = f'{_PREDICT},code=~"429|5.."'
_KNOWN_CODES = f'{_PREDICT},code=~"2..|429|5.."'
_BURN: tuple[tuple[float, str], ...] = ((1, "yellow"), (6, "orange"), (14.4, "red"))
_OURS = "and on (job, instance) torchgate_build_info"


def _failing(window: str) -> str:
    bad = f"sum(rate(torchgate_http_requests_total{{{_BAD_CODES}}}{window}))"
    return f"({bad} or vector(0)) / sum(rate(torchgate_http_requests_total{{{_KNOWN_CODES}}}{window}))"


def _slow(window: str) -> str:
    fast = f"sum(rate(torchgate_slo_fast_requests_total{window}))"
    return f'1 - {fast} / sum(rate(torchgate_inference_requests_total{{outcome="success"}}{window}))'


def _burn(share: str, objective: str) -> str:
    return f'({share}) / (1 - max(torchgate_slo_objective_ratio{{objective="{objective}"}}))'


_NOW = Row(
    "Now",
    [
        Panel(
            "Predictions",
            "Requests to /predict answered in a second, whatever the answer.",
            [Query(rate("torchgate_http_requests_total", _PREDICT))],
            unit="reqps",
            kind="stat",
            width=4,
        ),
        Panel(
            "Images",
            "Images answered in a second; one request may carry many.",
            [Query(rate("torchgate_inference_items_total", VERSION))],
            unit="ops",
            kind="stat",
            width=4,
        ),
        Panel(
            "Failing",
            "Share of predictions refused or failed though the client did nothing wrong (429 and 5xx). The default "
            "objective allows 0.1 %. Next: what they failed with, below; the backend, if it is 5xx.",
            [Query(_failing(WINDOW))],
            unit="percentunit",
            kind="stat",
            width=4,
            thresholds=((0.001, "yellow"), (0.01, "red")),
            see="torchgate-backend",
        ),
        Panel(
            "99 of 100 within",
            "Time within which 99 of 100 successful requests were answered. The default objective is 100 ms. "
            "Next: whether they waited or computed, below.",
            [Query(quantile(0.99, _DURATION, _SUCCESS))],
            unit="s",
            kind="stat",
            width=4,
            thresholds=((0.1, "yellow"), (0.25, "red")),
            see="torchgate-batching",
        ),
        Panel(
            "Backend",
            "Whether what runs the models answers; of several gateways the worst.",
            [Query("min(torchgate_backend_up)")],
            kind="stat",
            width=4,
            names=((0, "down", "red"), (1, "up", "green")),
            see="torchgate-backend",
        ),
        Panel(
            "Versions out of order",
            "Versions that are wanted and do not answer. Next: why, at /models and in the log.",
            [Query('count(torchgate_model_ready{model=~"$model"}) - sum(torchgate_model_ready{model=~"$model"})')],
            kind="stat",
            width=4,
            thresholds=((1, "red"),),
            see="torchgate-versions",
        ),
    ],
    height=4,
)
_OBJECTIVES = Row(
    "Objectives",
    [
        Panel(
            "Availability: how fast the budget burns",
            "Failing share over the share that the objective allows. At 1 the budget lasts exactly its 30 days; at "
            "14.4 for an hour, or 6 for six hours, somebody is paged.",
            [
                Query(_burn(_failing("[1h]"), "availability"), "over an hour", optional=True),
                Query(_burn(_failing("[5m]"), "availability"), "over 5 minutes", optional=True),
            ],
            width=12,
            thresholds=_BURN,
            see="torchgate-backend",
        ),
        Panel(
            "Latency: how fast the budget burns",
            "Share of answers slower than the threshold over the share that the objective allows; read like the other.",
            [
                Query(_burn(_slow("[1h]"), "latency"), "over an hour", optional=True),
                Query(_burn(_slow("[5m]"), "latency"), "over 5 minutes", optional=True),
            ],
            width=12,
            thresholds=_BURN,
            see="torchgate-batching",
        ),
    ],
)
_TRAFFIC = Row(
    "Traffic and errors",
    [
        Panel(
            "Predictions by status",
            "HTTP answers of /predict. 429 is overload, 503 a backend or a version that is not there, 504 a deadline "
            "that passed.",
            [Query(rate("torchgate_http_requests_total", _PREDICT, "code"), "{{code}}")],
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Requests by outcome",
            "How requests that reached a version ended; cancelled is a client that left.",
            [Query(rate("torchgate_inference_requests_total", VERSION, "outcome"), "{{outcome}}")],
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Refused at the door",
            "queue_full and deadline: more load than the workers take, so add workers or machines. circuit_open: the "
            "backend fails. buffers_full and too_large: bodies.",
            [Query(rate("torchgate_rejected_total", "", "reason"), "{{reason}}")],
            unit="reqps",
            stacked=True,
        ),
    ],
)
_LATENCY = Row(
    "Latency",
    [
        Panel(
            "How long successful requests take",
            "Each cell is the number of requests of that duration. Two bands are two kinds of requests or versions: "
            "choose one version above.",
            [heat(_DURATION, _SUCCESS)],
            unit="s",
            kind="heatmap",
        ),
        Panel(
            "Quantiles",
            "Durations of successful requests, read from the histogram: right to within its bucket.",
            [
                *(Query(quantile(share, _DURATION, _SUCCESS), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)),
                Query("max(torchgate_slo_latency_threshold_seconds)", "objective", optional=True, dashed=True),
            ],
            unit="s",
            see="torchgate-versions",
        ),
        Panel(
            "Where the time goes",
            "p99 of waiting for a batch and of a batch's round trip to the backend. Waiting that grows with steady "
            "computing is load; computing that grows is the model or the machine.",
            [
                Query(quantile(0.99, "torchgate_inference_queue_seconds", VERSION), "waiting"),
                Query(quantile(0.99, "torchgate_inference_compute_seconds", VERSION), "computing"),
            ],
            unit="s",
            see="torchgate-batching",
        ),
    ],
    height=9,
)
_SATURATION = Row(
    "Saturation",
    [
        Panel(
            "Images that wait",
            "The queue of each version. It fills when images come faster than the workers answer.",
            [Query(f"sum by (model, version) (torchgate_queue_depth{{{VERSION}}})", "{{model}} {{version}}")],
            see="torchgate-batching",
        ),
        Panel(
            "Oldest image that waits",
            "How long it has waited. Past half the objective there is an alert: what comes now will be late.",
            [
                Query(
                    f"max by (model, version) (torchgate_queue_oldest_age_seconds{{{VERSION}}})",
                    "{{model}} {{version}}",
                ),
                Query("max(torchgate_slo_latency_threshold_seconds) / 2", "half the objective", True, True),
            ],
            unit="s",
            see="torchgate-batching",
        ),
        Panel(
            "Requests in progress",
            "Requests that the gateways hold now.",
            [Query("sum by (route) (torchgate_http_requests_in_progress)", "{{route}}")],
            stacked=True,
        ),
        Panel(
            "Lateness of the event loop",
            "By how much timers are late: whatever holds one request up holds up all. Over 50 ms with an idle machine "
            "something computes inside the gateway.",
            [
                Query(quantile(0.99, "torchgate_event_loop_lag_seconds", "", "instance"), "p99 {{instance}}"),
            ],
            unit="s",
            thresholds=((0.05, "yellow"),),
        ),
        Panel(
            "CPU of the gateways",
            "Cores that each gateway's own process uses. One process cannot use more than one.",
            [Query(f"rate(process_cpu_seconds_total{WINDOW}) {_OURS}", "{{instance}}")],
            unit="none",
            thresholds=((0.9, "red"),),
        ),
        Panel(
            "Memory of the gateways",
            "Resident memory of each gateway's own process; workers are on the backend's board.",
            [Query(f"process_resident_memory_bytes {_OURS}", "{{instance}}")],
            unit="bytes",
            see="torchgate-backend",
        ),
    ],
)
OVERVIEW = Board(
    "torchgate-overview",
    "torchgate: overview",
    "Is it well? Start here; titles with a link lead to the board that says why.",
    [_NOW, _OBJECTIVES, _TRAFFIC, _LATENCY, _SATURATION],
)
