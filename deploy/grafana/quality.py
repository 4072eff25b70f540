"""Whether the answers are still what they were: classes, confidence, drift, accuracy."""

from deploy.grafana.panels import VERSION, Board, Panel, Query, Row, heat, mean, rate

_EACH = "{{model}} {{version}}"
_BY = "model, version"
_CONFIDENCE = "torchgate_prediction_confidence_ratio"
_UNSURE = f'{VERSION},le="0.5"'
_RIGHT = f'{VERSION},result="correct"'

_DRIFT = Row(
    "Drift",
    [
        Panel(
            f"Drift of {kind}",
            f"{what} The dashed line is the score beyond which it is more than chance. Past it: look at what came, "
            "and train again on labelled images of it.",
            [
                Query(f'max by ({_BY}) (torchgate_drift_score{{{VERSION},kind="{key}"}})', _EACH, optional=True),
                Query(
                    f'max by ({_BY}) (torchgate_drift_threshold{{{VERSION},kind="{key}"}})',
                    f"{_EACH}, threshold",
                    optional=True,
                    dashed=True,
                ),
            ],
            width=12,
        )
        for key, kind, what in (
            ("class", "classes", "How far the shares of the classes are from those of the validation images."),
            ("confidence", "confidence", "How far the probabilities are from those of the validation images."),
        )
    ],
)
_ANSWERS = Row(
    "Answers",
    [
        Panel(
            "Classes",
            "Share of each class among the answers of the versions chosen above.",
            [
                Query(
                    f"{rate('torchgate_prediction_class_total', VERSION, 'class')} / on () group_left "
                    f"{rate('torchgate_prediction_class_total', VERSION)}",
                    "{{class}}",
                    optional=True,
                ),
            ],
            unit="percentunit",
            stacked=True,
            most=1,
        ),
        Panel(
            "Confidence",
            "Probability of the class that was answered. A model that is used to its images is nearly certain nearly "
            "always.",
            [heat(_CONFIDENCE, VERSION, optional=True)],
            unit="percentunit",
            kind="heatmap",
        ),
        Panel(
            "Mean confidence",
            "It falls when images come that the model has not learnt.",
            [Query(mean(_CONFIDENCE, VERSION, _BY), _EACH, optional=True)],
            unit="percentunit",
            most=1,
            see="torchgate-versions",
        ),
        Panel(
            "Unsure",
            "Share of answers whose probability is a half or less: the first to look at, or to have labelled.",
            [
                Query(
                    f"{rate(f'{_CONFIDENCE}_bucket', _UNSURE, _BY)} / {rate(f'{_CONFIDENCE}_count', VERSION, _BY)}",
                    _EACH,
                    optional=True,
                ),
            ],
            unit="percentunit",
        ),
        Panel(
            "Images that failed alone",
            "Requests whose only image could not be used (broken, not an image, too large).",
            [Query(rate("torchgate_inference_requests_total", f'{VERSION},outcome="client_error"', _BY), _EACH)],
            unit="reqps",
        ),
        Panel(
            "Agreement with shadows",
            "Share of copied images that another version put into the same class: disagreement is a sign of doubt "
            "where no labels come back.",
            [
                Query(
                    f"""{rate("torchgate_shadow_items_total", f'{VERSION},result="same"', _BY)} / """
                    f"{rate('torchgate_shadow_items_total', VERSION, _BY)}",
                    _EACH,
                ),
            ],
            unit="percentunit",
            most=1,
            see="torchgate-versions",
        ),
    ],
)
_ACCURACY = Row(
    "Accuracy, where labels come back",
    [
        Panel(
            "Accuracy",
            "Share of labelled answers (POST /feedback) that were right, over the last hour. Of few labels it says "
            "little: see how many there were.",
            [
                Query(
                    f"sum by ({_BY}) (increase(torchgate_feedback_total{{{_RIGHT}}}[1h])) / "
                    f"sum by ({_BY}) (increase(torchgate_feedback_total{{{VERSION}}}[1h]))",
                    _EACH,
                ),
            ],
            unit="percentunit",
            width=12,
            most=1,
        ),
        Panel(
            "Labels that came back",
            "In the last hour, by whether the version had been right.",
            [
                Query(
                    f"sum by (model, version, result) (increase(torchgate_feedback_total{{{VERSION}}}[1h]))",
                    f"{_EACH}, {{{{result}}}}",
                ),
            ],
            width=12,
            stacked=True,
        ),
    ],
)
QUALITY = Board(
    "torchgate-quality",
    "torchgate: quality of predictions",
    "Whether the answers are still what they were.",
    [_DRIFT, _ANSWERS, _ACCURACY],
)
