"""Which version gets what, and how each does: traffic, latency, errors, rollouts, shadows."""

from deploy.grafana.panels import VERSION, Board, Panel, Query, Row, heat, quantile, rate

_EACH = "{{model}} {{version}}"
_BY = "model, version"
_ANSWERED = "torchgate_inference_requests_total"
_COUNTED = f'{VERSION},outcome=~"success|server_error|shed|expired"'
_BAD = f'{VERSION},outcome=~"server_error|shed|expired"'
_DURATION = "torchgate_inference_duration_seconds"
_MODEL = 'model=~"$model"'
_PAIR = "model, version, primary"
_COPY = "{{model}} {{version}} beside {{primary}}"
_SAME = f'{VERSION},result="same"'
_SHADOW_LATENCY = "torchgate_shadow_latency_difference_seconds"

_STATE = Row(
    "What is there",
    [
        Panel(
            "Ready",
            "Whether a version answers. One that does not gets no traffic; /models says why.",
            [Query(f"min by ({_BY}) (torchgate_model_ready{{{VERSION}}})", _EACH)],
            kind="state-timeline",
            width=12,
            names=((0, "not ready", "red"), (1, "ready", "green")),
            see="torchgate-backend",
        ),
        Panel(
            "Versions",
            "What each version is; sha256 is its archive's.",
            [Query(f"max by (model, version, precision, sha256) (torchgate_model_info{{{VERSION}}})")],
            kind="table",
            width=12,
            columns=("model", "version", "precision", "sha256"),
        ),
        Panel(
            "Labels",
            "What /predict?label=... means now.",
            [Query(f"max by (model, label, version) (torchgate_model_label_info{{{_MODEL}}})", optional=True)],
            kind="table",
            columns=("model", "label", "version"),
        ),
        Panel(
            "Time to load",
            "Time that a version last took to load, warm up and pass its self-check.",
            [Query(f"max by ({_BY}) (torchgate_model_load_seconds{{{VERSION}}})", _EACH)],
            unit="s",
        ),
        Panel(
            "Rollouts",
            "What became of guarded rollouts, in the last hour; the blue lines on all boards. rolled_back: torchgate "
            "events says which guard broke, and with what figures.",
            [
                Query(
                    f"sum by (model, event) (increase(torchgate_rollout_events_total{{{_MODEL}}}[1h])) > 0",
                    "{{model}} {{event}}",
                    optional=True,
                ),
            ],
        ),
    ],
)
_SPLIT = Row(
    "Split",
    [
        Panel(
            "Share that each should get",
            "The weights as they are set, of requests that name no version.",
            [Query(f"max by ({_BY}) (torchgate_model_traffic_weight_ratio{{{VERSION}}})", _EACH, optional=True)],
            unit="percentunit",
            width=12,
            stacked=True,
            most=1,
        ),
        Panel(
            "Share that each got",
            "Of the requests of its model; those that name a version or a label count too, so this may differ.",
            [
                Query(
                    f"{rate(_ANSWERED, VERSION, _BY)} / on (model) group_left {rate(_ANSWERED, _MODEL, 'model')}", _EACH
                ),
            ],
            unit="percentunit",
            width=12,
            stacked=True,
            most=1,
        ),
    ],
)
_COMPARED = Row(
    "Beside each other",
    [
        Panel(
            "Requests",
            "Requests in a second, whatever their end.",
            [Query(rate(_ANSWERED, VERSION, _BY), _EACH)],
            unit="reqps",
            width=6,
        ),
        Panel(
            "Failing",
            "Share of requests refused, failed or too late. A new version above the others should get no more traffic.",
            [Query(f"{rate(_ANSWERED, _BAD, _BY)} / {rate(_ANSWERED, _COUNTED, _BY)}", _EACH)],
            unit="percentunit",
            width=6,
            thresholds=((0.001, "yellow"), (0.01, "red")),
            see="torchgate-backend",
        ),
        *(
            Panel(
                f"p{share * 100:g}",
                f"Time within which {share:.0%} of the successful requests were answered.",
                [
                    Query(quantile(share, _DURATION, f'{VERSION},outcome="success"', _BY), _EACH),
                    Query("max(torchgate_slo_latency_threshold_seconds)", "objective", optional=True, dashed=True),
                ],
                unit="s",
                width=6,
                see="torchgate-batching",
            )
            for share in (0.5, 0.99)
        ),
    ],
)
_SHADOWS = Row(
    "Shadows",
    [
        Panel(
            "Agreement",
            "Share of copied images that got the same class from both. What differs is worth a look before the version "
            "gets traffic.",
            [
                Query(
                    f"{rate('torchgate_shadow_items_total', _SAME, _PAIR)} / "
                    f"{rate('torchgate_shadow_items_total', VERSION, _PAIR)}",
                    _COPY,
                ),
            ],
            unit="percentunit",
            width=6,
            most=1,
            see="torchgate-quality",
        ),
        Panel(
            "Copies",
            "What became of copies. shed is no harm: under load copies take a small share of the time, and no more.",
            [Query(rate("torchgate_shadow_requests_total", VERSION, "outcome"), "{{outcome}}")],
            unit="reqps",
            width=6,
            stacked=True,
        ),
        Panel(
            "Differences of probabilities",
            "For each copied image the largest; up to 0.001 is rounding.",
            [heat("torchgate_shadow_difference", VERSION)],
            unit="short",
            kind="heatmap",
            width=6,
        ),
        Panel(
            "Differences of latency",
            "By how much a copy took longer than its request; below nothing it was faster.",
            [
                Query(quantile(share, _SHADOW_LATENCY, VERSION, _PAIR), f"{_COPY}, p{share * 100:g}")
                for share in (0.5, 0.9)
            ],
            unit="s",
            width=6,
            least=None,
        ),
    ],
)
VERSIONS_BOARD = Board(
    "torchgate-versions",
    "torchgate: versions and rollouts",
    "Which version gets what, and whether the new one is as good.",
    [_STATE, _SPLIT, _COMPARED, _SHADOWS],
)
